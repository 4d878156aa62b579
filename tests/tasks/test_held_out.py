"""The set of held-out pairs."""

import numpy as np
import pytest

from patchbench.tasks.held_out import HeldOutPairs

GRID = np.meshgrid(np.arange(500), np.arange(500), indexing="ij")


def test_share_is_met_in_every_row_and_column():
    prohibited = HeldOutPairs(seed=0, share=0.2).prohibited(*GRID)
    # 250,000 pairs: standard error 0.0008; 500 in a row: 0.018.
    assert prohibited.mean() == pytest.approx(0.2, abs=0.004)
    np.testing.assert_allclose(prohibited.mean(axis=0), 0.2, atol=0.08)
    np.testing.assert_allclose(prohibited.mean(axis=1), 0.2, atol=0.08)


def test_pairs_are_ordered_and_independent():
    prohibited = HeldOutPairs(seed=0, share=0.2).prohibited(*GRID)
    both = (prohibited & prohibited.T)[np.triu_indices(500, 1)].mean()
    assert both == pytest.approx(0.04, abs=0.004)
    assert (prohibited[1:] & prohibited[:-1]).mean() == pytest.approx(0.04, abs=0.004)


def test_seeds_hold_out_other_pairs():
    first, second = (HeldOutPairs(seed=seed, share=0.2).prohibited(*GRID) for seed in (0, 1))
    assert (first & second).mean() == pytest.approx(0.04, abs=0.004)


def test_test_asks_what_train_and_dev_do_not():
    pairs = HeldOutPairs(seed=0, share=0.2)
    train, dev, test = (pairs.eligible(split, *GRID) for split in ("train", "dev", "test"))
    np.testing.assert_array_equal(train, ~test)
    np.testing.assert_array_equal(train, dev)


def test_nothing_held_out_allows_everything():
    pairs = HeldOutPairs(seed=0, share=0.0)
    assert all(pairs.eligible(split, *GRID).all() for split in ("train", "dev", "test"))
