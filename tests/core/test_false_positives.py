"""What is said where there is nothing: of noise, of untrained models, of shuffled sources."""

import numpy as np
import pytest

from tests.benchmarks.bench_false_positives import (
    ARCHITECTURES,
    BUILT,
    discoveries,
    shuffled,
    simulated,
    untrained,
)


@pytest.mark.parametrize("kind", [1, 0], ids=["symmetric noise", "skewed noise"])
def test_noise_is_seldom_an_effect_and_never_a_mechanism(kind):
    """40 runs of 16 sites, 5 % of which may have a false discovery: 7 or more come in 0.3 %."""
    results = [simulated(2 * seed + kind) for seed in range(40)]
    assert all(run["reasons"] == [] for r in results for run in r.summary["runs"])
    assert sum(discoveries(result) > 0 for result in results) <= 6
    assert not any(result.verdict.is_mechanism for result in results)
    # What varies is the noise.
    assert len({result.summary["runs"][0]["effects"][0]["p_value"] for result in results}) > 10


def test_with_an_effect_the_same_rows_are_found():
    """The simulation can tell: a shift by half of the gap is found at every site."""
    result = simulated(1)
    shift = result.rows["p_patched"].to_numpy() + 0.4
    index = result.rows.schema.get_field_index("p_patched")
    rows = result.rows.set_column(index, result.rows.schema.field(index), [shift])
    shifted = type(result).from_rows(rows, config=result.config, provenance=result.provenance)
    assert discoveries(shifted) == len(np.unique(rows["site"].to_pylist()))


@pytest.mark.parametrize("seed", range(len(ARCHITECTURES)), ids=ARCHITECTURES)
def test_an_untrained_model_has_no_mechanism(seed):
    result = untrained(seed)
    assert not result.verdict.is_mechanism
    assert result.summary["runs"][0]["effects"] == []


@pytest.mark.parametrize("seed", range(len(BUILT)), ids=BUILT)
def test_activations_of_other_examples_show_no_mechanism(seed):
    result = shuffled(seed)
    assert result.accuracy.value == 1.0
    assert result.summary["runs"][0]["effects"]
    assert not result.verdict.is_mechanism
