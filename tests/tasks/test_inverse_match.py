"""Inverse matching against its definition."""

import numpy as np
import pytest
from scipy.stats import chisquare

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle_lists

LEAST_P = 1e-3


@pytest.mark.parametrize("name", ["inverse_match", "inverse_match/forward", "inverse_match/tiny"])
def test_document_and_roles(name):
    task = load_task(name)
    length, entries = task.config.length, 2 * task.config.num_sequences
    for row in task.dataset("test", 200).to_list():
        ids, roles = row["input_ids"], row["roles"]
        end = roles["divider"]
        listed = [ids[i : i + length + 1] for i in range(1, end, length + 1)]
        sequences = [tuple(entry[:-1]) for entry in listed]
        assert len(sequences) == len(set(sequences)) == entries
        assert {s[::-1] for s in sequences} == set(sequences)
        tokens = {token for s in sequences for token in s}
        assert len(tokens) == entries * length // 2
        assert tokens <= set(task.kinds["token"])
        assert len({entry[-1] for entry in listed} & set(task.kinds["value"])) == entries

        query = ids[end + 1 : end + 1 + length]
        assert ids == [1, *ids[1:end], 2, *query, row["answer"], 2]
        assert (roles["query"], roles["answer"]) == (end + length, end + length + 1)
        wanted = query if task.config.forward else query[::-1]
        found = oracle_lists.after_sequence(ids[1:end], wanted)
        assert {row["answer"]} == found == set(task.solve(ids))
        assert roles["value"] - roles["key"] == (1 if task.config.forward else length)
        assert row["metadata"]["distance"] == roles["value"] - roles["key"]
        # Without the order two entries fit.
        fitting = sum(set(s) == set(query) for s in sequences)
        assert 1 / fitting == task.heuristic_floor(None)["ignores_order"]


def test_the_two_ways_of_asking_share_their_lists():
    inverse, forward = load_task("inverse_match"), load_task("inverse_match/forward")
    for a, b in zip(inverse.dataset("test", 50), forward.dataset("test", 50), strict=True):
        end = a["roles"]["divider"]
        assert a["input_ids"][: end + 1] == b["input_ids"][: end + 1]
        assert a["input_ids"][end + 1 : -2] == b["input_ids"][end + 1 : -2][::-1]
        assert a["answer"] == b["answer"]


def test_the_asked_entry_and_the_order_of_a_pair_are_uniform():
    task = load_task("inverse_match/tiny")
    examples, _ = task.chunk("test", 0)
    assert chisquare(np.bincount(examples.roles["key"])[[1, 4, 7, 10]]).pvalue > LEAST_P
    documents = examples.tokens.values.reshape(len(examples), -1)
    reversal = (documents[:, 4:6] == documents[:, 2:0:-1]).all(axis=1)
    assert reversal.mean() == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "length=1: the smallest allowed is 2"),
        ({"num_sequences": 0}, "num_sequences=0"),
        ({"num_tokens": 16}, "the smallest allowed is num_tokens=17"),
        ({"num_values": 8}, "the smallest allowed is num_values=9"),
    ],
    ids=["one token", "none", "few tokens", "few values"],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("inverse_match", **settings)
