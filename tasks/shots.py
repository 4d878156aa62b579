"""Solved documents to stand in front of a prompt.

Each row has its own, drawn by a generator of (seed, row) from the first documents of the train
split, so that row i has the same ones however many rows there are. None of them gives the answer
away: no shot asks what the row asks, and where the context consists of pairs, none even contains
what the row asks. So a shot is never the row's own document, nor one of its corruptions.

Use:

    shots = choose_shots(pool, examples, 2, seed=0, pairs=True)     # (rows, 2) rows of the pool
"""

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.example import Examples
from patchbench.tasks.sampling import generator

POOL_ROWS = 1024
# Of the renderer's seed; 0–4 are taken by the tasks, whose seed may be the same number.
_STREAM = 16


def choose_shots(
    pool: Examples, examples: Examples, count: int, *, seed: int, pairs: bool
) -> np.ndarray:
    """Return for each example `count` different rows of the pool: (rows, count).

    Args:
        pool: solved documents.
        examples: the rows that they will stand in front of.
        count: shots of each row.
        seed: of the choice.
        pairs: whether a shot must not contain the query, rather than only not ask it.

    Raises:
        UserError: too few documents of the pool are allowed for some row.
    """
    chosen = np.zeros((len(examples), count), np.int64)
    query, fewest = pool.query, len(pool)
    for row, asked in enumerate(examples.query):
        allowed = query != asked
        if pairs:
            allowed[pool.tokens.rows[pool.tokens.values == asked]] = False
        order = generator(seed, _STREAM, row).permutation(len(pool))
        order = order[allowed[order]]
        fewest = min(fewest, len(order))
        chosen[row] = np.resize(order[:count], count)
    if fewest < count:
        raise UserError(
            f"shots={count}: for some row only {fewest} of {len(pool)} train documents do not give "
            "the answer away",
            f"the largest that fits is shots={fewest}",
        )
    return chosen
