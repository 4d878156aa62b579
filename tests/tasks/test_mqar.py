"""Multi-query associative recall against its definition."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle, oracle_lists

LEAST_P = 1e-3


@pytest.mark.parametrize(
    ("name", "asked"),
    [("mqar", "any"), ("mqar", "last"), ("mqar/tiny", "any"), ("mqar/512", "any")],
)
def test_document_roles_and_labels(name, asked):
    task = load_task(name, asked=asked)
    pairs = task.config.num_pairs
    for row in task.dataset("test", 100).to_list():
        ids, roles = row["input_ids"], row["roles"]
        end = roles["divider"]
        keys, values = ids[1:end:2], ids[2:end:2]
        assert (end, len(set(keys)), len(set(values))) == (2 * pairs + 1, pairs, pairs)
        assert ids[0] == 1
        assert ids[end] == 2
        assert ids[roles["answer"] :] == [row["answer"], 2]
        assert roles["query"] == roles["answer"] - 1
        assert len(ids) <= task.max_length == task.config.length + 3
        # A key of the list stands at every query, its value is the label of the token after.
        queries = [i for i in range(end + 1, len(ids)) if ids[i] in keys]
        labelled = {i: label for i, label in enumerate(row["labels"]) if label != -100}
        assert labelled == {i + 1: values[keys.index(ids[i])] for i in queries}
        assert len({ids[i] for i in queries}) == len(queries)
        assert all((i - end) % 2 == 1 for i in queries)
        assert queries[-1] == roles["query"]
        if asked == "last":
            assert len(queries) == pairs
        # Neither a key nor a value of the list is a filler.
        fillers = set(ids[end + 1 :]) - {ids[i] for i in queries} - {row["answer"], 2}
        assert not fillers & {*keys, *values}
        assert fillers <= {*task.kinds["key"], *task.kinds["value"]}
        assert row["answer"] not in ids[end + 1 : -2]
        assert {row["answer"]} == oracle.recall(ids[1:end], ids[roles["query"]])
        assert task.solve(ids) == (row["answer"],)
        assert row["candidates"] == values


def test_gaps_follow_the_power_law_drawn_without_replacement():
    task = load_task("mqar", length=16, num_pairs=3, asked="last", power=0.4)
    expected = oracle_lists.gap_probabilities(places=5, pairs=3, power=0.4)
    examples, _ = task.chunk("test", 0)
    found = Counter()
    for i in range(len(examples)):
        ids = examples.tokens.row(i).tolist()
        found[tuple((ids.index(key, 8) - 8) // 2 for key in ids[1:7:2])] += 1
    assert set(found) <= set(expected)
    observed = [found[gaps] for gaps in expected]
    wanted = np.array([p * len(examples) for p in expected.values()])
    assert chisquare(observed, wanted).pvalue > LEAST_P


def test_the_asked_query_is_uniform_over_the_pairs():
    examples, counts = load_task("mqar").chunk("test", 0)
    assert (counts.rejected, counts.dropped) == (0, 0)
    assert chisquare(np.bincount((examples.roles["key"] - 1) // 2)).pvalue > LEAST_P


def test_fillers_are_uniform_over_what_the_list_lacks():
    task = load_task("mqar", length=64, num_pairs=1, num_keys=3, num_values=4, asked="last")
    found = Counter()
    examples, _ = task.chunk("test", 0)
    for i in range(len(examples)):
        ids = examples.tokens.row(i)
        found.update((ids[1] - 3, ids[2] - 6, token) for token in ids[4:-3].tolist())
    assert len(found) == 12 * 5
    for key, value in {(k, v) for k, v, _ in found}:
        counts = [n for (k, v, _), n in found.items() if (k, v) == (key, value)]
        assert chisquare(counts).pvalue > LEAST_P / 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 15}, "length=15: the smallest allowed is 16"),
        ({"length": 65}, "length=65: an even number is needed"),
        ({"num_keys": 4}, "the smallest allowed is num_keys=5"),
        ({"power": 0}, "power=0.0: a number from 0.01 to 10"),
        ({"asked": "first"}, "known: any, last|did you mean"),
    ],
    ids=["no place", "odd", "few keys", "no power", "unknown"],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("mqar", **settings)
