"""The corrupted twins of an example: drawn once, here, so that all sites see the same ones.

- `key`: the key becomes a token of its kind that the context does not have;
- `value`: likewise the value;
- `swap`: the value changes places with another token of its kind, so that the rule gives that one.

A key or value that cannot be replaced (its kind is used up), or whose replacement leaves the
answer derivable (an earlier occurrence of the query has an equal answer), makes its example drop
out; a swap that cannot be made stays empty.

Use:

    examples = corrupt(task, clean, rng)
    examples.corruptions["key"].tokens, examples.corruptions["key"].exists
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.example import Corruption, Examples
from patchbench.tasks.sampling import draw_absent, pick

if TYPE_CHECKING:
    from patchbench.tasks.base import Task


def corrupt(task: "Task", examples: Examples, rng: np.random.Generator) -> Examples:
    """Return the examples with their corruptions, without those that cannot be corrupted.

    With `keep_uncorruptible` in the task's config they stay, their corruption empty.
    """
    absent = _Absent(task, examples)
    key = _replace(task, examples, "key", absent.draw(rng, "key"))
    value = _replace(task, examples, "value", absent.draw(rng, "value"))
    swap = _swap(task, examples, rng)
    clean = task.derive(examples.tokens.values, examples, examples.answer)
    examples = replace(
        examples,
        corruptions={"key": key, "value": value, "swap": swap},
        metadata={**examples.metadata, "num_answers": clean.count},
    )
    if getattr(task.config, "keep_uncorruptible", False):
        return examples
    return examples.select(key.exists & value.exists)


class _Absent:
    """Draws tokens that a context does not have; sorts the context once for each kind."""

    def __init__(self, task: "Task", examples: Examples) -> None:
        self._task, self._examples = task, examples
        self._present: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def draw(self, rng: np.random.Generator, role: str) -> np.ndarray:
        """Return for each row a token of the role's kind that its context lacks, −1 if none."""
        examples, task = self._examples, self._task
        if not len(examples):
            return np.empty(0, np.int64)
        kind = task.kind_names[task.kind_of[examples.tokens.at(examples.roles[role])[0]]]
        ids = task.drawn[kind]
        if kind not in self._present:
            self._present[kind] = _distinct(examples, ids[0], len(ids))
        present, counts = self._present[kind]
        drawn = draw_absent(rng, present, counts, len(ids))
        return np.where(drawn >= 0, drawn + ids[0], -1)


def _distinct(examples: Examples, low: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each context's distinct tokens of low … low + size − 1, less low, and their number."""
    tokens = examples.tokens
    symbol = tokens.values - low
    here = examples.in_context & (symbol >= 0) & (symbol < size)
    # One sort of (row, token) brings equal tokens of a row together.
    packed = tokens.rows[here] * size + symbol[here]
    packed.sort()
    first = np.ones(len(packed), bool)
    first[1:] = packed[1:] != packed[:-1]
    row, present = np.divmod(packed[first], size)
    return present, np.bincount(row, minlength=len(examples))


def _replace(task: "Task", examples: Examples, role: str, new: np.ndarray) -> Corruption:
    """Put the tokens `new` at the role's positions."""
    values = examples.tokens.values.copy()
    place = examples.tokens.starts + examples.roles[role]
    values[place] = np.where(new >= 0, new, values[place])
    after = task.derive(values, examples, examples.answer)
    exists = (new >= 0) & ~after.accepts
    # A new value is itself what the rule now gives; a new key leaves an earlier occurrence, if any.
    answer = new if role == "value" else after.answer
    return Corruption(tokens=values, exists=exists, answer=np.where(exists, answer, -1))


def _swap(task: "Task", examples: Examples, rng: np.random.Generator) -> Corruption:
    tokens = examples.tokens
    rows, values, query, answer = tokens.rows, tokens.values, examples.query, examples.answer
    key = tokens.starts + examples.roles["key"]
    allowed = examples.in_context & task.swappable(examples)
    allowed &= task.kind_of[values] == task.kind_of[answer][rows]
    allowed &= (values != answer[rows]) & (values != query[rows])
    if (answer == query).any():
        # Where the value looks like the query, its new place must not come after the key.
        allowed &= (answer != query)[rows] | (np.arange(len(values)) < key[rows])
    partners = np.flatnonzero(allowed)
    counts = np.bincount(rows[partners], minlength=len(examples))
    exists = counts > 0
    partner = partners[pick(rng, counts[exists])]
    place = (tokens.starts + examples.roles["value"])[exists]
    swapped = values.copy()
    swapped[place], swapped[partner] = values[partner], values[place]
    exists &= ~task.derive(swapped, examples, answer).accepts
    new = swapped[tokens.starts + examples.roles["value"]]
    return Corruption(tokens=swapped, exists=exists, answer=np.where(exists, new, -1))
