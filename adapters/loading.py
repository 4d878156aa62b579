"""Loads a causal language model from anywhere, ready to be patched.

Use:

    loaded = load_model("EleutherAI/pythia-70m")            # hub id
    loaded = load_model("./my_model", dtype="bfloat16")     # folder in transformers' format
    loaded = load_model("SmolLM2-135M-Instruct.Q4_1.gguf")  # file
    loaded = load_model(model)                              # a PreTrainedModel, left as it is
    loaded.model, loaded.tokenizer, loaded.hook_map, loaded.notes

Nothing that a checkpoint brings along is executed unless `trust_remote_code` is set, weights come
from safetensors or with `weights_only=True`, and a checkpoint that lacks a weight or holds a NaN
is refused: transformers would fill the gap with random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from patchbench.adapters.checkpoints import Source, find_source, quiet_transformers
from patchbench.adapters.hook_map import HookMap, hook_map_for
from patchbench.common import UserError, near_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
DEVICES = ("auto", "cpu", "cuda", "mps")
# Config attributes that bound the length of a document, by family.
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model and what is needed to patch it.

    Attributes:
        model: in eval mode, unless it was handed over as an object.
        tokenizer: None where the model brings none.
        hook_map: where its components are.
        name: as it was asked for.
        notes: what the user should know.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    hook_map: HookMap
    name: str
    notes: list[str] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """The dtype of most parameters, as in "float32"."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Where the embedding is."""
        return str(self.model.get_input_embeddings().weight.device)

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the embedding knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """The longest document, or None where nothing bounds it."""
        config = self.model.config
        for name in _LENGTHS:
            value = getattr(config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None


def load_model(
    model: str | Path | PreTrainedModel,
    *,
    dtype: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    hook_map: HookMap | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a causal language model, map its components and check that it is causal.

    Args:
        model: hub id, folder, `.gguf` file, or a `PreTrainedModel`, whose dtype, device and mode
            stay as they are.
        dtype: one of `DTYPES`; "auto" takes what the checkpoint holds.
        device: one of `DEVICES`, or "cuda:1"; "auto" takes CUDA, then MPS, then the CPU.
        tokenizer: hub id, folder or object, where the model brings none or another is wanted.
        hook_map: where the components are, for models that neither table nor inspection knows.
        trust_remote_code: whether code in the checkpoint may run.

    Raises:
        UserError: nothing there, not reachable, damaged, not a causal language model, or a dtype
            or device that does not exist.
    """
    from transformers import PreTrainedModel

    from patchbench.adapters.probe import check_causal

    if isinstance(model, PreTrainedModel):
        name = str(model.config.name_or_path or type(model).__name__)
        loaded = LoadedModel(
            model=model,
            tokenizer=_tokenizer(tokenizer, None, trust_remote_code),
            hook_map=hook_map or hook_map_for(model),
            name=name,
        )
    else:
        chosen_dtype, place = _dtype(dtype), _device(device)
        source = find_source(str(model))
        notes: list[str] = []
        network = _load_weights(source, chosen_dtype, trust_remote_code, notes)
        _refuse_nonfinite(network, source)
        loaded = LoadedModel(
            model=network.to(place).eval(),  # pyright: ignore[reportArgumentType]
            tokenizer=_tokenizer(tokenizer, source, trust_remote_code),
            hook_map=hook_map or hook_map_for(network),
            name=str(model),
            notes=notes,
        )
    check_causal(loaded)
    return loaded


def _load_weights(
    source: Source, dtype: torch.dtype | str, trust_remote_code: bool, notes: list[str]
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    from patchbench.adapters.model import register_auto_classes

    register_auto_classes()
    with quiet_transformers(), source.explained():
        # Any: the stub hides that the pair is returned on request.
        answer: Any = AutoModelForCausalLM.from_pretrained(
            source.location,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **source.arguments,
        )
    model, info = answer
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{source.name}: the checkpoint lacks {len(missing)} weights, among them {missing[0]}",
            "they would be random; the files are incomplete or of another architecture",
        )
    if mismatched := sorted(str(item) for item in info.get("mismatched_keys", ())):
        raise UserError(
            f"{source.name}: {mismatched[0]} has another shape than config.json says",
            "the files do not belong together",
        )
    if unused := sorted(info["unexpected_keys"]):
        notes.append(f"{len(unused)} weights of the checkpoint are not used, such as {unused[0]}")
    if source.note:
        notes.append(source.note)
    return model


def _refuse_nonfinite(model: PreTrainedModel, source: Source) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            raise UserError(
                f"{source.name}: weight {name} holds NaN or infinite values",
                "the checkpoint is damaged, or its training diverged",
            )


def _tokenizer(
    wanted: str | Path | PreTrainedTokenizerBase | None,
    source: Source | None,
    trust_remote_code: bool,
) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    if wanted is None:
        if source is None or not source.has_tokenizer:
            return None
        location, arguments, given = source.location, source.arguments, source
    elif isinstance(wanted, str | Path):
        given = find_source(str(wanted))
        location, arguments = given.location, given.arguments
    else:
        return wanted
    with quiet_transformers(), given.explained("tokenizer"):
        # Any: the declared return type is a private union.
        found: Any = AutoTokenizer.from_pretrained(
            location, trust_remote_code=trust_remote_code, **arguments
        )
    return found


def _dtype(name: str) -> torch.dtype | str:
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}", near_names(name, DTYPES))
    return "auto" if name == "auto" else getattr(torch, name)


def _device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not index.isdecimal()):
        raise UserError(f"unknown device {name!r}", near_names(name, DEVICES))
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name!r} is not there",
            f"PyTorch sees {torch.cuda.device_count()} CUDA devices",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' is not there", "use --device cpu")
    return torch.device(name)
