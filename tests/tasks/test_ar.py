"""Associative recall against its definition."""

import random
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle

LEAST_P = 1e-3


def context(row):
    return row["input_ids"][1 : row["roles"]["divider"]]


@pytest.mark.parametrize("name", ["ar", "ar/reverse", "ar/held_out", "ar/tiny"])
def test_document_and_roles(name):
    task = load_task(name)
    pairs = task.config.num_pairs
    for row in task.dataset("test", 300).to_list():
        ids, roles = row["input_ids"], row["roles"]
        keys, values = context(row)[::2], context(row)[1::2]
        assert len(ids) == task.max_length == 2 * pairs + 5
        assert ids == [1, *context(row), 2, ids[roles["key"]], ids[roles["value"]], 2]
        assert roles["bos"] == 0
        assert roles["divider"] == 2 * pairs + 1
        assert (roles["query"], roles["answer"]) == (2 * pairs + 2, 2 * pairs + 3)
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(key in task.kinds["key"] for key in keys)
        assert all(value in task.kinds["value"] for value in values)
        assert row["labels"] == [-100] * (len(ids) - 2) + [row["answer"], -100]
        step = -1 if task.config.reverse else 1
        assert roles["value"] == roles["key"] + step
        assert row["candidates"] == (keys if task.config.reverse else values)
        expected = oracle.recall(context(row), ids[roles["query"]], task.config.reverse)
        assert expected == {row["answer"]} == set(task.solve(ids))
        metadata = row["metadata"]
        assert metadata["answer_is_next_token"] is (not task.config.reverse)
        assert metadata["answer_is_rightmost"] == (ids[roles["divider"] - 1] == row["answer"])
        assert (metadata["distance"], metadata["num_answers"]) == (1, 1)
        assert metadata["parents"] == []


def test_the_paper_s_sizes():
    task = load_task("ar")
    assert task.max_length == 37
    assert task.vocab_size == 8196
    assert (task.symbols[3], task.symbols[4099], task.symbols[-1]) == ("k0", "v0", "<unused>")
    assert sorted(i for ids in task.kinds.values() for i in ids) == list(range(8196))
    assert task.heuristic_floor(task.dataset("test", 8)) == {"in_context_guess": 1 / 16}


def test_tiny_task_is_uniform_over_all_its_documents():
    task = load_task("ar", num_pairs=2, num_keys=3, num_values=4)
    found = Counter()
    for index in range(4):
        found.update(map(tuple, task.chunk("test", index)[0].tokens.values.reshape(-1, 9).tolist()))
    # 3·2 ordered keys, 4·3 ordered values, 2 queries.
    assert len(found) == 144
    assert chisquare(list(found.values())).pvalue > LEAST_P


def test_keys_values_and_queries_agree_with_the_obvious_generator():
    task = load_task("ar/tiny")
    rng = random.Random(0)
    theirs = [oracle.ar_document(rng, 4, 16, 16) for _ in range(4000)]
    ours = task.dataset("test", 4000)["input_ids"]
    key, value = task.kinds["key"][0], task.kinds["value"][0]
    for mine, other in (
        ([ids[1] - key for ids in ours], [d[1][1] for d in theirs]),
        ([ids[8] - value for ids in ours], [d[8][1] for d in theirs]),
        ([ids[1:9:2].index(ids[-3]) for ids in ours], [d[1:9:2].index(d[-3]) for d in theirs]),
    ):
        assert ks_2samp(mine, other, method="asymp").pvalue > LEAST_P


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_held_out_pairs_are_asked_in_test_only(reverse):
    task = load_task("ar/tiny", held_out=0.2, reverse=reverse)
    asked = {}
    for split in ("train", "dev", "test"):
        rows = task.dataset(split, 5000).to_list()
        asked[split] = {(r["input_ids"][r["roles"]["query"]], r["answer"]) for r in rows}
    assert not asked["test"] & (asked["train"] | asked["dev"])
    # 256 pairs: all but a handful appear, each on its side.
    assert asked["train"] == asked["dev"]
    assert len(asked["train"] | asked["test"]) == 256
    assert 30 < len(asked["test"]) < 75


def test_held_out_keeps_the_query_uniform_over_allowed_pairs():
    task = load_task("ar/tiny", held_out=0.5)
    examples, counts = task.chunk("train", 0)
    place = (examples.roles["key"] - 1) // 2
    assert chisquare(np.bincount(place, minlength=4)).pvalue > LEAST_P
    # A list of 4 pairs has none that is allowed with probability 1/16.
    assert counts.rejected / counts.drawn == pytest.approx(1 / 16, abs=0.03)


@pytest.mark.parametrize("num_pairs", [1, 4, 509], ids=lambda p: f"{2 * p}-tokens")
def test_list_lengths(num_pairs):
    task = load_task("ar", num_pairs=num_pairs)
    rows = task.dataset("test", 20).to_list()
    assert all(len(context(row)) == 2 * num_pairs for row in rows)
    if num_pairs == 1:  # no second pair to change places with
        assert all(row["corruptions"]["swap"] == {"input_ids": [], "answer": -1} for row in rows)


def test_as_many_pairs_as_there_can_be():
    task = load_task("ar", num_pairs=15, num_keys=16, num_values=16)
    for row in task.dataset("test", 50).to_list():
        twin = row["corruptions"]["key"]["input_ids"]
        missing = set(task.kinds["key"]) - set(context(row))
        assert {twin[row["roles"]["key"]]} == missing


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_drawn_keys_and_values_are_the_first_under_unchanged_tokens(reverse):
    few = load_task("ar/mini", num_pairs=4, drawn_keys=9, drawn_values=6, reverse=reverse)
    every = load_task("ar/mini", reverse=reverse)
    assert few.symbols == every.symbols
    names = {f"k{i}" for i in range(9)} | {f"v{i}" for i in range(6)} | {"<bos>", "<eos>"}
    seen = set()
    for row in few.dataset("test", 400).to_list():
        for tokens in (row["input_ids"], *(c["input_ids"] for c in row["corruptions"].values())):
            seen |= {few.symbols[token] for token in tokens}
    assert seen == names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_keys": 16, "drawn_keys": 17}, "drawn_keys=17: the largest allowed is 16"),
        ({"drawn_values": 1}, "drawn_values=1: the smallest allowed is 2"),
        ({"num_pairs": 4, "drawn_values": 4}, "4096 keys and 4 values leaves none"),
        ({"num_pairs": 16, "num_keys": 16}, "the largest allowed is 15"),
        ({"num_pairs": 0}, "num_pairs=0: the smallest allowed is 1"),
        ({"num_keys": 1}, "num_keys=1: the smallest allowed is 2"),
        ({"held_out": -0.1}, "a share"),
        ({"num_pair": 4}, "no setting 'num_pair': did you mean 'num_pairs'"),
        ({"num_pairs": "many"}, "num_pairs='many': an integer is needed"),
        ({"num_pairs": 4.5}, "an integer is needed"),
        ({"num_pairs": True}, "an integer is needed"),
        ({"reverse": "perhaps"}, "true or false is needed"),
    ],
    ids=lambda value: (
        "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("ar", **settings)


def test_settings_may_be_text():
    task = load_task("ar", num_pairs="4", reverse="true", held_out="0.2")
    assert (task.config.num_pairs, task.config.reverse, task.config.held_out) == (4, True, 0.2)
