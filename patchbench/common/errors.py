"""The two exceptions of the house, and the wording of the first.

`UserError` means "you asked for something impossible", `ControlError` "the numbers are not to be
trusted".

Use:

    raise UserError("task 'arr' is not known", near_names("arr", known))

The command line prints it as one line and exits with 2; in a library it is a `ValueError`.
"""

import difflib
import re
from collections.abc import Iterable

# What a terminal acts on, in a name that came with a checkpoint for example.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class UserError(ValueError):
    """A mistake in what was asked for: says what, where and the remedy in one line.

    Attributes:
        what: the line without the remedy.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.what = what
        super().__init__(f"{what}: {remedy}" if remedy else what)


class ControlError(RuntimeError):
    """A hard control is off: the run's numbers cannot be trusted."""


def near_names(name: str, known: Iterable[str], limit: int = 12) -> str:
    """Return "did you mean …?" for a mistyped `name`, or the known names when none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    shown = ", ".join(names[:limit])
    return f"known: {shown}" + (", …" if len(names) > limit else "") if names else "none is known"


def printable(text: str) -> str:
    """Return `text` without the characters that a terminal would act on; lines and tabs stay."""
    return _CONTROLS.sub("", text)
