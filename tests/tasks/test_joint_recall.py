"""Joint recall against its definition."""

import numpy as np
import pytest
from scipy.stats import chisquare

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle_lists

LEAST_P = 1e-3


@pytest.mark.parametrize("name", ["joint_recall", "joint_recall/tiny"])
def test_document_and_roles(name):
    task = load_task(name)
    blocks, pairs = task.config.num_blocks, task.config.num_pairs
    for row in task.dataset("test", 200).to_list():
        ids, roles = row["input_ids"], row["roles"]
        end = roles["divider"]
        listed = [ids[i : i + 2 * pairs + 1] for i in range(1, end, 2 * pairs + 1)]
        assert len(listed) == blocks
        keys = [sorted(block[1::2]) for block in listed]
        assert all(k == keys[0] and len(set(k)) == pairs for k in keys)
        values = [v for block in listed for v in block[2::2]]
        assert len(set(values)) == blocks * pairs
        contexts = [block[0] for block in listed]
        assert len(set(contexts)) == blocks
        for kind, tokens in (("context", contexts), ("key", keys[0]), ("value", values)):
            assert all(token in task.kinds[kind] for token in tokens)
        context, query = ids[end + 1], ids[end + 2]
        assert ids[end:] == [2, context, query, row["answer"], 2]
        assert (roles["query"], roles["answer"]) == (end + 2, end + 3)
        assert roles["value"] == roles["key"] + 1
        found = oracle_lists.in_block(
            ids[1:end], task.kinds["context"].__contains__, context, query
        )
        assert {row["answer"]} == found == set(task.solve(ids))
        assert ids[roles["key"]] == query
        assert row["candidates"] == values
        last = max(i for i in range(1, end) if ids[i] == query)
        assert row["metadata"]["answer_is_next_token"] == (last == roles["key"])
        # By the key alone there is one value for each context.
        alone = {ids[i + 1] for i in range(1, end) if ids[i] == query}
        assert 1 / len(alone) == task.heuristic_floor(None)["ignores_context"]


def test_what_is_asked_is_uniform_and_so_is_the_order_of_the_keys():
    task = load_task("joint_recall/tiny")
    examples, counts = task.chunk("test", 0)
    assert (counts.rejected, counts.dropped) == (0, 0)
    assert chisquare(np.bincount(examples.roles["key"])[[2, 4, 7, 9]]).pvalue > LEAST_P
    documents = examples.tokens.values.reshape(len(examples), -1)
    same_order = (documents[:, 2] == documents[:, 7]).mean()
    assert same_order == pytest.approx(1 / 2, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 1}, "num_blocks=1: the smallest allowed is 2"),
        ({"num_contexts": 3}, "num_contexts=3: the smallest allowed is 4"),
        ({"num_values": 16}, "the smallest allowed is num_values=17"),
        ({"num_keys": 4}, "the smallest allowed is num_keys=5"),
    ],
    ids=["one context", "few contexts", "few values", "few keys"],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("joint_recall", **settings)
