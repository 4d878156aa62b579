"""The proof, on every chunk that is built, that a corruption corrupts.

It reads finished documents only: what changed, where, and what the rule makes of it.
"""

from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.corruptions import context_mask
from patchbench.tasks.example import Corruption, Examples

if TYPE_CHECKING:
    from patchbench.tasks.base import Task


class CorruptionError(RuntimeError):
    """A corruption is not what it must be: a bug in the task."""


def check_examples(task: "Task", examples: Examples) -> None:
    """Check roles, answers and every corruption.

    Raises:
        CorruptionError: naming the task, the corruption and the first offending row.
    """
    if not len(examples):
        return
    derived = task.derive(examples.tokens.values, examples, examples.answer)
    checks = {
        "the key is not the query": examples.tokens.at(examples.roles["key"]) == examples.query,
        "the value is not the answer": examples.tokens.at(examples.roles["value"])
        == examples.answer,
        "the rule does not give the answer": derived.accepts,
    }
    _raise_first(task, "clean", checks, np.arange(len(examples)))
    for name, corruption in examples.corruptions.items():
        _check_corruption(task, examples, name, corruption)


def _check_corruption(task: "Task", examples: Examples, name: str, corruption: Corruption) -> None:
    index = np.flatnonzero(corruption.exists)
    if not len(index):
        return
    clean = examples.select(corruption.exists)
    twin = corruption.tokens.select(corruption.exists)
    answer = corruption.answer[corruption.exists]
    if not np.array_equal(twin.lengths, clean.tokens.lengths):
        raise CorruptionError(f"task {task.name!r}, {name}: the length changed")
    rows, before, after = clean.tokens.rows, clean.tokens.values, twin.values
    changed = before != after
    changes = np.bincount(rows[changed], minlength=len(index))
    outside = np.bincount(rows[changed & ~context_mask(clean)], minlength=len(index))
    role = "value" if name == "swap" else name
    old, new = clean.tokens.at(clean.roles[role]), twin.at(clean.roles[role])
    elsewhere = np.bincount(rows[context_mask(clean) & (before == new[rows])], minlength=len(index))
    derived = task.derive(after, clean, clean.answer)
    if name == "swap":
        returned = np.bincount(
            rows[changed & (after == old[rows]) & (before == new[rows])], minlength=len(index)
        )
        fitting = {"the two tokens do not change places": (changes == 2) & (returned == 1)}
    else:
        fitting = {
            f"not exactly the {role} changed": changes == 1,
            "the new token stands elsewhere in the context": elsewhere == 0,
        }
    definite = derived.count == 1
    checks = {
        **fitting,
        f"the {role} did not change": old != new,
        "a token outside the context changed": outside == 0,
        "the new token is of another kind": task.kind_of[old] == task.kind_of[new],
        "the clean answer can still be derived": ~derived.accepts,
        "the counterfactual is not what the rule gives": np.where(
            definite, answer == derived.answer, (answer == -1) | (answer == new)
        ),
        "there is a counterfactual, but the rule gives none": (derived.count > 0) | (answer == -1),
    }
    _raise_first(task, name, checks, index)


def _raise_first(task: "Task", name: str, checks: dict[str, np.ndarray], index: np.ndarray) -> None:
    for message, passed in checks.items():
        if not passed.all():
            row = index[int(np.argmin(passed))]
            raise CorruptionError(f"task {task.name!r}, {name}, row {row} of its chunk: {message}")
