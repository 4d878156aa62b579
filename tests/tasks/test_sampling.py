"""Draws against exact enumeration and closed forms."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from patchbench.tasks.sampling import Categoricals, draw_absent, draw_distinct, generator, pick

# Seeds are fixed: a p-value below this means a wrong distribution, not bad luck.
LEAST_P = 1e-3


@pytest.mark.parametrize("size", [3, 5, 7], ids=lambda size: f"size{size}")
def test_distinct_rows_are_uniform_over_all_ordered_choices(size):
    rows = draw_distinct(generator(0, size), rows=40_000, count=2, size=size)
    outcomes = list(itertools.permutations(range(size), 2))
    found = Counter(map(tuple, rows.tolist()))
    assert set(found) == set(outcomes)
    assert chisquare([found[outcome] for outcome in outcomes]).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("count", "size"), [(1, 1), (1, 2), (16, 16), (16, 33), (16, 4096), (300, 601)]
)
def test_distinct_rows_are_distinct_and_in_range(count, size):
    rows = draw_distinct(generator(1, count), rows=200, count=count, size=size)
    assert rows.shape == (200, count)
    assert all(len(set(row)) == count for row in rows.tolist())
    assert rows.min() >= 0
    assert rows.max() < size


def test_absent_values_are_uniform_over_what_is_absent():
    contexts = [[], [0], [4], [0, 1, 2], [1, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]] * 5000
    present = np.array([value for context in contexts for value in context])
    counts = np.array([len(context) for context in contexts])
    drawn = draw_absent(generator(2), present, counts, 5)
    for index, context in enumerate(contexts[:7]):
        mine = drawn[index::7]
        absent = [value for value in range(5) if value not in context]
        if not absent:
            assert (mine == -1).all()
            continue
        assert set(mine) == set(absent)
        counted = [(mine == value).sum() for value in absent]
        assert len(absent) == 1 or chisquare(counted).pvalue > LEAST_P


def test_pick_stays_in_its_group_and_is_uniform():
    counts = np.array([1, 3, 2] * 10_000)
    index = pick(generator(3), counts)
    within = index - (np.cumsum(counts) - counts)
    assert ((within >= 0) & (within < counts)).all()
    assert chisquare(np.bincount(within[1::3])).pvalue > LEAST_P
    assert chisquare(np.bincount(within[2::3])).pvalue > LEAST_P


def test_flat_dirichlet_has_its_mean_and_variance():
    sizes = np.full(20_000, 4)
    table = Categoricals.flat_dirichlet(generator(4), sizes)
    p = np.array([table.probabilities(i) for i in range(len(sizes))])
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(p.mean(axis=0), 1 / 4, atol=0.005)
    # Var of a coordinate of Dirichlet(1, …, 1) over k: (k − 1) / (k² (k + 1)).
    np.testing.assert_allclose(p.var(axis=0), 3 / (16 * 5), atol=0.001)


def test_categoricals_draw_their_own_probabilities():
    sizes = np.array([1, 3, 2, 6])
    table = Categoricals.flat_dirichlet(generator(5), sizes)
    which = np.tile(np.arange(4), 20_000)
    drawn = table.draw(generator(6), which)
    firsts = [0, 1, 4, 6]
    for index, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
        mine = drawn[which == index] - first
        found = np.bincount(mine, minlength=size)
        assert len(found) == size
        expected = table.probabilities(index) * len(mine)
        assert size == 1 or chisquare(found, expected).pvalue > LEAST_P


def test_streams_of_one_seed_differ():
    streams = [(0,), (1,), (2, 0), (2, 1), (3, 0)]
    first = {stream: generator(0, *stream).integers(1 << 62) for stream in streams}
    assert len(set(first.values())) == len(streams)
    assert generator(0, 2, 1).integers(1 << 62) == first[2, 1]
    assert generator(1, 2, 1).integers(1 << 62) != first[2, 1]
