"""Which tokens of a tree may be asked about, and what the answer is.

- `parent`: the answer is the query's parent;
- `sibling`: the rightmost of the query's other siblings;
- `child`: any child of the query.

To be unambiguous the query must be the rightmost occurrence of its terminal in the sentence, and
for `sibling` the answer too. One pair is drawn: uniform over the answer positions first, then over
the queries that have this answer.

Use:

    last = rightmost(forest.tokens, alphabet=20)
    pairs = eligible(forest, "parent", last, HeldOutPairs(seed=0, share=0.0), "train")
    kind, chosen, num_pairs = choose(rng, forest, [pairs])
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from patchbench.tasks.held_out import HeldOutPairs
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import pick
from patchbench.tasks.trees import Forest

QueryKind = Literal["parent", "child", "sibling"]
QUERY_KINDS: tuple[QueryKind, ...] = ("parent", "child", "sibling")


@dataclass(frozen=True)
class Pairs:
    """(query, answer) pairs as flat indices into the forest's tokens."""

    query: np.ndarray
    answer: np.ndarray

    def select(self, mask: np.ndarray) -> "Pairs":
        """Return the pairs where `mask` is true."""
        return Pairs(self.query[mask], self.answer[mask])


def related(parents: Ragged, kind: QueryKind) -> Pairs:
    """Return every pair of tokens that stand in the relation `kind`, in the order of its first."""
    child = np.flatnonzero(parents.values >= 0)
    parent = parents.starts[parents.rows[child]] + parents.values[child]
    if kind == "parent":
        return Pairs(child, parent)
    if kind == "child":
        return Pairs(parent, child)
    last = _last_of_each(parents, parent, child)
    is_last = child == last[parent]
    second = _last_of_each(parents, parent[~is_last], child[~is_last])
    sibling = np.where(is_last, second[parent], last[parent])
    return Pairs(child, sibling).select(sibling >= 0)


def rightmost(tokens: Ragged, alphabet: int) -> np.ndarray:
    """Return the flat index of the last occurrence of each terminal of each sentence.

    They come in the order of (sentence, terminal).
    """
    bits = max(len(tokens.values), 1).bit_length()
    packed = (tokens.rows * alphabet + tokens.values) << bits
    packed += np.arange(len(packed))
    packed.sort()
    group = packed >> bits
    ends = np.append(group[1:] != group[:-1], True) if len(group) else np.empty(0, bool)
    return packed[ends] & ((1 << bits) - 1)


def eligible(
    forest: Forest, kind: QueryKind, last: np.ndarray, held_out: HeldOutPairs, split: str
) -> Pairs:
    """Return the pairs that may be asked; `last` is what `rightmost` returned."""
    unique = np.zeros(len(forest.tokens.values), bool)
    unique[last] = True
    pairs = related(forest.parents, kind)
    allowed = unique[pairs.query]
    if kind == "sibling":
        allowed &= unique[pairs.answer]
    pairs = pairs.select(allowed)
    tokens = forest.tokens.values
    return pairs.select(held_out.eligible(split, tokens[pairs.query], tokens[pairs.answer]))


def choose(
    rng: np.random.Generator, forest: Forest, by_kind: list[Pairs]
) -> tuple[np.ndarray, Pairs, np.ndarray]:
    """Draw one pair per sentence: the kind first, then the answer, then the query.

    Returns:
        For each sentence the index of its kind (−1 if nothing may be asked), then for the others
        the pair, and the number of pairs of its kind.
    """
    rows = forest.tokens.rows
    counts = np.stack(
        [np.bincount(rows[pairs.query], minlength=len(forest)) for pairs in by_kind]
    )  # (kinds, sentences)
    available = counts > 0
    asked = np.flatnonzero(available.any(axis=0))
    rank = rng.integers(0, available.sum(axis=0)[asked])
    kind = np.full(len(forest), -1)
    kind[asked] = np.argmax(np.cumsum(available, axis=0)[:, asked] > rank, axis=0)

    query, answer = np.empty(len(forest), np.int64), np.empty(len(forest), np.int64)
    for index, pairs in enumerate(by_kind):
        here = np.flatnonzero(kind == index)
        mine = pairs.select(kind[rows[pairs.query]] == index)
        query[here], answer[here] = _choose_pair(rng, rows, mine)
    return kind, Pairs(query[asked], answer[asked]), counts[kind[asked], asked]


def _choose_pair(
    rng: np.random.Generator, rows: np.ndarray, pairs: Pairs
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one pair for every sentence that has some, in the order of the sentences."""
    order = np.argsort(pairs.answer, kind="stable")
    query, answer = pairs.query[order], pairs.answer[order]
    first = np.flatnonzero(np.append(True, answer[1:] != answer[:-1])) if len(answer) else order
    size = np.diff(np.append(first, len(answer)))
    answers_of = np.bincount(rows[answer[first]])
    group = pick(rng, answers_of[answers_of > 0])
    chosen = first[group] + rng.integers(0, size[group])
    return query[chosen], answer[chosen]


def _last_of_each(parents: Ragged, parent: np.ndarray, child: np.ndarray) -> np.ndarray:
    """Return the last child of every token, −1 without one; `child` ascends."""
    last = np.full(len(parents.values), -1)
    last[parent] = child  # of repeated indices the last assignment stays
    return last
