"""What a checkpoint may not bring about: reading files elsewhere, running code nobody allowed.

Use:

    check_shards(folder)                  # `*.index.json` names files of its own folder
    config = without_kernels("someone/model", config, trusted=False)

transformers joins the names of an index to the folder as they are, and fetches a kernel from the
hub where a config asks for one; the rest (pickles, code beside the weights) it refuses by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from patchbench.common import UserError, parse_json

_IMPLEMENTATION = "_implementation"  # how attention and experts are computed, by any prefix


def check_shards(folder: Path) -> None:
    """Check that the indices of a checkpoint name files within it.

    Raises:
        UserError: one names another place, or is none.
    """
    for index in sorted(folder.glob("*.index.json")):
        try:
            files = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
            outside = [file for file in files if not _is_within(file)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            reason = " ".join(str(error).split())[:80]
            raise UserError(
                f"{index} is no index of weights ({type(error).__name__}: {reason})",
                "it is damaged: download it or save the model again",
            ) from None
        if outside:
            raise UserError(
                f"{index} names weights outside of its folder ({min(outside)[:80]!r})",
                "do not trust it; put the files beside it, and their names into it",
            )


def without_kernels(name: str, config: dict[str, Any], *, trusted: bool) -> dict[str, Any]:
    """Return a config no part of which asks for a kernel from the hub, which is code.

    Args:
        name: of the checkpoint, for messages.
        config: content of its `config.json`.
        trusted: whether it may.

    Raises:
        UserError: it does and may not.
    """
    for key, value in () if trusted else _named(config):
        if key.endswith(_IMPLEMENTATION) and "/" in str(value):
            raise UserError(
                f"{name} asks for code from the hub ({key}={str(value)[:80]!r})",
                "read it, then pass --trust-remote-code",
            )
    return config


def _is_within(file: str) -> bool:
    path = PurePath(file)
    return bool(file) and not path.is_absolute() and ".." not in path.parts


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _named(value)
