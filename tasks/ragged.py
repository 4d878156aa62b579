"""Rows of different lengths in one flat array: what Arrow stores, and what NumPy is fast at.

Use:

    tokens = Ragged(np.array([1, 2, 3]), np.array([2, 1]))   # [[1, 2], [3]]
    tokens.rows, tokens.positions                            # [0, 0, 1], [0, 1, 0]
    tokens.at(np.array([1, 0]))                              # [2, 3]
    join(tokens, repeat((9,), 2))                            # [[1, 2, 9], [3, 9]]
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Ragged:
    """A list of rows.

    Attributes:
        values: all rows, one after the other: (sum of lengths,).
        lengths: of each row: (rows,).
    """

    values: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each row starts, and the end: (rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def starts(self) -> np.ndarray:
        """Where each row starts in `values`."""
        return self.offsets[:-1]

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of each value."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    @cached_property
    def positions(self) -> np.ndarray:
        """The index of each value within its row."""
        return np.arange(len(self.values)) - np.repeat(self.starts, self.lengths)

    def at(self, position: np.ndarray) -> np.ndarray:
        """Return the value at one position of each row."""
        return self.values[self.starts + position]

    def with_values(self, values: np.ndarray) -> "Ragged":
        """Return rows of the same shape that hold `values`; what was computed of it is kept."""
        new = replace(self, values=values)
        for name in ("offsets", "rows", "positions"):
            if name in self.__dict__:
                new.__dict__[name] = self.__dict__[name]
        return new

    def select(self, mask: np.ndarray) -> "Ragged":
        """Return the rows where `mask` is true."""
        if mask.all():
            return self
        return Ragged(self.values[np.repeat(mask, self.lengths)], self.lengths[mask])

    def emptied(self, mask: np.ndarray) -> "Ragged":
        """Return the same number of rows, those where `mask` is false without values."""
        if mask.all():
            return self
        return Ragged(self.values[np.repeat(mask, self.lengths)], np.where(mask, self.lengths, 0))

    def row(self, index: int) -> np.ndarray:
        """Return one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def to_arrow(self) -> "pa.ListArray":
        """Return an Arrow list<int32>; no Python list is made."""
        import pyarrow as pa

        return pa.ListArray.from_arrays(
            pa.array(self.offsets.astype(np.int32)), pa.array(self.values.astype(np.int32))
        )


def join(*parts: Ragged) -> Ragged:
    """Return rows that are the parts' rows one after the other."""
    lengths = np.sum([part.lengths for part in parts], axis=0)
    joined = Ragged(np.empty(int(lengths.sum()), np.int64), lengths)
    start = joined.starts
    for part in parts:
        joined.values[start[part.rows] + part.positions] = part.values
        start = start + part.lengths
    return joined


def take(rows: Ragged, index: np.ndarray) -> Ragged:
    """Return the rows of the given numbers, in their order."""
    lengths = rows.lengths[index]
    taken = Ragged(np.empty(int(lengths.sum()), np.int64), lengths)
    return taken.with_values(rows.values[rows.starts[index][taken.rows] + taken.positions])


def repeat(row: tuple[int, ...], count: int) -> Ragged:
    """Return `count` equal rows."""
    return Ragged(np.tile(np.array(row, np.int64), count), np.full(count, len(row)))
