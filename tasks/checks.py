"""The proof, on every chunk that is built, that a corruption corrupts.

It reads finished documents only: what changed, where, and what the rule makes of it.

Use:

    check_examples(task, examples)      # raises, or all is well
"""

from typing import TYPE_CHECKING

import numpy as np

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
    _raise_first(task, "clean", checks)
    for name, corruption in examples.corruptions.items():
        _check_corruption(task, examples, name, corruption)


def _check_corruption(task: "Task", examples: Examples, name: str, corruption: Corruption) -> None:
    rows, before, after = examples.tokens.rows, examples.tokens.values, corruption.tokens
    if after.shape != before.shape:
        raise CorruptionError(f"task {task.name!r}, {name}: the length changed")

    def per_row(places: np.ndarray) -> np.ndarray:
        return np.bincount(rows[places], minlength=len(examples))

    changed = np.flatnonzero(before != after)
    role = "value" if name == "swap" else name
    place = examples.tokens.starts + examples.roles[role]
    old, new = before[place], after[place]
    if name == "swap":
        returned = (after[changed] == old[rows[changed]]) & (before[changed] == new[rows[changed]])
        fitting = {
            "the two tokens do not change places": (per_row(changed) == 2)
            & (per_row(changed[returned]) == 1)
        }
    else:
        elsewhere = np.flatnonzero(examples.in_context & (before == new[rows]))
        fitting = {
            f"not exactly the {role} changed": per_row(changed) == 1,
            "the new token stands elsewhere in the context": per_row(elsewhere) == 0,
        }
    derived, answer = task.derive(after, examples, examples.answer), corruption.answer
    checks = {
        **fitting,
        f"the {role} did not change": old != new,
        "a token outside the context changed": per_row(changed[~examples.in_context[changed]]) == 0,
        "the new token is of another kind": task.kind_of[old] == task.kind_of[new],
        "the clean answer can still be derived": ~derived.accepts,
        "the counterfactual is not what the rule gives": np.where(
            derived.count == 1, answer == derived.answer, (answer == -1) | (answer == new)
        ),
        "there is a counterfactual, but the rule gives none": (derived.count > 0) | (answer == -1),
    }
    _raise_first(task, name, {m: passed | ~corruption.exists for m, passed in checks.items()})
    if (answer[~corruption.exists] != -1).any():
        raise CorruptionError(f"task {task.name!r}, {name}: an answer without a corruption")


def _raise_first(task: "Task", name: str, checks: dict[str, np.ndarray]) -> None:
    for message, passed in checks.items():
        if not passed.all():
            row = int(np.argmin(passed))
            raise CorruptionError(f"task {task.name!r}, {name}, row {row} of its chunk: {message}")
