"""Intervals against scipy, loops and coverage."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from patchbench.statistics import (
    Estimate,
    adjusted,
    mean,
    newcombe,
    p_values_of_means,
    ratio_of_means,
    wilson,
)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (10, 10), (87, 128), (1, 1024)])
@pytest.mark.parametrize("level", [0.95, 0.9])
def test_wilson_equals_scipy(hits, n, level):
    truth = stats.binomtest(hits, n).proportion_ci(level, method="wilson")
    found = wilson(hits, n, level)
    assert found.value == hits / n
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high), abs=1e-12)


@pytest.mark.parametrize("n", range(1, 60))
def test_a_proportion_is_between_0_and_1(n):
    assert wilson(0, n).low == 0.0
    assert wilson(n, n).high == 1.0


def test_wilson_of_nothing_knows_nothing():
    found = wilson(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high, found.n) == (0.0, 1.0, 0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


def effects(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gap = rng.uniform(0.2, 1.0, size=n)
    share = np.linspace(0, 1, k)
    return gap[:, None] * share + rng.normal(0, 0.1, size=(n, k)), gap


def test_ratio_equals_a_loop_over_resamples():
    numerator, denominator = effects(40, 3)
    found = ratio_of_means(numerator, denominator, rng=np.random.default_rng(1), resamples=500)
    counts = np.random.default_rng(1).multinomial(40, [1 / 40] * 40, size=500)
    for column, estimate in enumerate(found):
        drawn = []
        for row in counts:
            chosen = np.repeat(np.arange(40), row)
            drawn.append(numerator[chosen, column].mean() / denominator[chosen].mean())
        low, high = np.quantile(drawn, [0.025, 0.975])
        value = numerator[:, column].mean() / denominator.mean()
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx(
            (value, low, high), rel=1e-9, abs=1e-12
        )
        assert estimate.n == 40


def test_ratio_covers_the_truth_as_often_as_it_says():
    """95 % ± 3 %: 400 experiments with a known ratio of means."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        gap = rng.uniform(0.0, 1.0, size=80)
        numerator = 0.3 * gap + rng.normal(0, 0.2, size=80)
        found = ratio_of_means(numerator[:, None], gap, rng=rng, resamples=400)[0]
        hits += found.low <= 0.3 <= found.high
    assert hits / 400 == pytest.approx(0.95, abs=0.03)


def test_paired_columns_keep_their_difference():
    """A site and itself shifted by 0.1: the draws are shared, so the intervals shift alike."""
    numerator, denominator = effects(64, 1)
    shifted = numerator + 0.1 * denominator[:, None]
    both = np.hstack([numerator, shifted])
    first, second = ratio_of_means(both, denominator, rng=np.random.default_rng(0))
    assert second.low - first.low == pytest.approx(0.1, abs=1e-9)
    assert second.high - first.high == pytest.approx(0.1, abs=1e-9)


def test_missing_examples_are_left_out_of_both_means():
    numerator, denominator = effects(50, 2)
    numerator[10:, 1] = np.nan
    full, partial = ratio_of_means(numerator, denominator, rng=np.random.default_rng(0))
    assert (full.n, partial.n) == (50, 10)
    truth = numerator[:10, 1].mean() / denominator[:10].mean()
    assert partial.value == pytest.approx(truth, rel=1e-12)
    assert partial.low < truth < partial.high


def test_an_example_without_a_gap_is_left_out_too():
    numerator, denominator = effects(50, 2)
    denominator = np.stack([denominator, denominator], axis=1)
    denominator[10:, 1] = np.nan
    _, partial = ratio_of_means(numerator, denominator, rng=np.random.default_rng(0))
    assert partial.n == 10
    assert partial.value == pytest.approx(numerator[:10, 1].mean() / denominator[:10, 1].mean())


def test_a_resample_without_the_rare_examples_says_nothing():
    """6 of 400 have the column: 1 resample in 400 has none of them, and the others decide."""
    numerator, denominator = effects(400, 2)
    numerator[6:, 1] = np.nan
    _, rare = ratio_of_means(numerator, denominator, rng=np.random.default_rng(0))
    assert rare.n == 6
    assert math.isfinite(rare.low)
    assert rare.low < rare.value < rare.high


@pytest.mark.parametrize(
    ("numerator", "denominator", "n"),
    [
        (np.ones((5, 1)), np.zeros(5), 5),
        (np.full((5, 1), np.nan), np.ones(5), 0),
        (np.empty((0, 1)), np.empty(0), 0),
    ],
    ids=["no denominator", "no values", "no examples"],
)
def test_what_has_no_ratio_is_nan(numerator, denominator, n):
    (found,) = ratio_of_means(numerator, denominator, rng=np.random.default_rng(0))
    assert all(math.isnan(x) for x in (found.value, found.low, found.high))
    assert found.n == n


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_too_few_examples_have_a_value_but_no_interval(n):
    """Of five values the median is outside their range in 6 % of samples, of six in 3 %."""
    numerator = np.linspace(0.4, 0.6, n)[:, None]
    (found,) = ratio_of_means(numerator, np.ones(n), rng=np.random.default_rng(0))
    values = np.linspace(0.6, 0.8, n)
    single = mean(values, rng=np.random.default_rng(0), bounds=(0.0, 1.0))
    assert found.value == pytest.approx(numerator.mean())
    assert single.value == pytest.approx(values.mean())
    assert math.isnan(found.low) == math.isnan(found.high) == (n < 6)
    assert ((single.low, single.high) == (0.0, 1.0)) == (n < 6)
    assert (p_values_of_means(numerator)[0] == 1.0) == (n < 6)
    assert (found.n, single.n) == (n, n)


def test_mean_is_near_the_normal_interval():
    values = np.random.default_rng(0).uniform(size=400)
    found = mean(values, rng=np.random.default_rng(1))
    half = 1.96 * values.std(ddof=1) / 20
    assert found.value == pytest.approx(values.mean(), rel=1e-12)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.08)
    assert mean(np.append(values, np.nan), rng=np.random.default_rng(1)) == found


def test_a_grid_of_100_sites_takes_less_than_two_seconds():
    numerator, denominator = effects(1024, 100)
    started = time.process_time()
    ratio_of_means(numerator, denominator, rng=np.random.default_rng(0), resamples=2000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("estimate", [Estimate(0.5, 0.25, 0.75, 8), Estimate(0.5, -1, math.inf, 1)])
def test_estimates_go_to_json_and_back(estimate):
    data = estimate.to_json()
    again = Estimate.from_json(data)
    assert (again.value, again.low, again.n) == (estimate.value, estimate.low, estimate.n)
    assert data["high"] == (0.75 if estimate.n == 8 else None)


@pytest.mark.parametrize(
    ("first", "second", "limits"),
    [
        # Newcombe (1998), table II, method 10.
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
def test_a_difference_of_proportions_equals_the_published_table(first, second, limits):
    found = newcombe(first, second)
    assert (found.low, found.high) == pytest.approx(limits, abs=1e-4)
    assert found.value == pytest.approx(first[0] / first[1] - second[0] / second[1])
    mirrored = newcombe(second, first)
    assert (mirrored.low, mirrored.high) == pytest.approx((-limits[1], -limits[0]), abs=1e-4)


@pytest.mark.parametrize("skewed", [False, True], ids=["symmetric", "skewed"])
def test_p_values_are_the_larger_of_students_and_halls(skewed):
    rng = np.random.default_rng(0)
    values = rng.exponential(size=(40, 6)) - 0.8 if skewed else rng.normal(0.1, 1, size=(40, 6))
    values[:, 5] = -values[:, 5]
    values[30:, 2] = np.nan
    truth = []
    for column in values.T:
        x = column[~np.isnan(column)]
        student = stats.ttest_1samp(x, 0)
        t, g, n = student.statistic, stats.skew(x), len(x)
        hall = t + g * t**2 / (3 * n**0.5) + g**2 * t**3 / (27 * n) + g / (6 * n**0.5)
        truth.append(max(student.pvalue, 2 * stats.t.sf(abs(hall), n - 1)))
    assert p_values_of_means(values) == pytest.approx(truth, rel=1e-9)


def test_rounding_is_no_effect():
    values = np.array([[1e-9, 0.0, np.nan]] * 8)
    assert p_values_of_means(values).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("constant", [0.25, -0.1, 1.0])
@pytest.mark.parametrize("n", [8, 64])
def test_equal_differences_have_the_p_value_of_the_worst_null(constant, n):
    """Mean 0 on [−1, 1]: all else lies at the far end, which n draws in a row then miss."""
    chance = 1 / (1 + abs(constant))
    worst = np.array([[constant]] * n)
    assert constant * chance - np.sign(constant) * (1 - chance) == pytest.approx(0)
    assert p_values_of_means(worst)[0] == pytest.approx(min(1, 2 * chance**n))


NULLS = {
    "symmetric": lambda rng: rng.exponential(size=(64, 20)) - rng.exponential(size=(64, 20)),
    "skewed": lambda rng: rng.exponential(size=(64, 20)) - 1,
    "skewed downwards": lambda rng: 1 - rng.exponential(size=(64, 20)),
    "rare": lambda rng: (rng.random((64, 20)) < 0.1) - 0.1,
    "heavy tails": lambda rng: rng.standard_t(3, size=(64, 20)),
}


@pytest.mark.parametrize("false", [20, 12], ids=["all null", "some null"])
@pytest.mark.parametrize("null", NULLS.values(), ids=NULLS)
def test_the_false_discovery_rate_holds_on_simulated_grids(null, false):
    """20 sites, 400 grids; the level is 5 %, and Student's t alone has 16 % on the skewed ones."""
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(400):
        values = null(rng)
        values[:, false:] += 0.8
        found = adjusted(p_values_of_means(values)) <= 0.05
        shares.append(found[:false].sum() / max(1, found.sum()))
    assert np.mean(shares) <= 0.05 + 2 * np.std(shares) / 20


def test_adjusted_p_values_are_benjamini_hochbergs():
    p = np.array([0.03, 0.001, 0.04, 0.2])
    assert adjusted(p) == pytest.approx([4 / 3 * 0.04, 0.004, 4 / 3 * 0.04, 0.2])
    assert len(adjusted(np.empty(0))) == 0
