"""A task's own tokens for a model: refused with the largest setting that fits, else untouched."""

import re

import pytest

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks.symbolic import symbolic_rows


def rows(name, *, vocab_size=10_000, max_positions=None, **settings):
    task = load_task(name, **settings)
    return task, symbolic_rows(task, "test", 64, vocab_size=vocab_size, max_positions=max_positions)


@pytest.mark.parametrize("name", ["ar/tiny", "atr/easy"])
def test_rows_that_fit_are_the_task_s(name):
    task, found = rows(name, vocab_size=load_task(name).vocab_size)
    assert found.to_list() == task.dataset("test", 64).to_list()


@pytest.mark.parametrize(
    ("name", "vocab_size", "settings"),
    [
        ("ar", 64, {}),
        ("ar", 65, {"num_keys": 20}),
        ("atr/large_vocab", 100, {}),
        ("atr/easy", 12, {}),
        ("induction", 50, {}),
        ("inverse_match", 64, {}),
        ("joint_recall", 100, {}),
        ("joint_recall", 100, {"num_contexts": 8}),
        ("kv_retrieval", 40, {}),
        ("mqar", 40, {}),
    ],
)
def test_too_few_tokens_name_the_largest_setting(name, vocab_size, settings):
    with pytest.raises(UserError, match=f"the model {vocab_size}: the largest that fits is") as e:
        rows(name, vocab_size=vocab_size, **settings)
    largest = {n: int(v) for n, v in re.findall(r"(num_\w+)=(\d+)", str(e.value))}
    task, found = rows(name, vocab_size=vocab_size, **{**settings, **largest})
    assert len(found) == 64
    assert task.vocab_size == vocab_size
    last = list(largest)[-1]
    with pytest.raises(UserError, match="the largest that fits"):
        rows(name, vocab_size=vocab_size, **{**settings, **largest, last: largest[last] + 1})


@pytest.mark.parametrize(
    ("name", "room"),
    [
        ("ar", 30),
        ("ar/reverse", 31),
        ("atr/easy", 12),
        ("induction", 20),
        ("inverse_match", 30),
        ("joint_recall", 30),
    ],
)
def test_too_few_positions_name_the_largest_setting(name, room):
    with pytest.raises(UserError, match=f"the model reads {room}: the largest that fits is") as e:
        rows(name, max_positions=room)
    setting, largest = re.search(r"is (\w+)=(\d+)$", str(e.value)).groups()
    _, found = rows(name, max_positions=room, **{setting: largest})
    assert max(row["roles"]["answer"] for row in found) < room
    with pytest.raises(UserError, match="the largest that fits"):
        rows(name, max_positions=room, **{setting: int(largest) + 1})


def test_what_follows_the_answer_needs_no_position():
    """BOS, 4 pairs, divider, query and answer: 12 tokens are read of 13."""
    _, found = rows("ar/tiny", max_positions=12)
    assert {len(ids) for ids in found["input_ids"]} == {13}
    with pytest.raises(UserError, match="has 12 tokens, the model reads 11"):
        rows("ar/tiny", max_positions=11)


def test_far_too_small_a_model_is_said_so():
    with pytest.raises(UserError, match="smaller vocabulary"):
        rows("ar", vocab_size=8)
    with pytest.raises(UserError, match="choose another model"):
        rows("ar", max_positions=4)
