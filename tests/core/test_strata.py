"""Parts of the examples: which they are, and what is counted on them."""

import numpy as np
import pyarrow as pa
import pytest

from patchbench.strata import BEYOND, accuracies, distance_bins, span, strata


def examples(heuristic: list[bool], distance: list[int], correct: list[bool] | None = None):
    n = len(heuristic)
    right = correct or [True] * n
    return pa.table(
        {
            "example": [10 * i for i in range(n)],
            "heuristic": heuristic,
            "distance": distance,
            "correct": right,
            "correct_in_context": [True] * n,
        }
    )


def test_bins_double():
    distance = np.array([0, 1, 2, 3, 4, 7, 8, 15, 16, 1023, 1024])
    assert distance_bins(distance).tolist() == [1, 1, 2, 2, 4, 4, 8, 8, 16, 512, 1024]
    assert [span(start) for start in (1, 2, 16)] == ["1", "2–3", "16–31"]


def test_strata_are_what_no_heuristic_solves_and_each_distance():
    table = examples([True, False, True, False], [1, 1, 3, 6])
    found = {stratum.name: stratum.examples.tolist() for stratum in strata(table)}
    assert found == {
        BEYOND: [10, 30],
        "distance 1": [0, 10],
        "distance 2–3": [20],
        "distance 4–7": [30],
    }
    part = strata(table)[0].rows(pa.table({"example": [0, 10, 10, 30], "x": [1, 2, 3, 4]}))
    assert part["x"].to_pylist() == [2, 3, 4]


@pytest.mark.parametrize("heuristic", [True, False])
def test_what_is_all_of_them_or_none_is_no_stratum(heuristic):
    assert strata(examples([heuristic] * 3, [2, 3, 2])) == []


def test_accuracies_are_shares_of_their_own_stratum():
    table = examples([True, False, False, False], [1, 1, 2, 2], [True, True, False, False])
    found = {item["stratum"]: (item["n"], item["accuracy"]["value"]) for item in accuracies(table)}
    assert found == {
        BEYOND: (3, pytest.approx(1 / 3)),
        "distance 1": (2, 1.0),
        "distance 2–3": (2, 0.0),
    }
    assert {item["accuracy_in_context"]["value"] for item in accuracies(table)} == {1.0}
