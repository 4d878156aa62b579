"""What the intervals cost, and whether the false discovery rate is what it says.

    python tests/benchmarks/bench_statistics.py

The first table is of CPU time on one thread. The second is of grids in which no site has an effect:
the share of grids with a discovery, which at a rate of 5 % is to be 5 %. The third is of pooled
runs without an effect, whose seeds differ by so many times the standard error of one seed's mean.
"""

import argparse
import time

import numpy as np
from scipy.stats import ttest_1samp

from patchbench.hierarchy import Draws, Unit
from patchbench.statistics import adjusted, p_values_of_means, ratio_of_means

SITES, EXAMPLES, RESAMPLES = 100, 1024, 2000
RATE = 0.05
# Nulls: distributions of patched − base with mean 0, from symmetric to very skewed.
NULLS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "Student's t, 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape),
    "exponential − 1": lambda rng, shape: rng.exponential(size=shape) - 1,
    "1 − exponential": lambda rng, shape: 1 - rng.exponential(size=shape),
    "beta(0.3, 3) − 1/11": lambda rng, shape: rng.beta(0.3, 3, size=shape) - 1 / 11,
    "one in ten is 0.9, the others −0.1": lambda rng, shape: (rng.random(shape) < 0.1) - 0.1,
    "lognormal": lambda rng, shape: np.exp(rng.normal(size=shape)) - np.exp(0.5),
}


def cost() -> float:
    """Return CPU seconds of the paired bootstrap of a grid."""
    rng = np.random.default_rng(0)
    gap = rng.uniform(0.2, 1.0, size=EXAMPLES)
    numerator = gap[:, None] * rng.uniform(size=SITES) + rng.normal(0, 0.1, (EXAMPLES, SITES))
    started = time.process_time()
    ratio_of_means(numerator, gap, rng=rng, resamples=RESAMPLES)
    return time.process_time() - started


def level(null, examples: int, sites: int, grids: int, p_values=p_values_of_means) -> float:
    """Return the share of grids without an effect in which one is found."""
    rng = np.random.default_rng(0)
    found = [(adjusted(p_values(null(rng, (examples, sites)))) <= RATE).any() for _ in range(grids)]
    return float(np.mean(found))


def students(values: np.ndarray) -> np.ndarray:
    """Return the p-values that leave skewness in."""
    return ttest_1samp(values, 0).pvalue


def pooled_level(seeds: int, spread: float, shared: bool, grids: int) -> float:
    """Return the share of pooled grids of 20 sites in which an effect is found."""
    examples, sites, found = 64, 20, []
    rng = np.random.default_rng(0)
    for grid in range(grids):
        units = [
            Unit(seed=str(s), grammar="", dataset="0" if shared else str(s)) for s in range(seeds)
        ]
        common = rng.normal(size=(examples, sites))
        parts = []
        for _ in range(seeds):
            own = rng.normal(size=(examples, sites))
            values = rng.normal(0, spread / np.sqrt(examples), sites) + (
                (common + own) / np.sqrt(2) if shared else own
            )
            parts.append((np.arange(examples), values, np.ones_like(values)))
        sizes = {unit.dataset: examples for unit in units}
        draws = Draws.of(units, sizes, rng=np.random.default_rng(grid), resamples=500)
        found.append((adjusted(draws.p_values(parts)) <= RATE).any())
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--grids", type=int, default=2000)
    grids = parser.parse_args().grids
    seconds = sorted(cost() for _ in range(5))
    print(
        f"{RESAMPLES} resamples of {SITES} sites × {EXAMPLES} examples: median {seconds[2]:.2f} "
        f"CPU s ({seconds[0]:.2f} … {seconds[-1]:.2f} over 5 runs)"
    )
    shapes = [(64, 20), (64, 100), (256, 20), (256, 100), (1024, 20)]
    print(f"discoveries where there are none, {grids} grids; examples × sites:")
    print(f"{'null':36s}" + "".join(f"{f'{n} × {k}':>12s}" for n, k in shapes))
    rows = [(name, null, p_values_of_means) for name, null in NULLS.items()]
    rows.append(("exponential − 1, Student's t alone", NULLS["exponential − 1"], students))
    for name, null, p_values in rows:
        levels = [level(null, n, k, grids if n < 1024 else grids // 4, p_values) for n, k in shapes]
        print(f"{name:36s}" + "".join(f"{value:12.3f}" for value in levels), flush=True)
    print(f"pooled, {grids // 4} grids of 20 sites, 64 examples:")
    for seeds in (2, 3, 5):
        for shared in (False, True):
            levels = [pooled_level(seeds, spread, shared, grids // 4) for spread in (0.0, 1.0, 3.0)]
            which = "the same examples" if shared else "examples of their own"
            print(f"{seeds} seeds, {which:22s} spread 0, 1, 3: {levels}", flush=True)


if __name__ == "__main__":
    main()
