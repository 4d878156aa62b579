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

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from patchbench.adapters.checkpoints import Source, find_source, find_tokenizer, quiet_transformers
from patchbench.adapters.fla_models import require_fla
from patchbench.adapters.float32_parts import float32_names, float32_parts
from patchbench.adapters.hook_map import HookMap, hook_map_for
from patchbench.adapters.placing import check_device_map, device_of, dtype_of, moved, told_places
from patchbench.adapters.state_spaces import read_original
from patchbench.adapters.tokenizer_fit import check_same_ids, plain_text_notes
from patchbench.adapters.trust import without_kernels
from patchbench.adapters.twins import instrument
from patchbench.adapters.vocabulary import cut_padding
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Config attributes that bound the length of a document, by family.
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
# Tables that older versions stored with the weights, and that models compute by themselves now.
_TABLES = re.compile(r"(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$")


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
        """Where the embedding is, or computes if its weights are kept elsewhere."""
        embedding = self.model.get_input_embeddings()
        weight: Any = embedding.weight
        if weight.device.type == "meta":  # accelerate brings them from the CPU or the disk
            hook: Any = embedding._hf_hook
            return str(torch.device(hook.execution_device))
        return str(weight.device)

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the embedding knows."""
        weight: Any = self.model.get_input_embeddings().weight
        return int(weight.shape[0])

    @property
    def max_positions(self) -> int | None:
        """The longest document, or None where nothing bounds it."""
        config = self.model.config.get_text_config()
        for name in _LENGTHS:
            value = getattr(config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None


def load_model(
    model: str | Path | PreTrainedModel | torch.nn.Module,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    hook_map: HookMap | None = None,
    trust_remote_code: bool = False,
    with_tokenizer: bool = True,
) -> LoadedModel:
    """Load a causal language model, map its components, and check both by running it once.

    Args:
        model: hub id, folder, `.gguf` file, a module from token ids to logits with a `hook_map`
            (see `patchbench.adapters.wrapping`), or a `PreTrainedModel`, whose dtype, device, mode
            stay as they are (engines score it in eval mode and put its own back). Twins take the
            place of its recurrent mixers: `patchbench.adapters.restore(model)` undoes that.
        dtype: one of `placing.DTYPES`, by name or as PyTorch's; "auto" takes what the checkpoint
            holds.
        device: one of `placing.DEVICES`, "cuda:1", or PyTorch's; "auto" takes CUDA, then MPS, then
            the CPU.
        device_map: instead of `device`, how accelerate spreads a checkpoint over devices: one of
            `placing.DEVICE_MAPS`, or module names to devices ("cpu" and "disk" among them).
        tokenizer: hub id, folder or object, where the model brings none or another is wanted.
        hook_map: where the components are, for models that neither table nor inspection knows.
        trust_remote_code: whether code in the checkpoint may run.
        with_tokenizer: False where no words will be read, and none need be reachable.

    Raises:
        UserError: nothing there, not reachable, damaged, not a causal language model, a place of
            the HookMap that does not fire once, another model's tokenizer, or a dtype or device
            that does not exist.
    """
    from transformers import PreTrainedModel

    from patchbench.adapters.probe import check_model
    from patchbench.adapters.wrapping import wrap

    dtype, device = str(dtype).removeprefix("torch."), str(device)
    wanted, place = dtype_of(dtype), device_of(device)
    if isinstance(model, torch.nn.Module) and not isinstance(model, PreTrainedModel):
        model, hook_map = wrap(model, hook_map)
    check_device_map(device_map, device, is_object=isinstance(model, PreTrainedModel))
    notes: list[str] = []
    words, is_own = None, False
    if isinstance(model, PreTrainedModel):
        network, name = model, str(model.config.name_or_path or type(model).__name__)
        _check_object(model, dtype, device, notes)
        _refuse_nonfinite(network, name)
        if tokenizer is not None and with_tokenizer:
            words = _tokenizer(tokenizer, trust_remote_code)
            notes += cut_padding(network, words, change=False)
    elif isinstance(model, str | Path):
        source, name = find_source(str(model)), str(model)
        with source.reading():
            spread = {} if device_map is None else {"device_map": device_map}
            network, trained_with = _load_weights(
                source, wanted, place, trust_remote_code, notes, spread
            )
            _refuse_nonfinite(network, name)
            if with_tokenizer:
                words, is_own = _words(source, tokenizer, trained_with, trust_remote_code)
        if words is not None:
            # Of an original it is known already which rows are padding; a tokenizer that may be
            # another model's knows none.
            notes += cut_padding(network, words, change=is_own and trained_with is None)
        if device_map is None:
            network = moved(network, place)
    else:
        raise UserError(
            f"a {type(model).__name__} is no model",
            "give a hub id, a folder, a .gguf file or a transformers PreTrainedModel",
        )
    if hook_map is None:  # a map of one's own names places of the stock modules
        instrument(network)
    loaded = LoadedModel(
        model=network,
        tokenizer=words,
        hook_map=hook_map or hook_map_for(network),
        name=name,
        notes=notes,
    )
    with quiet_transformers():  # models without their fast kernels say so at their first pass
        loaded = replace(loaded, hook_map=check_model(loaded))
        return loaded if is_own else replace(loaded, notes=notes + plain_text_notes(loaded))


def _check_object(model: PreTrainedModel, dtype: str, device: str, notes: list[str]) -> None:
    """Refuse to change a model that somebody else holds."""
    own_dtype, own_device = str(model.dtype).removeprefix("torch."), model.device
    if dtype not in (own_dtype, "auto"):
        if dtype != "float32":
            raise UserError(
                f"the model object is {own_dtype}, not {dtype}", f"convert it first: .to({dtype})"
            )
        notes.append(f"the model object is {own_dtype} and is scored as it is")
    if device not in ("auto", own_device.type, str(own_device)):
        raise UserError(
            f"the model object is on {own_device}, not on {device}",
            f"move it first: model.to({device!r})",
        )


def _load_weights(
    source: Source,
    dtype: torch.dtype | str,
    device: torch.device,
    trust_remote_code: bool,
    notes: list[str],
    spread: Mapping[str, Any],
) -> tuple[PreTrainedModel, str | None]:
    """Return the model, and the name of its tokenizer where the format implies one.

    `device` is where it is going to run, and `spread` has the device_map if there is one.
    """
    from transformers import AutoModelForCausalLM, GgufConfig

    from patchbench.adapters.model import register_auto_classes

    register_auto_classes()
    config = without_kernels(source.name, source.config(), trusted=trust_remote_code)
    original = read_original(source.name, config)
    if not (trust_remote_code and "auto_map" in config):
        require_fla(source.name, config, device)
    # Any: the stub hides that the pair is returned on request.
    loader: Any = AutoModelForCausalLM if original is None else original.model_class
    further: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if original is not None:
        further = dict(original.arguments)
    if "gguf_file" in source.arguments:
        # Blocks of quantised weights could neither be trained nor saved.
        further["quantization_config"] = GgufConfig(dequantize=True)
    with source.explained(), float32_parts():
        model, info = loader.from_pretrained(
            source.location,
            dtype=dtype,
            weights_only=True,
            output_loading_info=True,
            **spread,
            **further,
            **source.arguments,
        )
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"{source.name}: the checkpoint lacks {len(missing)} weights, among them {missing[0]}",
            "they would be random; the files are incomplete, or of another architecture or size",
        )
    if mismatched := sorted(str(item) for item in info.get("mismatched_keys", ())):
        raise UserError(
            f"{source.name}: {mismatched[0]} has another shape than config.json says",
            "the files do not belong together",
        )
    if unused := sorted(key for key in info["unexpected_keys"] if not _TABLES.search(key)):
        raise UserError(
            f"{source.name}: the model has no place for {len(unused)} weights of the checkpoint, "
            f"among them {unused[0]}",
            "config.json is of another architecture or size; if they are not needed, load the "
            "model with transformers and pass the object",
        )
    if source.note:
        notes.append(source.note)
    notes += told_places(model)
    if kept := float32_names(model):
        notes.append(f"{', '.join(kept)} are kept in float32")
    if original is None:
        return model, None
    notes += original.finish(model)
    return model, original.tokenizer


def _refuse_nonfinite(model: PreTrainedModel, name: str) -> None:
    for path, weight in model.named_parameters():
        # Detached: a weight made in inference mode takes part in no other gradient mode.
        parameter = weight.detach()
        if parameter.device.type == "meta":  # kept on disk
            continue
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            raise UserError(
                f"{name}: weight {path} holds NaN or infinite values",
                "they exceed float16: use --dtype float32"
                if parameter.dtype == torch.float16
                else "the checkpoint is damaged, or its training diverged",
            )


def _words(
    source: Source,
    wanted: str | Path | PreTrainedTokenizerBase | None,
    trained_with: str | None,
    trust_remote_code: bool,
) -> tuple[PreTrainedTokenizerBase | None, bool]:
    """Return the tokenizer, and whether it is known to be the one that the model was trained with.

    Args:
        source: of the model.
        wanted: the tokenizer that was asked for.
        trained_with: the one that the checkpoint's format implies.
        trust_remote_code: whether code beside it may run.
    """
    if wanted is None:
        if source.has_tokenizer:
            return _tokenizer(source, trust_remote_code), True
        if trained_with is None:
            return None, False
        return _implied_tokenizer(trained_with, source.name, trust_remote_code), True
    words = _tokenizer(wanted, trust_remote_code)
    if not source.has_tokenizer:
        return words, False
    try:
        own = _tokenizer(source, trust_remote_code)
    except UserError:  # which may be why another one is wanted
        return words, False
    check_same_ids(words, own, source.name)
    return words, True


def _tokenizer(
    wanted: str | Path | Source | PreTrainedTokenizerBase, trust_remote_code: bool
) -> PreTrainedTokenizerBase:
    """Return a tokenizer: itself, from where it is named, or beside a checkpoint."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    if isinstance(wanted, PreTrainedTokenizerBase):
        return wanted
    if isinstance(wanted, str | Path):
        wanted = find_tokenizer(str(wanted))
    if not isinstance(wanted, Source):
        raise UserError(
            f"a {type(wanted).__name__} is no tokenizer",
            "give a hub id, a folder or a transformers tokenizer",
        )
    with wanted.reading(), wanted.explained("tokenizer"):
        # Any: the declared return type is a private union.
        found: Any = AutoTokenizer.from_pretrained(
            wanted.location, trust_remote_code=trust_remote_code, **wanted.arguments
        )
    return found


def _implied_tokenizer(wanted: str, name: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer that a checkpoint without one was trained with."""
    try:
        return _tokenizer(wanted, trust_remote_code)
    except UserError as error:
        raise UserError(
            f"{name} brings no tokenizer, and {error.what}",
            "check the network, or give --tokenizer, a folder or another hub id",
        ) from error
