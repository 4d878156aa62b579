"""The corrupted twins of an example: drawn once, here, so that all sites see the same ones.

- `key`: the key becomes a token of its kind that the context does not have;
- `value`: likewise the value;
- `swap`: the value changes places with another token of its kind, so that the rule gives that one.

A key or value that cannot be replaced (its kind is used up), or whose replacement leaves the
answer derivable (an earlier occurrence of the query has an equal answer), makes its example drop
out; a swap that cannot be made stays empty.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.example import Corruption, Examples
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_absent, pick

if TYPE_CHECKING:
    from patchbench.tasks.base import Task


def corrupt(task: "Task", examples: Examples, rng: np.random.Generator) -> Examples:
    """Return the examples with their corruptions, without those that cannot be corrupted.

    With `keep_uncorruptible` in the task's config they stay, their corruption empty.
    """
    key = _replace(task, examples, "key", rng)
    value = _replace(task, examples, "value", rng)
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


def context_mask(examples: Examples) -> np.ndarray:
    """Return for each token whether it is a symbol of the context."""
    positions, rows = examples.tokens.positions, examples.tokens.rows
    return (positions > examples.roles["bos"][rows]) & (positions < examples.roles["divider"][rows])


def _replace(task: "Task", examples: Examples, role: str, rng: np.random.Generator) -> Corruption:
    tokens, place = examples.tokens, examples.roles[role]
    new = _absent(task, examples, role, rng)
    possible = new >= 0
    values = tokens.values.copy()
    values[(tokens.starts + place)[possible]] = new[possible]
    after = task.derive(values, examples, examples.answer)
    possible &= ~after.accepts
    # A new value is itself what the rule now gives; a new key leaves an earlier occurrence, if any.
    answer = new if role == "value" else after.answer
    return Corruption(
        tokens=Ragged(values, tokens.lengths).emptied(possible),
        answer=np.where(possible, answer, -1),
    )


def _absent(task: "Task", examples: Examples, role: str, rng: np.random.Generator) -> np.ndarray:
    """Return for each row a token of the role's kind that is absent from the context, or −1."""
    tokens = examples.tokens
    kind = int(task.kind_of[tokens.at(examples.roles[role])[0]]) if len(examples) else 0
    ids = task.kinds[task.kind_names[kind]]
    low, size = ids[0], len(ids)
    here = context_mask(examples) & (task.kind_of[tokens.values] == kind)
    # One sort of (row, token) gives each row's distinct tokens in ascending order.
    packed = tokens.rows[here] * size + (tokens.values[here] - low)
    packed.sort()
    packed = packed[np.append(True, packed[1:] != packed[:-1])] if len(packed) else packed
    row, present = np.divmod(packed, size)
    counts = np.bincount(row, minlength=len(examples))
    rank = draw_absent(rng, present, counts, size)
    return np.where(rank >= 0, rank + low, -1)


def _swap(task: "Task", examples: Examples, rng: np.random.Generator) -> Corruption:
    tokens = examples.tokens
    rows, positions, values = tokens.rows, tokens.positions, tokens.values
    key, query, answer = examples.roles["key"], examples.query, examples.answer
    allowed = context_mask(examples) & task.swappable(examples)
    allowed &= task.kind_of[values] == task.kind_of[answer][rows]
    allowed &= (values != answer[rows]) & (values != query[rows]) & (positions != key[rows])
    # Where the value looks like the query, its new place must not come after the key.
    allowed &= (answer != query)[rows] | (positions < key[rows])
    partners = np.flatnonzero(allowed)
    counts = np.bincount(rows[partners], minlength=len(examples))
    possible = counts > 0
    partner = partners[pick(rng, counts[possible])]
    place = (tokens.starts + examples.roles["value"])[possible]
    swapped = values.copy()
    swapped[place], swapped[partner] = values[partner], values[place]
    possible &= ~task.derive(swapped, examples, answer).accepts
    twin = Ragged(swapped, tokens.lengths)
    return Corruption(
        tokens=twin.emptied(possible),
        answer=np.where(possible, twin.at(examples.roles["value"]), -1),
    )
