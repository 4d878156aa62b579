"""Batches: nothing lost, nothing padded, the same whatever was read before."""

from collections import Counter

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench.training import data


@pytest.fixture(scope="module")
def task():
    return pb.load_task("atr/easy")


def documents(task, split, n):
    """What must be learned, read row by row from the dataset."""
    return [
        (tuple(row["input_ids"][: row["roles"]["answer"]]), row["answer"])
        for row in task.dataset(split, n)
    ]


def seen(batch):
    pairs = zip(batch["input_ids"].tolist(), batch["answer"].tolist(), strict=True)
    return [(tuple(ids), answer) for ids, answer in pairs]


def test_every_row_comes_once_per_epoch_and_waits_for_its_length(task):
    rows = data.dataset_rows(task, "train", 300)
    batches = data.Batches(data.fixed(rows, seed=3), batch_size=8, count=300 * 4 // 8)
    read = Counter(row for index in range(len(batches)) for row in seen(batches[index]))
    expected = Counter(documents(task, "train", 300))
    assert set(read) <= set(expected)
    # Four epochs; of each length at most 7 rows were waiting at the end, some for long.
    late = sum(4 * expected[row] - read[row] for row in expected if read[row] < 4 * expected[row])
    assert late <= 7 * len(set(rows.lengths))
    assert all(len(seen(batches[index])) == 8 for index in range(0, len(batches), 10))


def test_epochs_differ_in_order_and_not_in_rows():
    task = pb.load_task("ar/tiny")
    rows = data.dataset_rows(task, "train", 64)
    batches = data.Batches(data.fixed(rows, seed=0), batch_size=16, count=8)
    read = [row for index in range(8) for row in seen(batches[index])]
    first, second = read[:64], read[64:]
    assert sorted(first) == sorted(second) == sorted(documents(task, "train", 64))
    assert first != second
    other = data.Batches(data.fixed(rows, seed=1), batch_size=16, count=8)
    assert seen(other[0]) != first[:16]


def test_fresh_rows_are_the_rows_of_train_and_never_repeat():
    task = pb.load_task("ar", num_pairs=3)
    batches = data.Batches(data.fresh(task), batch_size=100, count=90)
    read = [row for index in range(90) for row in seen(batches[index])]
    assert read == documents(task, "train", 9000)  # past the first chunk of 8192
    assert len(set(read)) == len(read)


@pytest.mark.parametrize("kind", ["fixed", "fresh"])
def test_a_batch_does_not_depend_on_what_was_read_before(task, kind):
    def make():
        rows = data.dataset_rows(task, "train", 200)
        source = data.fixed(rows, 0) if kind == "fixed" else data.fresh(task)
        return data.Batches(source, batch_size=4, count=400)

    straight = make()
    for index in range(300):
        straight[index]
    expected = straight[300]
    jumped = make()
    assert torch.equal(jumped[300]["input_ids"], expected["input_ids"])
    jumped[350]
    assert torch.equal(jumped[300]["input_ids"], expected["input_ids"])


def test_processes_share_a_batch():
    rows = data.dataset_rows(pb.load_task("ar/tiny"), "train", 64)
    whole = data.Batches(data.fixed(rows, 0), batch_size=8, count=4)
    parts = [
        data.Batches(data.fixed(rows, 0), batch_size=8, count=4, share=(rank, 2))
        for rank in range(2)
    ]
    assert sorted(seen(parts[0][2]) + seen(parts[1][2])) == sorted(seen(whole[2]))


def test_held_out_rows_are_all_there(task):
    read = [row for batch in data.held_out(task, "dev", 100) for row in seen(batch)]
    assert sorted(read) == sorted(documents(task, "dev", 100))


def test_rows_join_without_their_neighbours():
    def rows(tokens):
        return data.Rows(np.array(tokens), np.array([1, 3]), np.array([2, 1]), np.array([7, 8]))

    joined = rows([0, 1, 2, 3]).followed_by(rows([9, 4, 5, 6]))
    read = [
        joined.tokens[s : s + n].tolist()
        for s, n in zip(joined.starts, joined.lengths, strict=True)
    ]
    assert read == [[1, 2], [3], [4, 5], [6]]
    assert joined.answers.tolist() == [7, 8, 7, 8]
    assert 0 not in joined.tokens


def test_stages_follow_one_another_from_any_step_on():
    parts = [
        data.Batches(
            data.fresh(pb.load_task("ar/tiny", num_pairs=pairs)), batch_size=4, count=count
        )
        for pairs, count in ((2, 3), (3, 2), (4, 4))
    ]
    stages = data.Stages(parts)
    assert len(stages) == 9
    # BOS, the pairs, EOS, the query.
    lengths = [stages[step]["input_ids"].shape[1] for step in range(9)]
    assert lengths == [7, 7, 7, 9, 9, 11, 11, 11, 11]
    assert torch.equal(stages[5]["input_ids"], parts[2][0]["input_ids"])
    with pytest.raises(IndexError):
        stages[9]
