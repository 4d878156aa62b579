"""From laid out documents to `Examples`, and the rule of a list: what tasks without trees share.

Use:

    documents = Ragged(tokens.reshape(-1), lengths)
    examples = assemble(documents, roles, candidates=values, num_pairs=8)
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.base import Derived
from patchbench.tasks.example import Examples
from patchbench.tasks.ragged import Ragged

# Candidates in a chunk: at most so many rows, and at most so many tokens.
_CHUNK_ROWS, _CHUNK_TOKENS = 8192, 1 << 20


def chunk_rows(length: int) -> int:
    """Return how many documents of up to `length` tokens make a chunk."""
    return max(1, min(_CHUNK_ROWS, _CHUNK_TOKENS // length))


def check_spare(**counts: tuple[int, int]) -> None:
    """Check that a document leaves a token of each kind over, for the corruption.

    Args:
        **counts: setting of the alphabet's size → (tokens in a document, the alphabet's size).

    Raises:
        UserError: for the first that does not.
    """
    for name, (used, size) in counts.items():
        if used >= size:
            raise UserError(
                f"{name}={size}, and {used} of them in a document, leaves none for a corruption",
                f"the smallest allowed is {name}={used + 1}",
            )


def assemble(
    tokens: Ragged,
    roles: Mapping[str, np.ndarray],
    *,
    candidates: np.ndarray,
    num_pairs: int,
    labels: np.ndarray | None = None,
) -> Examples:
    """Return documents as examples; what the two heuristics make of them is read off.

    Args:
        tokens: the documents.
        roles: role → (rows,) positions; `bos` is 0.
        candidates: (rows, n), the answers in each context.
        num_pairs: pairs that could have been asked.
        labels: flat, if more than the answer is to be learnt.
    """
    rows = len(tokens)
    examples = Examples(
        tokens=tokens,
        parents=Ragged(np.empty(0, np.int32), np.zeros(rows, np.int64)),
        roles={"bos": np.zeros(rows, np.int64), **roles},
        candidates=Ragged(candidates.reshape(-1), np.full(rows, candidates.shape[1])),
        corruptions={},
        metadata={},
        kinds=("key",),
        labels=labels,
    )
    occurrences = np.flatnonzero(
        (tokens.values == examples.query[tokens.rows]) & examples.in_context
    )
    last = np.zeros(rows, np.int64)
    last[tokens.rows[occurrences]] = occurrences  # the last assignment stays: the rightmost
    metadata = {
        "query_kind": np.zeros(rows, np.int64),
        "distance": np.abs(examples.roles["value"] - examples.roles["key"]),
        "depth": np.zeros(rows, np.int64),
        "answer_is_next_token": tokens.values[last + 1] == examples.answer,
        "answer_is_rightmost": tokens.at(examples.roles["divider"] - 1) == examples.answer,
        "num_pairs": np.full(rows, num_pairs),
    }
    return replace(examples, metadata=metadata)


def among(matches: np.ndarray, answers: np.ndarray, token: np.ndarray) -> Derived:
    """Return what a rule gives that picks entries of a list whose answers are distinct.

    Args:
        matches: (rows, n), whether the rule picks an entry.
        answers: (rows, n), the entries' answers.
        token: (rows,) asked about.
    """
    count = matches.sum(axis=1, dtype=np.int32)
    answer = answers[np.arange(len(answers)), matches.argmax(axis=1)]
    return Derived(
        count=count,
        answer=np.where(count == 1, answer, -1),
        accepts=(matches & (answers == token[:, None])).any(axis=1),
    )
