"""Training data as ready tensors: batch number i is a pure function of the seeds.

Documents are cut before the answer, so that the prediction to learn is always the last one, and a
batch holds documents of one length, so that there is no padding. Rows wait until enough of their
length have come, across epochs too: none is dropped, and none is in a small batch.

Use:

    rows = dataset_rows(task, "train", 100_032)
    batches = Batches(fixed(rows, seed=0), batch_size=32, count=2000)
    batches[0]                          # {"input_ids": (32, t), "answer": (32,)}
    dev = held_out(task, "dev", 512)    # a list of such batches

A `Renderer` in place of the task gives its documents in the words of a pretrained model.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

if TYPE_CHECKING:
    import pyarrow as pa

    from patchbench.tasks import Task
    from patchbench.tasks.rendering import Renderer

EVALUATION_BATCH = 256
TensorBatch = dict[str, Tensor]


@dataclass(frozen=True)
class Rows:
    """Documents up to their answer.

    Attributes:
        tokens: flat storage, which may hold more than these rows.
        starts: (rows,) where each document starts in it.
        lengths: (rows,) tokens before the answer.
        answers: (rows,) token ids.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    answers: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, index: np.ndarray) -> "Rows":
        """Return some rows; the storage is shared."""
        return Rows(self.tokens, self.starts[index], self.lengths[index], self.answers[index])

    def followed_by(self, other: "Rows") -> "Rows":
        """Return these rows, then `other`; of these only what is needed is kept in storage."""
        tokens, starts, shift = self.tokens, self.starts, 0
        if other.tokens is not tokens:
            parts = [
                tokens[start : start + length]
                for start, length in zip(starts, self.lengths, strict=True)
            ]
            starts = np.cumsum(self.lengths) - self.lengths
            shift = int(self.lengths.sum())
            tokens = np.concatenate([*parts, other.tokens])
        return Rows(
            tokens,
            np.concatenate([starts, other.starts + shift]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.answers, other.answers]),
        )

    def batch(self, index: np.ndarray) -> TensorBatch:
        """Return rows of one length as tensors of int64."""
        columns = np.arange(int(self.lengths[index[0]]))
        tokens = self.tokens[self.starts[index][:, None] + columns]
        return {
            "input_ids": torch.from_numpy(tokens.astype(np.int64)),
            "answer": torch.from_numpy(self.answers[index].astype(np.int64)),
        }


def dataset_rows(task: "Task | Renderer", split: str, n: int) -> Rows:
    """Return the first `n` rows of a split."""
    table = cast("pa.Table", task.dataset(split, n).with_format("arrow")[:])
    documents = table["input_ids"].combine_chunks()
    starts = documents.offsets.to_numpy()[:-1].astype(np.int64)
    tokens = documents.values.to_numpy()
    lengths = table["roles"].combine_chunks().field("answer").to_numpy().astype(np.int64)
    return Rows(tokens, starts, lengths, tokens[starts + lengths])


def fixed(rows: Rows, seed: int) -> Callable[[], Iterator[Rows]]:
    """Return the endless epochs of a fixed set, each in an order of its own."""

    def epochs() -> Iterator[Rows]:
        epoch = 0
        while True:
            sequence = np.random.SeedSequence(seed, spawn_key=(epoch,))
            rng = np.random.Generator(np.random.PCG64(sequence))
            yield rows.take(rng.permutation(len(rows)))
            epoch += 1

    return epochs


def fresh(task: "Task | Renderer") -> Callable[[], Iterator[Rows]]:
    """Return the endless chunks of a task's train split; every row comes once."""

    def chunks() -> Iterator[Rows]:
        for examples, _ in task.chunks("train"):
            lengths = examples.roles["answer"].astype(np.int64)
            yield Rows(examples.tokens.values, examples.tokens.starts, lengths, examples.answer)

    return chunks


def held_out(task: "Task | Renderer", split: str, n: int) -> list[TensorBatch]:
    """Return the first `n` rows of a split as batches of one length each, the shortest first."""
    rows = dataset_rows(task, split, n)
    return [
        rows.batch(group[start : start + EVALUATION_BATCH])
        for length in np.unique(rows.lengths)
        for group in [np.flatnonzero(rows.lengths == length)]
        for start in range(0, len(group), EVALUATION_BATCH)
    ]


class Batches(Dataset[TensorBatch]):
    """The batches of a run, by step; meant to be read in order, from any step on.

    Args:
        source: returns the blocks of rows from their beginning.
        batch_size: rows of a batch.
        count: number of batches.
        share: (index, count): of each batch only every count-th row, from number index on.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[Rows]],
        *,
        batch_size: int,
        count: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._source, self._size, self._count = source, batch_size, count
        self._share = slice(share[0], None, share[1])
        self._plans, self._next = self._plan(), 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, step: int) -> TensorBatch:
        if not 0 <= step < self._count:
            raise IndexError(step)
        if step < self._next:
            self._plans, self._next = self._plan(), 0
        for _ in range(step - self._next):
            next(self._plans)
        rows, index = next(self._plans)
        self._next = step + 1
        return rows.batch(index[self._share])

    def _plan(self) -> Iterator[tuple[Rows, np.ndarray]]:
        """Yield each batch's rows, in the order in which the batches become full."""
        waiting: Rows | None = None
        for block in self._source():
            rows = block if waiting is None else waiting.followed_by(block)
            by_length = np.argsort(rows.lengths, kind="stable")
            ends = np.flatnonzero(np.diff(rows.lengths[by_length])) + 1
            full, rest = [], []
            for group in np.split(by_length, ends):
                last = len(group) // self._size * self._size
                full += list(group[:last].reshape(-1, self._size))
                rest.append(group[last:])
            for index in sorted(full, key=lambda rows_of_batch: rows_of_batch[-1]):
                yield rows, index
            waiting = rows.take(np.sort(np.concatenate(rest)))


class Stages(Dataset[TensorBatch]):
    """The batches of one after another."""

    def __init__(self, parts: Sequence[Batches]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, step: int) -> TensorBatch:
        for part in self._parts:
            if step < len(part):
                return part[step]
            step -= len(part)
        raise IndexError(step)


def first(items: list[Any]) -> Any:
    """Return the only item: the collator of a loader whose items are batches."""
    return items[0]
