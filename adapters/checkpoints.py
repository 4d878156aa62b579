"""Finds where a checkpoint is, and turns what goes wrong with it into one line.

Use:

    source = find_source("EleutherAI/pythia-70m")
    with source.reading(), source.explained():
        AutoModelForCausalLM.from_pretrained(source.location, **source.arguments)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchbench.adapters.bundled import find_bundled
from patchbench.adapters.gguf_files import calm_gguf, find_gguf, local_path
from patchbench.adapters.trust import check_shards
from patchbench.common import UserError, parse_json

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
# What configs call the number of layers; one that is off by a zero would be built for hours.
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 9999
# Seconds to wait for the hub before it counts as out of reach.
_PATIENCE = 5.0


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
    def reading(self) -> Iterator[None]:
        """Keep transformers quiet, and what it parses at hand, while several parts are loaded."""
        with quiet_transformers(), calm_gguf() if "gguf_file" in self.arguments else nullcontext():
            yield

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

    def config(self) -> dict[str, Any]:
        """Return the content of its `config.json`; empty for a `.gguf` file.

        Raises:
            UserError: it cannot be read.
        """
        from transformers import PreTrainedConfig

        if "gguf_file" in self.arguments:
            return {}
        with self.explained("config"):
            content, _ = PreTrainedConfig.get_config_dict(self.location, **self.arguments)
        return content

    def _reason(self, error: Exception, what: str) -> UserError:
        text = " ".join(str(error).split()) or type(error).__name__
        first = text[:160] + ("…" if len(text) > 160 else "")
        if "trust_remote_code" in text:
            return UserError(
                f"{self.name} brings code of its own", "read it, then pass --trust-remote-code"
            )
        if isinstance(error, ImportError):
            remedy = 'pip install "patchbench[gguf]"' if "gguf" in text.lower() else first
            return UserError(f"{self.name} needs a package that is missing", remedy)
        if "Unrecognized model" in text:
            return UserError(
                f"{self.name}: config.json names no model_type that transformers knows",
                "save it in transformers' format, or in mamba-ssm's",
            )
        if "Unrecognized configuration class" in text:
            return UserError(
                f"{self.name} is not a causal language model",
                "a decoder is needed, such as gpt2, llama or mamba",
            )
        if "not supported" in text or "does not recognize this architecture" in text:
            return UserError(f"{self.name}: {first}", "upgrade transformers, or take another model")
        if "ignore_mismatched_sizes" in text:
            return UserError(
                f"{self.name}: the weights have other shapes than config.json says",
                "the files do not belong together",
            )
        if self.is_local:
            return UserError(
                f"{self.name}: the {what} cannot be read ({type(error).__name__}: {first})",
                "the files are damaged or incomplete: download or save them again",
            )
        if "gated repo" in text:
            return UserError(f"{self.name} is gated", "ask for access, then `hf auth login`")
        return UserError(
            f"{self.name}: the hub does not give the {what} ({first})",
            "check the network; a folder is given as ./NAME",
        )


def find_source(name: str) -> Source:
    """Return where `name` is.

    Raises:
        UserError: it is neither a folder with a checkpoint, nor a `.gguf` file, nor a bundled
            model, nor a hub id.
    """
    path = local_path(name)
    if name.endswith(".gguf"):
        file = find_gguf(name)
        return Source(
            name=name,
            location=str(file.parent),
            arguments={"gguf_file": file.name},
            note=f"{file.name}: quantised weights, expanded to full precision",
        )
    if path.is_dir() and name:
        return _folder(name, path)
    if (model := find_bundled(name)) is not None:
        return _folder(name, model.folder)
    if path.is_file():
        raise UserError(f"{name} is a file", "give the folder of the checkpoint, or a .gguf file")
    if not name.strip() or name.startswith((".", "/", "~")) or not _is_hub_id(name):
        raise UserError(f"there is no model at {name!r}", "give a folder, a .gguf file or a hub id")
    return _hub(name)


def _is_hub_id(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return _HUB_ID.fullmatch(name) is not None


def find_tokenizer(name: str) -> Source:
    """Return where the tokenizer `name` is: as `find_source`, but a folder needs no weights."""
    path = local_path(name)
    if not name.strip() or not path.is_dir():
        source = find_source(name)
    else:
        source = Source(name=name, location=str(path), has_tokenizer=_has_tokenizer(path))
    if not source.has_tokenizer:
        raise UserError(f"{name} has no tokenizer", f"one of {', '.join(_TOKENIZERS)} is needed")
    return source


def _hub(name: str) -> Source:
    """Return a hub model, after one question to the hub: the loader's retries take a minute.

    Raises:
        UserError: the hub has no such model, or is out of reach and the model is not in the cache.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    def cached(file: str) -> bool:
        return isinstance(try_to_load_from_cache(name, file), str)

    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else None
    there: set[str] | None = None
    if reason is None:
        try:
            info = HfApi().model_info(name, timeout=_PATIENCE)
            there = {file.rfilename for file in info.siblings or ()}
        except RepositoryNotFoundError:
            raise UserError(
                f"the hub has no model {name!r} that you may read",
                "check the name, log in with `hf auth login`, or give a folder as ./NAME",
            ) from None
        except Exception as error:
            # The client changes its HTTP library between versions; other errors are the loader's.
            kinds = {kind.__name__ for kind in type(error).__mro__}
            if kinds & {"TransportError", "ConnectionError", "Timeout"}:
                reason = "the hub cannot be reached"
    if reason is None:
        # Without its files transformers makes a tokenizer up.
        words = there is None or bool(there & set(_TOKENIZERS))
        return Source(name=name, location=name, has_tokenizer=words)
    if not cached("config.json"):
        raise UserError(
            f"{name} is not in the hub's cache, and {reason}",
            "check the name and the network, or give a folder (./NAME) or a .gguf file",
        )
    return Source(
        name=name,
        location=name,
        arguments={"local_files_only": True},
        has_tokenizer=any(map(cached, _TOKENIZERS)),
    )


def _has_tokenizer(path: Path) -> bool:
    return any((path / file).is_file() for file in _TOKENIZERS)


def _folder(name: str, path: Path) -> Source:
    config = path / "config.json"
    if not config.is_file():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        remedy = (
            f"give the file {path / inside[0]}" if inside else "a checkpoint's folder is needed"
        )
        raise UserError(f"{name} has no config.json", remedy)
    try:
        content = parse_json(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config} is not JSON ({error})", "save the checkpoint again") from None
    if not isinstance(content, dict):
        raise UserError(f"{config} is no config", "it holds no names and values: save it again")
    for key in _DEPTHS:
        if isinstance(depth := content.get(key), int) and depth > _MOST_LAYERS:
            raise UserError(f"{config} asks for {key}={depth}", f"at most {_MOST_LAYERS} are built")
    if not any(True for pattern in _WEIGHTS for _ in path.glob(pattern)):
        raise UserError(
            f"{name} has no weights",
            "model.safetensors or pytorch_model.bin is needed beside config.json",
        )
    check_shards(path)
    if content.get("is_encoder_decoder"):
        raise UserError(
            f"{name} is an encoder-decoder model ({content.get('model_type')})",
            "patchbench measures causal language models",
        )
    return Source(name=name, location=str(path), has_tokenizer=_has_tokenizer(path))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' (and accelerate's) bars and advice, and put everything back."""
    from logging import ERROR, getLogger

    from transformers.utils import logging

    accelerate = getLogger("accelerate")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    own = accelerate.level
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    accelerate.setLevel(ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        accelerate.setLevel(own)
        if bars:
            logging.enable_progress_bar()
