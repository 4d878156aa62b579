"""Intervals over several runs: seeds are drawn, in them grammars, in these examples.

Use:

    units = [Unit(seed="0", grammar="7", dataset="a6be"), …]             # one for each run
    draws = Draws.of(units, {"a6be": 1024}, rng=rng, resamples=2000)
    draws.ratio([(example, numerator, denominator), …])                  # Estimates, a column each
    draws.p_values([(example, numerator, denominator), …])               # of "the mean is 0"

What several runs share is drawn once for all of them: the grammars, where every seed has the same,
and the examples of one dataset. Drawn for each run anew they would pass for so many more.

A bootstrap of S seeds is too narrow: it takes the S for all there are. The limits are therefore
stretched about the value by t/z · √(S/(S−1)), t and z the 97.5 % points of Student's t with S−1
degrees of freedom and of the normal distribution. In simulations with a spread of the seeds from
none to three times that of their examples' means, 2, 3, 5 and 10 seeds then cover the truth in 95 %
of 400 experiments or more; without it two seeds with much spread cover it in 63 %.

A p-value is of the same statistic: the mean over the resamples' spread, widened by √(S/(S−1)), on
Student's t with S−1 degrees of freedom.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt
from statistics import NormalDist

import numpy as np

from patchbench.statistics import FEWEST, LEVEL, RESAMPLES, ROUNDING, Estimate, counts, interval

# The examples' numbers in their dataset (n,), and numerator and denominator (n, k) of a run.
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What a run is one of.

    Attributes:
        seed: of its training.
        grammar: of its task; "" where there is none.
        dataset: digest of its examples.
    """

    seed: str
    grammar: str
    dataset: str


@dataclass(frozen=True, kw_only=True)
class Draws:
    """How often each resample has each run and each example.

    Attributes:
        units: of the runs, r of them.
        weights: (resamples, r), which sum to 1.
        examples: dataset → (resamples, its examples).
        top: how many of its kind the topmost level has that has more than one; 1 where only
            examples vary.
    """

    units: Sequence[Unit]
    weights: np.ndarray
    examples: Mapping[str, np.ndarray]
    top: int

    @property
    def widening(self) -> float:
        """By how much the spread of a bootstrap of so few is too small."""
        return 1.0 if self.top == 1 else sqrt(self.top / (self.top - 1))

    @property
    def stretch(self) -> float:
        """By how much the limits are moved away from the value."""
        from scipy.stats import t as student

        if self.top == 1:
            return 1.0
        point = (1 + LEVEL) / 2
        normal = NormalDist().inv_cdf(point)
        return float(student.ppf(point, self.top - 1)) / normal * self.widening

    @classmethod
    def of(
        cls,
        units: Sequence[Unit],
        sizes: Mapping[str, int],
        *,
        rng: np.random.Generator,
        resamples: int = RESAMPLES,
    ) -> "Draws":
        """Draw the resamples.

        Args:
            units: of the runs.
            sizes: examples of each dataset.
            rng: draws.
            resamples: how many.
        """
        draw = partial(_shares, resamples=resamples, rng=rng)
        grammars = {
            seed: tuple(sorted({unit.grammar for unit in units if unit.seed == seed}))
            for seed in sorted({unit.seed for unit in units})
        }
        of_seeds = dict(zip(grammars, draw(len(grammars)).T, strict=True))
        shared = len(set(grammars.values())) == 1
        drawn = {}
        for seed, names in grammars.items():
            earlier = next(iter(drawn.values()), None) if shared else None
            drawn[seed] = draw(len(names)) if earlier is None else earlier
        weights = np.empty((resamples, len(units)))
        for number, unit in enumerate(units):
            column = grammars[unit.seed].index(unit.grammar)
            alike = sum((u.seed, u.grammar) == (unit.seed, unit.grammar) for u in units)
            weights[:, number] = of_seeds[unit.seed] * drawn[unit.seed][:, column] / alike
        return cls(
            units=units,
            weights=weights,
            examples={name: counts(size, resamples, rng) for name, size in sizes.items()},
            top=len(grammars) if len(grammars) > 1 else len(next(iter(grammars.values()))),
        )

    def ratio(self, parts: Sequence[Part], level: float = LEVEL) -> list[Estimate]:
        """Return of each column the ratio of the runs' means, every seed with equal weight.

        Args:
            parts: of each run; NaN where an example lacks the column.
            level: of the intervals.
        """
        means = [self._means(*part, unit) for part, unit in zip(parts, self.units, strict=True)]
        _, top, bottom = zip(*means, strict=True)
        drawn = _ratio(self.weights, np.stack(top), np.stack(bottom))
        n = sum((~np.isnan(numerator)).sum(axis=0) for _, numerator, _ in parts)
        plain = np.stack([value for value, _, _ in means])
        values = _ratio(self._equal(), plain[:, :1], plain[:, 1:])[0]
        low, high = interval(drawn, level)
        low, high = (values + self.stretch * (limit - values) for limit in (low, high))
        few = np.atleast_1d(n) < FEWEST
        low, high = (np.where(few, nan, limit) for limit in (low, high))
        return [
            Estimate(float(v), float(a), float(b), int(count))
            for v, a, b, count in zip(values, low, high, np.atleast_1d(n), strict=True)
        ]

    def p_values(self, parts: Sequence[Part]) -> np.ndarray:
        """Return of each column the two-sided p-value of "the mean numerator is 0".

        Args:
            parts: as for `ratio`; the denominators are not looked at.
        """
        from scipy.stats import t as student

        bare = [
            (example, numerator, np.where(np.isnan(numerator), np.nan, 1.0))
            for example, numerator, _ in parts
        ]
        found = [self._means(*part, unit) for part, unit in zip(bare, self.units, strict=True)]
        plain, drawn, ones = (np.stack(items) for items in zip(*found, strict=True))
        mean = _ratio(self._equal(), plain[:, :1], plain[:, 1:])[0]
        spread = self.widening * np.nanstd(_ratio(self.weights, drawn, ones), axis=0)
        least = self.top if self.top > 1 else min(len(example) for example, _, _ in parts)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * student.sf(np.abs(mean) / spread, max(1, least - 1))
        # Without a spread: see `statistics.p_values_of_means`. What is below rounding is no effect.
        alike = np.minimum(1.0, 2 * (1 + np.abs(mean)) ** -float(least))
        p = np.where(spread < ROUNDING**2, alike, p)
        n = sum((~np.isnan(numerator)).sum(axis=0) for _, numerator, _ in parts)
        return np.where((np.abs(mean) < ROUNDING) | np.isnan(p) | (n < FEWEST), 1.0, p)

    def _equal(self) -> np.ndarray:
        """Return the runs' weights (1, r) without a draw."""
        seeds = {unit.seed for unit in self.units}
        weights = []
        for unit in self.units:
            grammars = {u.grammar for u in self.units if u.seed == unit.seed}
            alike = sum((u.seed, u.grammar) == (unit.seed, unit.grammar) for u in self.units)
            weights.append(1 / (len(seeds) * len(grammars) * alike))
        return np.array([weights])

    def _means(
        self, example: np.ndarray, numerator: np.ndarray, denominator: np.ndarray, unit: Unit
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return both means of a run (2, k), and those of its resamples, (resamples, k) each."""
        present = ~(np.isnan(numerator) | np.isnan(denominator))
        top, bottom = (np.where(present, part, 0.0) for part in (numerator, denominator))
        drawn = self.examples[unit.dataset][:, example]
        with np.errstate(divide="ignore", invalid="ignore"):
            number = drawn @ present
            plain = np.stack([top.sum(axis=0), bottom.sum(axis=0)]) / present.sum(axis=0)
            return plain, drawn @ top / number, drawn @ bottom / number


def _ratio(weights: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Return Σ weight · top / Σ weight · bottom: weights (d, r), parts (r, d, k), result (d, k)."""
    known = ~(np.isnan(top) | np.isnan(bottom))
    above, below = (
        np.einsum("dr,rdk->dk", weights, np.where(known, part, 0.0)) for part in (top, bottom)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below == 0, nan, above / below)


def _shares(n: int, *, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return which share of each resample each of n is: (resamples, n)."""
    return counts(n, resamples, rng) / n
