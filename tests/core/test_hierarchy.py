"""Draws of seeds, grammars and examples: against loops, and how often the truth is covered."""

import numpy as np
import pytest
from scipy.stats import norm, t, ttest_1samp

from patchbench.hierarchy import Draws, Unit
from patchbench.statistics import ratio_of_means


def units(*texts: str) -> list[Unit]:
    """Read "seed/grammar/dataset"."""
    parts = [text.split("/") for text in texts]
    return [Unit(seed=seed, grammar=grammar, dataset=data) for seed, grammar, data in parts]


def draws_of(found: list[Unit], n: int = 30, seed: int = 0, resamples: int = 400) -> Draws:
    sizes = {unit.dataset: n for unit in found}
    return Draws.of(found, sizes, rng=np.random.default_rng(seed), resamples=resamples)


def part(values: np.ndarray, gap: float = 1.0):
    column = np.asarray(values, float)[:, None]
    return np.arange(len(column)), column, np.full_like(column, gap)


def test_one_run_is_the_plain_bootstrap():
    values = np.random.default_rng(1).normal(0.4, 1, size=(30, 2))
    gap = np.random.default_rng(2).uniform(0.5, 1, size=(30, 2))
    found = draws_of(units("0//a")).ratio([(np.arange(30), values, gap)])[1]
    rng = np.random.default_rng(0)
    truth = ratio_of_means(values, gap, rng=rng, resamples=400)[1]
    limits = (truth.value, truth.low, truth.high)
    assert (found.value, found.low, found.high) == pytest.approx(limits, rel=1e-9)


def test_seeds_and_grammars_weigh_equally_whatever_their_examples():
    """Seed 0 has two grammars, seed 1 one: weights 1/4, 1/4, 1/2; a mean gap each."""
    parts = [part([1] * 30, gap=2), part([2] * 10, gap=4), part([3] * 5, gap=5)]
    (found,) = draws_of(units("0/1/a", "0/2/b", "1/1/c")).ratio(parts)
    assert found.value == pytest.approx((1 / 4 + 2 / 4 + 3 / 2) / (2 / 4 + 4 / 4 + 5 / 2))
    assert found.n == 45


def test_datasets_of_one_grammar_share_its_weight():
    """Seed 0 has one grammar on two datasets: weights 1/4, 1/4, 1/2."""
    found = units("0/1/a", "0/1/b", "1/1/c")
    draws = draws_of(found)
    assert draws.weights.sum(axis=1) == pytest.approx(1)
    assert (draws.weights[:, 0] == draws.weights[:, 1]).all()
    (mean,) = draws.ratio([part([1] * 30), part([2] * 30), part([4] * 30)])
    assert mean.value == pytest.approx((1 + 2) / 4 + 4 / 2)


def test_seeds_with_grammars_of_their_own_draw_their_own():
    draws = draws_of(units("0/1/a", "0/2/b", "1/3/c", "1/4/d"))
    both = draws.weights[(draws.weights[:, :2].sum(1) > 0) & (draws.weights[:, 2:].sum(1) > 0)]
    first, second = (half / half.sum(axis=1, keepdims=True) for half in (both[:, :2], both[:, 2:]))
    assert (first != second).any()
    assert draws.top == 2


@pytest.mark.parametrize(
    ("names", "top"),
    [
        (("0//a",), 1),
        (("0/1/a", "0/2/b", "0/3/c"), 3),
        (("0/1/a", "0/2/b", "1/1/a", "1/2/b"), 2),
        (("0//a", "1//b", "2//c"), 3),
    ],
    ids=["one run", "grammars of one seed", "seeds with grammars", "seeds"],
)
def test_limits_are_stretched_by_the_topmost_level(names, top):
    draws = draws_of(units(*names))
    assert draws.top == top
    factor = 1 if top == 1 else t.ppf(0.975, top - 1) / norm.ppf(0.975) * np.sqrt(top / (top - 1))
    assert draws.stretch == pytest.approx(factor)


def test_a_column_that_some_examples_lack_is_of_those_that_have_it():
    """Seed 0 has it in 10 of 30 examples, seed 1 in all: both count alike, in every resample."""
    rng = np.random.default_rng(5)
    values = [rng.normal(0.4, 0.2, 30), rng.normal(0.8, 0.2, 30)]
    gaps = [rng.uniform(0.5, 1, 30), rng.uniform(1, 1.5, 30)]
    values[0][10:] = np.nan
    parts = [(np.arange(30), v[:, None], g[:, None]) for v, g in zip(values, gaps, strict=True)]
    draws = draws_of(units("0//a", "1//b"))
    (found,) = draws.ratio(parts)
    have = [~np.isnan(v) for v in values]
    tops, bottoms = ([x[h].mean() for x, h in zip(xs, have, strict=True)] for xs in (values, gaps))
    assert found.value == pytest.approx(sum(tops) / sum(bottoms))
    assert found.n == 40
    drawn = []
    for row in range(400):
        top = bottom = 0.0
        for number, name in enumerate("ab"):
            here = have[number]
            times = draws.examples[name][row].astype(int)[here]
            weight = draws.weights[row, number]
            top += weight * np.repeat(values[number][here], times).mean()
            bottom += weight * np.repeat(gaps[number][here], times).mean()
        drawn.append(top / bottom)
    low, high = np.quantile(drawn, [0.025, 0.975])
    limits = [found.value + draws.stretch * (limit - found.value) for limit in (low, high)]
    assert (found.low, found.high) == pytest.approx(limits)


def test_a_resample_without_the_rare_examples_is_of_the_other_run():
    values = np.full(400, np.nan)
    values[:6] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.5]
    found = draws_of(units("0//a", "1//b"), 400, resamples=4000)
    (rare,) = found.ratio([part(values), part(values)])
    assert rare.value == pytest.approx(0.5)
    assert np.isfinite([rare.low, rare.high]).all()
    assert rare.low < 0.5 < rare.high


def test_limits_are_those_of_a_loop_stretched():
    rng = np.random.default_rng(3)
    parts = [part(rng.normal(s, 1, 30)) for s in (0.0, 0.2, 0.9)]
    draws = draws_of(units("0//a", "1//b", "2//c"))
    (found,) = draws.ratio(parts)
    drawn = []
    for row in range(400):
        total = 0.0
        for number, (_, values, _) in enumerate(parts):
            times = draws.examples["abc"[number]][row]
            assert times.sum() == 30
            total += draws.weights[row, number] * np.repeat(values[:, 0], times.astype(int)).mean()
        drawn.append(total)
    value = np.mean([values.mean() for _, values, _ in parts])
    low, high = np.quantile(drawn, [0.025, 0.975])
    factor = t.ppf(0.975, 2) / norm.ppf(0.975) * np.sqrt(3 / 2)
    limits = (value + factor * (low - value), value + factor * (high - value))
    assert (found.value, found.low, found.high) == pytest.approx((value, *limits))


def test_what_is_shared_is_drawn_once():
    """Two seeds on the same examples know no more of these than one: the limits are no closer."""
    values = np.random.default_rng(0).normal(size=30)
    same = draws_of(units("0//a", "1//a"), resamples=4000)
    other = draws_of(units("0//a", "1//b"), resamples=4000)
    shared, apart = (d.ratio([part(values), part(values)])[0] for d in (same, other))
    ratio = (shared.high - shared.low) / (apart.high - apart.low)
    assert ratio > 1.1  # √2 if examples alone varied; drawing one seed twice is part of both
    crossed = draws_of(units("0/1/a", "0/2/b", "1/1/a", "1/2/b"))
    # Of the resamples that have both seeds.
    both = crossed.weights[
        (crossed.weights[:, :2].sum(1) > 0) & (crossed.weights[:, 2:].sum(1) > 0)
    ]
    first, second = (half / half.sum(axis=1, keepdims=True) for half in (both[:, :2], both[:, 2:]))
    assert np.allclose(first, second)
    assert crossed.weights.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("spread", [0.0, 0.3], ids=["equal seeds", "seeds that differ"])
def test_few_seeds_cover_the_truth_as_often_as_they_say(seeds, spread):
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        parts = [part(rng.normal(0.5 + rng.normal(0, spread), 0.3, 40)) for _ in range(seeds)]
        draws = draws_of(units(*(f"{s}//{s}" for s in range(seeds))), 40, trial, 300)
        (found,) = draws.ratio(parts)
        hits += found.low <= 0.5 <= found.high
    assert hits / 200 >= 0.92


def test_p_values_of_seeds_are_students_over_the_seeds():
    """Many examples each, so that only seeds vary: scipy's test of the seeds' means."""
    rng = np.random.default_rng(0)
    means = np.array([[0.2, 0.0], [0.5, 0.3], [0.3, -0.4], [0.6, 0.2]])
    noise = rng.normal(0, 1e-4, size=(4, 500, 2))
    values = means[:, None] + noise - noise.mean(1, keepdims=True)
    parts = [(np.arange(500), one, np.ones((500, 2))) for one in values]
    draws = draws_of(units("0//a", "1//b", "2//c", "3//d"), 500, resamples=4000)
    truth = ttest_1samp(means, 0).pvalue
    assert draws.p_values(parts) == pytest.approx(truth, rel=0.1)


def test_p_values_of_one_seed_are_students_over_its_examples():
    values = np.random.default_rng(1).normal(0.3, 1, size=(40, 3))
    values[25:, 1] = np.nan
    parts = [(np.arange(40), values, np.ones_like(values))]
    found = draws_of(units("0//a"), 40, resamples=8000).p_values(parts)
    truth = [ttest_1samp(c[~np.isnan(c)], 0).pvalue for c in values.T]
    assert found == pytest.approx(truth, rel=0.5, abs=0.02)


def test_no_effect_has_p_1_and_a_constant_one_that_of_its_units():
    """Without a spread the seeds count, or the examples of a single one."""
    values = np.array([[0.0, 1.0, 1e-9]] * 30)
    part = (np.arange(30), values, np.ones_like(values))
    seven = draws_of(units(*(f"{s}//{s}" for s in range(7)))).p_values([part] * 7)
    assert seven == pytest.approx([1.0, 2 * 2**-7, 1.0])
    one = draws_of(units("0//a")).p_values([part])
    assert one == pytest.approx([1.0, 2 * 2**-30, 1.0])


@pytest.mark.parametrize("n", [2, 3])
def test_too_few_examples_of_all_seeds_have_no_interval(n):
    """Two seeds of two examples are four, two of three are six."""
    values = np.array([[0.5], [0.7], [0.6]])[:n]
    parts = [(np.arange(n), values, np.ones_like(values))] * 2
    draws = draws_of(units("0//a", "1//b"), n)
    (found,) = draws.ratio(parts)
    assert found.value == pytest.approx(values.mean())
    assert np.isnan([found.low, found.high]).all() == (n < 3)
    assert (draws.p_values(parts)[0] == 1.0) == (n < 3)


@pytest.mark.parametrize("shared", [False, True], ids=["own examples", "the same examples"])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["equal seeds", "seeds that differ"])
def test_pooled_nulls_are_seldom_called_effects(shared, spread):
    """3 seeds, 40 examples, 300 columns without an effect: p below 5 % in 5 % or fewer."""
    rng = np.random.default_rng(2)
    common = rng.normal(size=(40, 300))
    parts = []
    for _ in range(3):
        own = rng.normal(size=(40, 300))
        values = (common + own) / np.sqrt(2) if shared else own
        values = values + rng.normal(0, spread / np.sqrt(40), 300)
        parts.append((np.arange(40), values, np.ones_like(values)))
    names = ("0//a", "1//a", "2//a") if shared else ("0//a", "1//b", "2//c")
    found = draws_of(units(*names), 40, resamples=500).p_values(parts)
    assert (found < 0.05).mean() <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
