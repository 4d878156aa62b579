"""Checkpoints in the original format of mamba-ssm, as `state-spaces/mamba-130m` has it.

Use:

    original = read_original(source.name, config)     # None where it is of another format
    model = original.model_class.from_pretrained(location, **original.arguments)
    notes += original.finish(model)

The format's `config.json` has `d_model`, `n_layer`, `vocab_size`, `ssm_cfg` and no `model_type`. It
is the configuration of mamba-ssm's `MambaLMHeadModel`; transformers has the same computation under
other names. The vocabulary is padded to a multiple there; the added rows stand for no token, and
are cut off here, so that they get no probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbench.adapters.vocabulary import cut_rows
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# What all of the released checkpoints were trained with; they bring no tokenizer.
TOKENIZER = "EleutherAI/gpt-neox-20b"

# transformers' name of the embedding; without the mapping it would be random without a word.
_KEYS = {r"backbone\.embedding\.": "backbone.embeddings."}
_KNOWN = {
    *("d_model", "d_intermediate", "n_layer", "vocab_size", "ssm_cfg", "attn_layer_idx"),
    *("attn_cfg", "rms_norm", "residual_in_fp32", "fused_add_norm", "pad_vocab_size_multiple"),
    *("tie_embeddings", "tokenizer", "architectures", "torch_dtype", "dtype"),
}
# In `ssm_cfg`: how weights are drawn and which kernel runs changes nothing once they are there.
_WITHOUT_EFFECT = {
    *("layer", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range"),
    *("conv_init", "use_fast_path", "use_mem_eff_path"),
}
_SHARED = {
    "d_conv": ("conv_kernel", 4),
    "expand": ("expand", 2),
    "conv_bias": ("use_conv_bias", True),
    "bias": ("use_bias", False),
}
# By layer kind: mamba-ssm's name to transformers' and mamba-ssm's default.
_NAMES: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    "Mamba1": {
        **_SHARED,
        "d_state": ("state_size", 16),
        "dt_rank": ("time_step_rank", "auto"),
    },
    "Mamba2": {
        **_SHARED,
        "d_state": ("state_size", 128),
        "headdim": ("head_dim", 64),
        "ngroups": ("n_groups", 1),
        "chunk_size": ("chunk_size", 256),
        "dt_limit": ("time_step_limit", (0.0, math.inf)),
    },
}
# The only values that transformers' classes compute.
_ONLY: Mapping[str, Mapping[str, Any]] = {
    "Mamba1": {},
    "Mamba2": {"d_ssm": None, "D_has_hdim": False, "rmsnorm": True, "norm_before_gate": False},
}


@dataclass(frozen=True, kw_only=True)
class Original:
    """A checkpoint of that format, and what transformers needs to load it.

    Attributes:
        model_class: transformers' class.
        config: its config, with the padded vocabulary that the weights have.
        vocab_size: tokens that exist.
        tokenizer: name of the tokenizer it was trained with.
        note: what was converted.
    """

    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    vocab_size: int
    tokenizer: str
    note: str

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `from_pretrained`."""
        return {"config": self.config, "key_mapping": _KEYS}

    def finish(self, model: PreTrainedModel) -> list[str]:
        """Cut the vocabulary's padding off a loaded model; return what was converted, in words.

        It is transformers' from now on: saved, it would get the original's names back, which no
        config says.
        """
        vars(model).pop("_weight_conversions", None)
        return [self.note, *cut_rows(model, self.vocab_size)]


def read_original(name: str, config: Mapping[str, Any]) -> Original | None:
    """Return how to load a checkpoint of mamba-ssm's format; None where it is of another.

    Args:
        name: of the checkpoint, for messages.
        config: content of its `config.json`.

    Raises:
        UserError: it has layers or settings that transformers' classes do not compute.
    """
    return _Conversion(name, config).run() if is_original(config) else None


def is_original(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` is of mamba-ssm's format."""
    return not config.get("model_type") and {"d_model", "n_layer", "vocab_size"} <= config.keys()


@dataclass(frozen=True)
class _Conversion:
    name: str
    config: Mapping[str, Any]
    remedy: str = "load it with mamba-ssm on a GPU, or take another checkpoint"

    def run(self) -> Original:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

        self._check()
        ssm = self.config.get("ssm_cfg") or {}
        if not isinstance(ssm, Mapping):
            raise UserError(f"{self.name}: ssm_cfg is {ssm!r}", "it holds names and values")
        kind = str(ssm.get("layer", "Mamba1"))
        if kind not in _NAMES:
            raise UserError(f"{self.name}: ssm_cfg asks for layer {kind!r}", self.remedy)
        known = {**_NAMES[kind], **_ONLY[kind]}.keys() | _WITHOUT_EFFECT
        if unknown := sorted(ssm.keys() - known):
            raise UserError(f"{self.name}: ssm_cfg has {unknown[0]!r}, unknown here", self.remedy)
        for setting, value in _ONLY[kind].items():
            if ssm.get(setting, value) != value:
                raise UserError(f"{self.name}: {setting}={ssm[setting]} in ssm_cfg", self.remedy)
        width = self._integer("d_model")
        tokens = self._integer("vocab_size")
        multiple = self._integer("pad_vocab_size_multiple", 8)
        settings: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": self._integer("n_layer"),
            "vocab_size": -(-tokens // multiple) * multiple,
            "layer_norm_epsilon": 1e-5,
            "residual_in_fp32": bool(self.config.get("residual_in_fp32", True)),
            "tie_word_embeddings": bool(self.config.get("tie_embeddings", True)),
        }
        for theirs, (ours, default) in _NAMES[kind].items():
            settings[ours] = ssm.get(theirs, default)
        if kind == "Mamba2":
            settings["num_heads"] = int(settings["expand"] * width) // settings["head_dim"]
        try:
            built = (MambaConfig if kind == "Mamba1" else Mamba2Config)(**settings)
        except (TypeError, ValueError, ZeroDivisionError, StrictDataclassError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            raise UserError(
                f"{self.name}: config.json does not fit together ({reason})",
                "the file is damaged: download it again",
            ) from error
        return Original(
            model_class=MambaForCausalLM if kind == "Mamba1" else Mamba2ForCausalLM,
            config=built,
            vocab_size=tokens,
            tokenizer=str(self.config.get("tokenizer") or TOKENIZER),
            note=f"{self.name}: a {kind} checkpoint of mamba-ssm's format, loaded into "
            f"transformers' {'Mamba' if kind == 'Mamba1' else 'Mamba2'}ForCausalLM",
        )

    def _check(self) -> None:
        config = self.config
        if layers := config.get("attn_layer_idx"):
            raise UserError(
                f"{self.name} is a hybrid with attention in layers {layers}, which transformers "
                "has no class for",
                "take a checkpoint without attention, or a hybrid of transformers' own (jamba, "
                "bamba, zamba2)",
            )
        if config.get("d_intermediate"):
            raise UserError(
                f"{self.name} has MLPs (d_intermediate={config['d_intermediate']})", self.remedy
            )
        if not config.get("rms_norm", True):
            raise UserError(f"{self.name} has LayerNorm (rms_norm=false)", self.remedy)
        # `get_config_dict` adds private names of its own.
        public = {name for name in config if not name.startswith(("_", "transformers"))}
        if unknown := sorted(public - _KNOWN):
            raise UserError(
                f"{self.name}: config.json has {unknown[0]!r}, unknown here", self.remedy
            )

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self.name}: config.json has {name}={value!r}", "an integer > 0")
        return value
