"""Induction against its definition."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle_lists

LEAST_P = 1e-3


@pytest.mark.parametrize("name", ["induction", "induction/tiny"])
def test_the_sequence_begins_to_repeat(name):
    task = load_task(name)
    length = task.config.length
    for row in task.dataset("test", 300).to_list():
        ids, roles = row["input_ids"], row["roles"]
        sequence = ids[1 : length + 1]
        start = roles["key"] - 1
        assert ids == [1, *sequence, 2, *sequence[start:], 2]
        assert len(set(sequence)) == length
        assert all(token in task.kinds["token"] for token in sequence)
        assert roles == {
            "bos": 0,
            "key": start + 1,
            "value": start + 2,
            "divider": length + 1,
            "query": length + 2,
            "answer": length + 3,
        }
        assert {row["answer"]} == oracle_lists.followers(sequence, ids[roles["query"]])
        assert task.solve(ids) == (row["answer"],)
        assert row["candidates"] == sequence[1:]
        # All of the repetition but its first token can be known.
        assert row["labels"] == [-100] * (length + 3) + [*sequence[start + 1 :], -100]
        metadata = row["metadata"]
        assert (metadata["distance"], metadata["answer_is_next_token"]) == (1, True)
        assert metadata["answer_is_rightmost"] == (sequence[-1] == row["answer"])


def test_tiny_sequences_and_starts_are_uniform():
    task = load_task("induction", length=3, num_tokens=4)
    found = Counter()
    for index in range(4):
        examples, _ = task.chunk("test", index)
        for i in range(0, len(examples), 4):
            row = examples.tokens.row(i)
            found[tuple(row[1:4]), int(examples.roles["key"][i])] += 1
    assert len(found) == 4 * 3 * 2 * 2  # sequences, and the two places with a follower
    assert chisquare(list(found.values())).pvalue > LEAST_P


def test_floor_is_the_share_of_a_guess():
    task = load_task("induction/tiny")
    rows = task.dataset("test", 1000)
    rng = np.random.default_rng(0)
    right = [rng.choice(row["candidates"]) == row["answer"] for row in rows]
    assert np.mean(right) == pytest.approx(task.heuristic_floor(rows)["in_context_guess"], abs=0.04)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "length=1: the smallest allowed is 2"),
        ({"length": 8, "num_tokens": 8}, "the smallest allowed is num_tokens=9"),
    ],
    ids=["too short", "nothing absent"],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("induction", **settings)
