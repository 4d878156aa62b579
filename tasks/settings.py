"""From keywords or command-line words to a frozen config, with one line for each mistake.

Use:

    make_config(ARConfig, {"num_pairs": 8, "held_out": "0.2"}, where="task 'ar'")
"""

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from patchbench.common import UserError, near_names

C = TypeVar("C")
# The largest vocabulary: more is never meant, and a table over it would not fit into memory.
MOST_TOKENS = 1_000_000


def make_config(cls: type[C], settings: Mapping[str, Any], *, where: str) -> C:
    """Return `cls(**settings)`, values converted to the fields' types.

    Args:
        cls: a dataclass whose fields are int, float, bool, str, Literal, tuple[str, ...] or one
            of these or None.
        settings: field → value, or the text of a value.
        where: what the settings belong to, for messages.

    Raises:
        UserError: an unknown field, a value of another type, or one that `cls` refuses.
    """
    hints = get_type_hints(cls)
    known = [field.name for field in fields(cast(Any, cls))]
    values = {}
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{where} has no setting {name!r}", near_names(name, known))
        values[name] = _convert(value, hints[name], f"{where}: {name}={value!r}")
    return cls(**values)


def check_at_least(least: int | float, **values: int | float) -> None:
    """Raise `UserError` for the first value that is below `least`."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"{name}={value}", f"the smallest allowed is {least}")


def check_at_most(most: int | float, **values: int | float) -> None:
    """Raise `UserError` for the first value that is above `most`."""
    for name, value in values.items():
        if value > most:
            raise UserError(f"{name}={value}", f"the largest allowed is {most}")


def check_share(**values: float) -> None:
    """Raise `UserError` for the first value outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UserError(f"{name}={value}", "a share from 0 up to, but without, 1 is needed")


def _convert(value: Any, hint: Any, what: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None or value in ("none", "None"):
            return None
        return _convert(value, next(a for a in arguments if a is not type(None)), what)
    if origin is Literal:
        if value not in arguments:
            raise UserError(what, near_names(str(value), [str(a) for a in arguments]))
        return value
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, list | tuple):
            return tuple(_convert(part, arguments[0], what) for part in parts)
        raise UserError(what, "names separated by commas, or a list of them, are needed")
    return _convert_plain(value, hint, what)


def _convert_plain(value: Any, hint: type, what: str) -> Any:
    if hint is bool:
        words = {"true": True, "false": False}
        if isinstance(value, str):
            value = words.get(value.lower(), value)
        if not isinstance(value, bool | np.bool_):
            raise UserError(what, "true or false is needed")
        return bool(value)
    if hint is str:
        if not isinstance(value, str):
            raise UserError(what, "a word is needed")
        return value.strip()
    kinds = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
    if isinstance(value, str):
        try:
            value = hint(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise UserError(what, "an integer is needed" if hint is int else "a number is needed")
    return hint(value)
