"""Exact draws for many rows at once, from integers alone.

Every draw compares or counts integers of the generator; no logarithm, no sum of fractions. The
bytes are therefore the same on every machine, whatever its mathematics library.

Use:

    keys = draw_distinct(rng, rows=8, count=4, size=16)
    index = pick(rng, np.array([3, 1, 2]))                # one of each group
    heads = Categoricals.flat_dirichlet(rng, np.full(40, 20)); heads.draw(rng, np.array([0, 39]))
"""

from dataclasses import dataclass

import numpy as np

# Probabilities have this many bits: two outcomes of a distribution differ in steps of 2**-32.
_BITS = 32


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Return the generator of one stream of `seed`; streams never overlap.

    Args:
        seed: the task's.
        *stream: what the numbers are for, e.g. (split, chunk).
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    return np.random.Generator(np.random.PCG64(sequence))


def draw_distinct(rng: np.random.Generator, *, rows: int, count: int, size: int) -> np.ndarray:
    """Return (rows, count) integers below `size`, distinct within a row, uniform over such rows.

    Sparse rows are drawn with repetition and every repeated entry is drawn again until none is.
    Which entry is drawn again depends on what is equal to what, never on the values, so that
    relabelling the values leaves the procedure unchanged: all rows of distinct values are
    equally likely.
    """
    if 2 * count > size:
        everything = np.broadcast_to(np.arange(size, dtype=np.int32), (rows, size))
        return rng.permuted(everything, axis=1)[:, :count]
    drawn = rng.integers(size, size=(rows, count), dtype=np.int32)
    open_rows = np.arange(rows)
    while len(open_rows):
        # The entry's place breaks ties, so that sorting needs no stable algorithm.
        packed = drawn[open_rows].astype(np.int64) * count + np.arange(count)
        packed.sort(axis=1)
        value, place = np.divmod(packed, count)
        row, where = np.nonzero(value[:, 1:] == value[:, :-1])
        again = place[row, where + 1]
        drawn[open_rows[row], again] = rng.integers(size, size=len(row), dtype=np.int32)
        open_rows = open_rows[np.unique(row)]
    return drawn


def draw_absent(
    rng: np.random.Generator, present: np.ndarray, counts: np.ndarray, size: int
) -> np.ndarray:
    """Return for each row an integer below `size`, uniform over those not present in the row.

    Args:
        rng: source of randomness.
        present: the distinct values of all rows, row after row, ascending within a row.
        counts: how many of them each row has.
        size: of the alphabet.

    Returns:
        (rows,); −1 where a row has all values. The r-th absent value is r plus the number of
        present values v with at most r absent ones below them, i.e. with v − rank(v) <= r.
    """
    room = size - counts
    rank = rng.integers(0, np.maximum(room, 1))
    rows = np.arange(len(counts), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    row_of = np.repeat(rows, counts)
    absent_below = present - (np.arange(len(present)) - starts[row_of])
    below = np.searchsorted(
        row_of * (size + 1) + absent_below, rows * (size + 1) + rank, side="right"
    )
    return np.where(room > 0, rank + below - starts, -1)


def pick(rng: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    """Return one uniform index per group into the concatenated groups; counts must be positive."""
    ends = np.cumsum(counts)
    return ends - counts + rng.integers(0, counts)


@dataclass(frozen=True)
class Categoricals:
    """Many categorical distributions in one sorted array.

    Distribution i has the outcomes `first[i]`, `first[i] + 1`, …; the boundaries between them lie
    in `bounds`, offset by i in the bits above the probability's.
    """

    bounds: np.ndarray
    first: np.ndarray
    skipped: np.ndarray

    @classmethod
    def flat_dirichlet(cls, rng: np.random.Generator, sizes: np.ndarray) -> "Categoricals":
        """Draw distributions from Dirichlet(1, …, 1), their outcomes numbered on.

        The spacings of k − 1 sorted uniform numbers are exactly such a distribution over k.
        """
        inner = sizes - 1
        row = np.repeat(np.arange(len(sizes), dtype=np.int64), inner)
        bounds = rng.integers(1 << _BITS, size=len(row), dtype=np.int64) + (row << _BITS)
        bounds.sort()
        return cls(
            bounds=bounds,
            first=np.cumsum(sizes) - sizes,
            skipped=np.cumsum(inner) - inner,
        )

    def draw(self, rng: np.random.Generator, which: np.ndarray) -> np.ndarray:
        """Return one outcome for each entry of `which` (an index of a distribution)."""
        uniform = rng.integers(1 << _BITS, size=len(which), dtype=np.int64)
        found = np.searchsorted(self.bounds, uniform + (which << _BITS), side="right")
        return self.first[which] + found - self.skipped[which]

    def probabilities(self, index: int) -> np.ndarray:
        """Return the probabilities of one distribution's outcomes."""
        ends = np.append(self.skipped, len(self.bounds))
        inner = self.bounds[ends[index] : ends[index + 1]] - (index << _BITS)
        return np.diff(np.concatenate([[0], inner, [1 << _BITS]])) / float(1 << _BITS)
