"""Shots: from the train split, the row's own for ever, and giving nothing away."""

import pytest

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks.reading import read_examples
from patchbench.tasks.shots import POOL_ROWS, choose_shots


def choose(task, rows, count, *, seed=0, pairs=True):
    pool = read_examples(task.dataset("train", POOL_ROWS))
    return choose_shots(pool, read_examples(rows), count, seed=seed, pairs=pairs)


@pytest.mark.parametrize(
    ("name", "pairs"), [("ar/tiny", True), ("ar/reverse", True), ("atr/easy", False)]
)
@pytest.mark.parametrize("split", ["test", "train"])
def test_no_shot_gives_the_answer_away(name, pairs, split):
    task = load_task(name)
    rows = task.dataset(split, 200)
    chosen = choose(task, rows, 3, pairs=pairs)
    assert chosen.shape == (200, 3)
    train = task.dataset("train", POOL_ROWS).to_list()
    for row, shots in zip(rows.to_list(), chosen.tolist(), strict=True):
        asked = row["input_ids"][row["roles"]["query"]]
        assert len(set(shots)) == 3
        for shot in (train[i] for i in shots):
            assert shot["input_ids"] != row["input_ids"]
            assert shot["input_ids"][shot["roles"]["query"]] != asked
            if pairs:
                assert asked not in shot["input_ids"]
            for twin in row["corruptions"].values():
                assert shot["input_ids"] != twin["input_ids"]


def test_every_document_of_the_pool_is_as_likely():
    task = load_task("ar")
    chosen = choose(task, task.dataset("test", 1024), 8)
    # 8,192 draws from 1,024 documents: 8 each, with a standard deviation of 2.8.
    counts = [int((chosen == document).sum()) for document in range(POOL_ROWS)]
    assert max(counts) < 8 + 6 * 2.8
    assert sum(count == 0 for count in counts) < 6


def test_a_row_keeps_its_shots_and_another_row_or_seed_has_others():
    task = load_task("ar/tiny")
    many = choose(task, task.dataset("test", 100), 3)
    assert (many[:10] == choose(task, task.dataset("test", 10), 3)).all()
    assert (many[:, :2] == choose(task, task.dataset("test", 100), 2)).all()
    assert len({tuple(row) for row in many.tolist()}) > 95
    assert (many != choose(task, task.dataset("test", 100), 3, seed=1)).mean() > 0.9


def test_too_many_shots_name_the_largest_number():
    # 5 keys, 4 of them in every document: one train document in five is without the query.
    task = load_task("ar", num_pairs=4, num_keys=5, num_values=5)
    rows = task.dataset("test", 50)
    with pytest.raises(UserError, match="the largest that fits is shots=") as caught:
        choose(task, rows, 500)
    largest = int(str(caught.value).rpartition("=")[2])
    assert 150 < largest < 250
    assert choose(task, rows, largest).shape == (50, largest)
    with pytest.raises(UserError, match=f"shots={largest}$"):
        choose(task, rows, largest + 1)
