"""Batches: equal lengths, the answer kept, every example once, positions looked up row by row."""

import numpy as np
import pytest
from datasets import Dataset

import patchbench as pb
from patchbench.engines.base import Counters, make_batches
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site


@pytest.fixture(scope="module")
def trees():
    return pb.load_task("atr/easy").dataset("test", 64)


def row(**changes) -> dict:
    base = {
        "input_ids": [0, 11, 21, 1, 11, 21, 1],
        "roles": {"bos": 0, "key": 1, "value": 2, "divider": 3, "query": 4, "answer": 5},
        "answer": 21,
        "candidates": [21, 22],
        "corruptions": {
            "key": {"input_ids": [0, 12, 21, 1, 11, 21, 1], "answer": -1},
            "swap": {"input_ids": [0, 11, 22, 1, 11, 21, 1], "answer": 22},
        },
        "metadata": {
            "distance": 1,
            "depth": 0,
            "answer_is_next_token": True,
            "answer_is_rightmost": True,
        },
    }
    return base | changes


def test_every_example_is_in_one_batch_of_equal_lengths(trees):
    batches = make_batches(trees, 8, ["key", "swap"])
    assert sorted(i for batch in batches for i in batch.index) == list(range(64))
    assert max(map(len, batches)) == 8
    assert len({batch.length for batch in batches}) > 3
    for batch in batches:
        for number, index in enumerate(batch.index):
            source = trees[int(index)]
            end = source["roles"]["answer"]
            assert batch.clean[number].tolist() == source["input_ids"][: end + 1]
            assert batch.clean[number, -1] == batch.answer[number] == source["answer"]
            assert batch.read_out[number] == end - 1
            corrupted = source["corruptions"]["key"]["input_ids"]
            assert batch.tokens("key")[number].tolist() == corrupted[: end + 1]
            assert [i for i in batch.candidates[number] if i >= 0] == source["candidates"]
            assert {role: batch.positions[role][number] for role in source["roles"]} == source[
                "roles"
            ]
            meta = source["metadata"]
            shortcut = meta["answer_is_next_token"] or meta["answer_is_rightmost"]
            assert batch.heuristic[number] == shortcut
            assert batch.distance[number] == meta["distance"]


def test_batches_are_the_same_every_time(trees):
    first, second = (make_batches(trees, 8, ["key"]) for _ in range(2))
    assert [b.index.tolist() for b in first] == [b.index.tolist() for b in second]


def test_a_list_has_no_heuristics_and_one_length():
    dataset = pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8).dataset("test", 10)
    batches = make_batches(dataset, 4, ["key", "value", "swap"])
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert not any(batch.heuristic.any() for batch in batches)
    assert all((batch.counterfactual["swap"] >= 0).all() for batch in batches)


def test_a_corruption_that_could_not_be_built_is_marked_and_stands_in_clean():
    lacking = row(corruptions=row()["corruptions"] | {"swap": {"input_ids": [], "answer": -1}})
    (batch,) = make_batches(Dataset.from_list([row(), lacking]), 8, ["key", "swap"])
    assert batch.available["swap"].tolist() == [True, False]
    assert batch.corrupted["swap"][1].tolist() == batch.clean[1].tolist()
    swap = Intervention(sites=(Site.parse("L0.q@key"),), corruption="swap")
    assert batch.usable(swap).tolist() == [True, False]


def test_unequal_lengths_are_refused_and_shown():
    bad = row(corruptions={"key": {"input_ids": [0, 12, 1, 11], "answer": -1}})
    with pytest.raises(pb.UserError, match=r"example 1: .* 4 tokens, .* 7 .*12, 1, 11"):
        make_batches([row(), bad], 8, ["key"])


def test_unknown_corruption_and_batch_size():
    with pytest.raises(pb.UserError, match="key"):
        make_batches([row()], 8, ["keys"])
    with pytest.raises(pb.UserError, match="batch_size=0"):
        make_batches([row()], 0, ["key"])


@pytest.mark.parametrize(
    ("position", "where"),
    [
        ("value", [2, 2]),
        ("value-1", [1, 1]),
        ("answer", [5, 5]),
        ("answer+1", [-1, -1]),
        ("bos-1", [-1, -1]),
        ("key-2", [-1, -1]),
        ("divider", [3, -1]),
        ("divider+1", [4, -1]),
    ],
)
def test_positions_never_wrap_around(position, where):
    """A role that an example lacks (−1) has no neighbours either."""
    lacking = row(roles=row()["roles"] | {"divider": -1})
    (batch,) = make_batches([row(), lacking], 8, ["key"])
    assert batch.locate(Position.parse(position)).tolist() == where


def test_unknown_role_is_named():
    (batch,) = make_batches([row()], 8, ["key"])
    with pytest.raises(pb.UserError, match="'value'"):
        batch.locate(Position("vlaue"))


def test_select_takes_everything_along(trees):
    batch = make_batches(trees, 8, ["key"])[0]
    part = batch.select(slice(1, 3))
    assert len(part) == 2
    assert part.length == batch.length
    np.testing.assert_array_equal(part.positions["key"], batch.positions["key"][1:3])
    np.testing.assert_array_equal(part.tokens("key"), batch.tokens("key")[1:3])
    np.testing.assert_array_equal(part.heuristic, batch.heuristic[1:3])


def test_counters_add_up():
    counters = Counters()
    made = Intervention(sites=(Site.parse("L0.q@key"),), corruption="swap")
    for count in (2, 0, 3):
        counters.skip(made, count)
    assert counters.skipped == {"L0.q@key (swap)": 5}
