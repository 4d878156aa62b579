"""Numbers with an interval: proportions, means, and ratios of means over the same examples.

Use:

    wilson(87, 128)                                   # accuracy
    newcombe((87, 128), (61, 128))                    # the difference of two
    mean(p_clean, rng=rng)                            # bootstrap
    ratio_of_means(p_patched - p_base[:, None], p_source - p_base, rng=rng)     # one per site
    adjusted(p_values_of_means(p_patched - p_base[:, None]))      # false discovery rate

The bootstrap is paired: an example is drawn with everything that was measured on it, and all
columns share the draws, so that what is compared was measured on the same items. A resample is a
vector of counts, and all of them times all columns is one matrix product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np

RESAMPLES = 2000
# More do not fit into memory.
MOST_RESAMPLES = 100_000
LEVEL = 0.95
# Smaller differences are rounding: they are equal on another machine or not at all.
ROUNDING = 1e-6
# Of n values the median lies outside their range with probability 2^(1 − n), and all resamples lie
# within: with fewer no bootstrap has 95 %.
FEWEST = 6


@dataclass(frozen=True)
class Estimate:
    """A value with a 95 % interval (unless another level was asked for).

    Attributes:
        n: examples behind it. With fewer than `FEWEST` a bootstrap gives no interval: `low`, `high`
            are NaN or the limits of what the value can be.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        # Rounded first: no negative zeros.
        value, low, high = (round(x, 3) + 0.0 for x in (self.value, self.low, self.high))
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"

    def to_json(self) -> dict[str, float | int | None]:
        """Return a dict for JSON; what is not finite becomes null."""
        limits = {"value": self.value, "low": self.low, "high": self.high}
        return {k: v if isfinite(v) else None for k, v in limits.items()} | {"n": self.n}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Estimate":
        """Undo `to_json`."""
        limits = (nan if data[k] is None else float(data[k]) for k in ("value", "low", "high"))
        return cls(*limits, n=int(data["n"]))


def wilson(successes: int, n: int, level: float = LEVEL) -> Estimate:
    """Return a proportion with Wilson's score interval (1927); n = 0 gives NaN in [0, 1].

    Raises:
        ValueError: more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Estimate(nan, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the formula is exact on paper only.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Estimate(share, low, high, n)


def newcombe(first: tuple[int, int], second: tuple[int, int], level: float = LEVEL) -> Estimate:
    """Return a difference of two independent proportions, first − second.

    The interval is Newcombe's (1998, method 10), from the two Wilson intervals.

    Args:
        first: successes and trials.
        second: likewise.
        level: of the interval.

    Raises:
        ValueError: see `wilson`.
    """
    a, b = wilson(*first, level), wilson(*second, level)
    if not (a.n and b.n):
        return Estimate(nan, -1.0, 1.0, 0)
    below = sqrt((a.value - a.low) ** 2 + (b.high - b.value) ** 2)
    above = sqrt((a.high - a.value) ** 2 + (b.value - b.low) ** 2)
    value = a.value - b.value
    return Estimate(value, value - below, value + above, a.n + b.n)


def mean(
    values: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    bounds: tuple[float, float] = (nan, nan),
) -> Estimate:
    """Return a mean with a percentile-bootstrap interval.

    Args:
        values: (n,); NaN entries are left out.
        rng: draws the resamples.
        resamples: how many.
        level: of the interval.
        bounds: what the mean can be at all; the interval where `FEWEST` allows none.
    """
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    n = len(values)
    if n < FEWEST:
        return Estimate(float(values.mean()) if n else nan, *bounds, n=n)
    low, high = np.quantile(counts(n, resamples, rng) @ values / n, _tails(level))
    return Estimate(float(values.mean()), float(low), float(high), n)


def ratio_of_means(
    numerator: np.ndarray,
    denominator: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[Estimate]:
    """Return mean(numerator) / mean(denominator) of every column, by paired bootstrap.

    Args:
        numerator: (n examples, k columns). NaN: the example lacks this column, and is left out of
            both means of it.
        denominator: (n, k), or (n,) if all columns share it.
        rng: draws the resamples.
        resamples: how many.
        level: of the intervals.

    Returns:
        k estimates. NaN throughout where a mean denominator is 0; NaN limits where n < `FEWEST`.
    """
    values, drawn, sizes = ratio_draws(numerator, denominator, rng=rng, resamples=resamples)
    limits = interval(drawn, level)
    return [
        Estimate(float(value), float(low), float(high), int(n))
        for value, low, high, n in zip(values, *limits, sizes, strict=True)
    ]


def ratio_draws(
    numerator: np.ndarray,
    denominator: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ratios of `ratio_of_means` (k,), their resamples (resamples, k), and n (k,).

    Resamples are NaN where n < `FEWEST`. For what is not one column: sums, differences, and the
    place where a curve crosses a line.
    """
    numerator = np.asarray(numerator, np.float64)
    denominator = np.asarray(denominator, np.float64)
    if denominator.ndim == 1:
        denominator = denominator[:, None]
    denominator = np.broadcast_to(denominator, numerator.shape)
    present = ~(np.isnan(numerator) | np.isnan(denominator))
    top, bottom = (np.where(present, part, 0.0) for part in (numerator, denominator))
    times = counts(len(numerator), resamples, rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = _ratio(top.sum(axis=0), bottom.sum(axis=0))
        drawn = _ratio(times @ top, times @ bottom)
    n = present.sum(axis=0)
    drawn[:, n < FEWEST] = nan
    return values, drawn, n


def interval(drawn: np.ndarray, level: float = LEVEL) -> np.ndarray:
    """Return the percentile limits (2, k) of resamples (resamples, k).

    A resample without a value (no example of a rare column, or a zero) says nothing.
    """
    limits = np.full((2, drawn.shape[1]), nan)
    some = ~np.isnan(drawn).all(axis=0)
    limits[:, some] = np.nanquantile(drawn[:, some], _tails(level), axis=0)
    return limits


def p_values_of_means(values: np.ndarray) -> np.ndarray:
    """Return of each column the two-sided p-value of "its mean is 0", safe against skewness.

    It is the larger of two: Student's, and that of Hall's transformation of t (1992, "On the
    removal of skewness by transformation"), which takes the skewness out. Student's alone finds in
    34 % of grids of 100 sites without an effect (64 examples, shifted exponential) what it should
    find in 5 %, since so small p-values come from the tails that skewness changes most; Hall's
    alone finds too much where the tails are heavy. `tests/benchmarks/bench_statistics.py` measures
    both together. A bootstrap of 2,000 resamples knows no p-value below 0.001, which no family of a
    hundred sites leaves standing.

    Where all n values are equal, to c, no spread is there to judge by. Differences of probabilities
    lie in [−1, 1]: if their mean is 0, c comes n times in a row with (1 + |c|)^(−n) at the most.

    Args:
        values: (n, k) differences of probabilities; NaN entries are left out, and what is below
            `ROUNDING` counts as 0.

    Returns:
        (k,); 1 where all values are 0 or fewer than `FEWEST` are there.
    """
    from scipy.stats import t as student

    values = np.asarray(values, np.float64)
    values = np.where(np.abs(values) < ROUNDING, 0.0, values)
    n = (~np.isnan(values)).sum(axis=0)
    enough = n >= FEWEST
    result = np.ones(values.shape[1])
    columns, n = values[:, enough], n[enough]
    average = np.nanmean(columns, axis=0)
    # Equal values have no spread but what their mean's rounding leaves.
    alike = np.nanmax(columns, axis=0) == np.nanmin(columns, axis=0)
    spread = np.where(alike, 1.0, np.nanstd(columns, axis=0))
    skewness = np.nanmean(((columns - average) / spread) ** 3, axis=0)
    t = average / spread * np.sqrt(n - 1)
    root = np.sqrt(n)
    unskewed = (
        t + skewness * t**2 / (3 * root) + skewness**2 * t**3 / (27 * n) + skewness / (6 * root)
    )
    p = 2 * student.sf(np.minimum(np.abs(t), np.abs(unskewed)), n - 1)
    result[enough] = np.where(alike, np.minimum(1.0, 2 * (1 + np.abs(average)) ** -n), p)
    return result


def adjusted(p: np.ndarray) -> np.ndarray:
    """Return Benjamini–Hochberg's adjusted p-values; those up to q are found at a rate of q."""
    from scipy.stats import false_discovery_control

    p = np.asarray(p, np.float64)
    return false_discovery_control(p) if len(p) else p


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.where(bottom == 0, nan, top / bottom)


def counts(n: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each resample draws each example: (resamples, n)."""
    if n == 0:
        return np.zeros((resamples, 0))
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)


def _tails(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2
