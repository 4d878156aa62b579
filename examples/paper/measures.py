"""What a claim is about: accuracies and effects of pooled runs, and whether they meet a limit.

Use:

    measure = Measure(name="accuracy of mamba", of=accuracy("paper_ar", "mamba"), at_least=0.85,
                      needs=(("paper_ar", "mamba"),))
    measure.of(pools)             # an Estimate; None where the model is below the gate
    measure.judge(pools)          # a sign of `SIGNS`

`pools` holds what `patchbench.pooling.pool` made of the seeds of each variant of each recipe, or
`Alone` where there is one seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

from scipy.stats import t as student

from patchbench.pooling import Pooled
from patchbench.results import Result
from patchbench.statistics import LEVEL, Estimate


@dataclass(frozen=True)
class Alone:
    """The one seed of a variant, to be read like a `Pooled`: intervals over its examples alone.

    Attributes:
        name: of its run.
        result: of it.
    """

    name: str
    result: Result

    @property
    def results(self) -> Mapping[str, Result]:
        """It, by name."""
        return {self.name: self.result}

    @property
    def accuracy(self) -> Estimate:
        """Accuracy over the vocabulary."""
        return self.result.accuracy

    def attrib(self, site: str) -> Estimate:
        """Return the Attrib of a site, the key corrupted, denoise."""
        return self.result.attrib(site)


# (recipe, variant) to its seeds.
Pools = Mapping[tuple[str, str], Pooled | Alone]
Quantity = Callable[[Pools], Estimate | None]

HOLDS, LEANS, LEANS_NOT, FAILS = "✓", "(✓)", "(✗)", "✗"
BELOW, NOT_RUN = "below the gate", "not run"
SIGNS = {
    HOLDS: "the limit is met, by the whole 95 % interval",
    LEANS: "met, but the interval reaches beyond the limit",
    LEANS_NOT: "not met, but the interval reaches to the limit",
    FAILS: "not met by any of the interval",
    BELOW: "the model does no better than its heuristics, so that there is no effect to measure",
    NOT_RUN: "nobody has run it here",
}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that a claim is about, and its limit: `at_least` or `at_most`.

    Attributes:
        name: what it is.
        of: reads it from the pools, in which all that it needs is.
        needs: (recipe, variant) of every run behind it.
        at_least: the claim's limit.
        at_most: the claim's limit.
        paper: the paper's number, in words.
    """

    name: str
    of: Quantity
    needs: tuple[tuple[str, str], ...]
    at_least: float | None = None
    at_most: float | None = None
    paper: str = "no number"

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.name}: one limit is needed")

    @property
    def limit(self) -> str:
        """The limit in words."""
        low, high = self.at_least, self.at_most
        return f"≥ {low:.2f}" if low is not None else f"≤ {high:.2f}"

    def value(self, pools: Pools) -> Estimate | None:
        """Return what was measured; None where a run is missing, or below the gate."""
        return self.of(pools) if all(need in pools for need in self.needs) else None

    def seeds(self, pools: Pools) -> int:
        """Return the fewest seeds behind it; 0 where a run is missing."""
        return min(len(pools[need].results) if need in pools else 0 for need in self.needs)

    def judge(self, pools: Pools) -> str:
        """Return a sign of `SIGNS`."""
        if not all(need in pools for need in self.needs):
            return NOT_RUN
        estimate = self.of(pools)
        if estimate is None:
            return BELOW
        if self.at_least is not None:
            met, sure = estimate.value >= self.at_least, estimate.low >= self.at_least
            out_of_reach = estimate.high < self.at_least
        else:
            assert self.at_most is not None
            met, sure = estimate.value <= self.at_most, estimate.high <= self.at_most
            out_of_reach = estimate.low > self.at_most
        if met:
            return HOLDS if sure else LEANS
        return FAILS if out_of_reach else LEANS_NOT


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, and the measures that it rests on.

    Attributes:
        text: the claim.
        measures: all have to be met.
    """

    text: str
    measures: tuple[Measure, ...]


def accuracy(recipe: str, variant: str) -> Quantity:
    """Read the accuracy over the vocabulary, on test."""
    return lambda pools: pools[recipe, variant].accuracy


def accuracy_beyond_heuristics(recipe: str, variant: str) -> Quantity:
    """Read the accuracy on the examples that no heuristic solves: mean over seeds, Student's t."""

    def read(pools: Pools) -> Estimate:
        found = [
            Estimate.from_json(result.summary["accuracy_beyond_heuristics"])
            for result in pools[recipe, variant].results.values()
        ]
        if len(found) == 1:
            return found[0]
        mean = sum(one.value for one in found) / len(found)
        variance = sum((one.value - mean) ** 2 for one in found) / (len(found) - 1)
        half = float(student.ppf((1 + LEVEL) / 2, len(found) - 1)) * sqrt(variance / len(found))
        return Estimate(mean, max(mean - half, 0.0), min(mean + half, 1.0), found[0].n)

    return read


def attrib(recipe: str, variant: str, *sites: str) -> Quantity:
    """Read the Attrib of a site, or the sum over several."""

    def read(pools: Pools) -> Estimate | None:
        pooled = pools[recipe, variant]
        if not any(above_gate(result) for result in pooled.results.values()):
            return None
        first, *others = (pooled.attrib(site) for site in sites)
        for other in others:
            first = plus(first, other)
        return first

    return read


def above_gate(result: Result) -> bool:
    """Return whether the effects of the key corrupted, denoise, are above the gate."""
    return any(
        not run["reasons"]
        for run in result.summary["runs"]
        if (run["corruption"], run["direction"]) == ("key", "denoise")
    )


def difference(one: Quantity, other: Quantity) -> Quantity:
    """Read a difference."""

    def read(pools: Pools) -> Estimate | None:
        a, b = one(pools), other(pools)
        return None if a is None or b is None else plus(a, b, -1)

    return read


def plus(one: Estimate, other: Estimate, sign: int = 1) -> Estimate:
    """Return a sum (or a difference) with an interval from the two (Zou & Donner 2008).

    What the two have in common is not used, so that a difference on the same items, or a sum of
    what is shared out, is surer than it says.
    """
    first, second = (other.low, other.high) if sign > 0 else (other.high, other.low)
    value = one.value + sign * other.value
    below = sqrt((one.value - one.low) ** 2 + (other.value - first) ** 2)
    above = sqrt((one.high - one.value) ** 2 + (second - other.value) ** 2)
    return Estimate(value, value - below, value + above, min(one.n, other.n))
