"""Whether settings have the types that the fields they are for declare.

Settings come from JSON and from command lines, where "2" and 2 are easily confused; a wrong type
must not surface as a failed comparison, or worse, as a model that differs from what was asked for.

Use:

    check_types("mamba", MambaOptions, {"d_conv": "4"})     # UserError: mamba: d_conv is '4': …
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from patchbench.common import UserError

# What a user is told to give instead, by type.
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    str: "a name",
    bool: "true or false",
}
LISTED = {int: "whole numbers", float: "finite numbers", str: "texts"}


def check_types(owner: str, kind: type, values: Mapping[str, Any]) -> None:
    """Check values against the annotations of a class.

    A bool is no int, an int is a float, and a float is finite. A field whose annotation is not
    made of int, float, str, bool and None is left to its class.

    Args:
        owner: what has the settings, for the message ("" for none).
        kind: the class.
        values: settings by the name of their field.

    Raises:
        UserError: the first value that does not fit.
    """
    for name, value in values.items():
        types = _plain_types(_annotation(kind, name))
        if types and not any(fits(value, one) for one in types):
            words = " or ".join(_WORDS[one] for one in types if one is not NoneType)
            raise UserError(f"{owner}{': ' if owner else ''}{name} is {value!r}", f"give {words}")


def check_sizes(owner: str, values: Mapping[str, Any]) -> None:
    """Check that whole numbers are such as a tensor may have for a size.

    Raises:
        UserError: the first that takes more than 64 bits.
    """
    for name, value in values.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(
                f"{owner}{': ' if owner else ''}{name} is {value}", "give one of at most 64 bits"
            )


def _annotation(kind: type, name: str) -> Any:
    """Return what `kind` declares for `name`: one by one, as others may not resolve at run time."""
    for base in kind.__mro__:
        found = inspect.get_annotations(base)
        if name in found:
            text = found[name]
            return eval(text, vars(sys.modules[base.__module__])) if type(text) is str else text
    return Any


def _plain_types(hint: Any) -> tuple[type, ...]:
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return types if all(one in _WORDS or one is NoneType for one in types) else ()


def fits(value: Any, kind: type) -> bool:
    """Return whether a value is of one of the types that `check_types` knows."""
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
