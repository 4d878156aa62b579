"""The one config of the MixerLM family: which mixer each layer has, and what surrounds it.

Use:

    MixerLMConfig.preset("mamba", width=64, layers=2, vocab_size=8196, d_conv=2)
    MixerLMConfig.preset("mamba,attention", width=64, layers=4, vocab_size=26, num_heads=2)
    MixerLMConfig(
        vocab_size=26, hidden_size=64, positions="learned",
        mixers=["attention", {"name": "mamba", "d_conv": 0, "mlp": "none", "norm": "rmsnorm"}],
    )

A layer is a mixer's name, or a dict with "name", any of the mixer's options, and "mlp" and "norm"
where the layer's block differs from the config's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from transformers import GenerationConfig
from transformers.configuration_utils import PreTrainedConfig

from patchbench.adapters.mixers import MIXERS, MixerOptions
from patchbench.adapters.settings import check_sizes, check_types, fits
from patchbench.common import UserError, near_names

DEFAULT_POSITIONS = 1024
MLPS = ("gelu", "none")
NORMS = ("layernorm", "rmsnorm")
POSITIONS = ("none", "learned", "rope")
INITS = ("normal", "pytorch")
DTYPES = ("float32", "bfloat16", "float16", "float64")

# Taken by every transformers config although they are no fields of it.
_COMMON_KEYS = {
    "attn_implementation", "experts_implementation", "gradient_checkpointing", "model_type",
    "name_or_path", "num_labels", "output_attentions", "per_layer_config", "torch_dtype",
    "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id",
    "quantization_config",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer is made of.

    Args:
        mixer: the mixer's name.
        options: the mixer's options, checked.
        mlp: "gelu", or "none" for a block without one.
        norm: "layernorm" or "rmsnorm".
    """

    mixer: str
    options: MixerOptions
    mlp: str
    norm: str


class MixerLMConfig(PreTrainedConfig):
    """Config of `MixerLMModel` and `MixerLMForCausalLM`.

    Args:
        vocab_size: number of tokens.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of layers; the length of `mixers` when left out.
        mixers: one entry per layer (see the module's docstring); attention everywhere when None.
        mixer_options: options by mixer name, for all layers with that mixer.
        mlp: "gelu" (width → 4 width → width, with biases) or "none".
        norm: "layernorm" or "rmsnorm", before mixer and MLP.
        final_norm: the norm before the language model head.
        norm_eps: epsilon of all norms.
        positions: "none", "learned" (added to the embedding) or "rope" (in attention).
        max_position_embeddings: longest sequence where positions or filters are learned (1024
            when left out); None where nothing limits the length.
        rope_theta: base of the rotary frequencies.
        num_heads: heads of every mixer that has them, unless a layer says otherwise.
        num_kv_heads: key and value heads of attention (grouped queries); `num_heads` when None.
        init: "normal" (Linears N(0, initializer_range), biases 0, the residual projections scaled
            by 1/√(2 layers)) or "pytorch" (its default for Linears). Embeddings are normal in both.
        initializer_range: standard deviation of the normal initialisation.
        tie_word_embeddings: whether the head's weight is the embedding's.
        use_cache: whether a forward pass without gradients returns a cache by default.

    Raises:
        UserError: anything that no model could be built from, or an unknown argument.
    """

    model_type = "mixer_lm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]
    attribute_map: ClassVar[dict[str, str]] = {
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
    }

    vocab_size: int = 50_257
    hidden_size: int = 64
    num_hidden_layers: int | None = None
    mixers: list[str | dict[str, Any]] | None = None
    mixer_options: dict[str, dict[str, Any]] | None = None
    mlp: str = "gelu"
    norm: str = "layernorm"
    final_norm: str = "layernorm"
    norm_eps: float = 1e-5
    positions: str = "none"
    max_position_embeddings: int | None = None
    rope_theta: float = 10_000.0
    num_heads: int | None = None
    num_kv_heads: int | None = None
    init: str = "normal"
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in what was left out and check the whole; see the class for errors."""
        self._check_keywords(kwargs)
        own = MixerLMConfig.__annotations__
        values = {n: v for n, v in vars(self).items() if n in own}
        check_types("", MixerLMConfig, values)
        check_sizes("", values)
        self._check_containers()
        self._check_dtype(kwargs.get("torch_dtype") if self.dtype is None else self.dtype)
        given: list[str | dict[str, Any]] = ["attention"] * (self.num_hidden_layers or 2)
        self.mixers = given if self.mixers is None else list(self.mixers)
        if self.num_hidden_layers is None:
            self.num_hidden_layers = len(self.mixers)
        super().__post_init__(**kwargs)
        self._check_shape()
        layers = self.layers()
        limited = self.positions == "learned" or any(la.options.limits_length for la in layers)
        if limited and self.max_position_embeddings is None:
            self.max_position_embeddings = DEFAULT_POSITIONS
        for layer in layers:
            layer.options.check(self)
        self._check_heads(layers)

    @classmethod
    def preset(
        cls,
        name: str,
        /,
        *,
        width: int = 64,
        layers: int | None = None,
        vocab_size: int,
        **options: Any,
    ) -> Self:
        """Return the config of a named architecture.

        Args:
            name: a preset, a registered mixer, or several joined by commas, which then alternate.
            width: width of the residual stream.
            layers: number of layers, filled by repeating the preset's pattern; 2, or the length
                of the pattern where that is longer.
            vocab_size: number of tokens.
            options: fields of the config, or options of the mixers in the preset (`d_conv=2`).

        Raises:
            UserError: unknown preset or option, or a config that no model can be built from.
        """
        from patchbench.adapters.presets import preset_arguments

        return cls(**preset_arguments(name, width, layers, vocab_size, options))

    def layers(self) -> list[Layer]:
        """Return what each layer is made of."""
        return [self.layer(index) for index in range(len(self.mixers or []))]

    def options_for(self, layer: int) -> MixerOptions:
        """Return the options of layer number `layer`, an instance of its mixer's `Options`."""
        return self.layer(layer).options

    def layer(self, index: int) -> Layer:
        """Return what layer number `index` is made of."""
        assert self.mixers is not None
        entry = self.mixers[index]
        given = {"name": entry} if isinstance(entry, str) else dict(entry)
        name, mlp = given.pop("name"), given.pop("mlp", self.mlp)
        norm = given.pop("norm", self.norm)
        _one_of("mlp", mlp, MLPS)
        _one_of("norm", norm, NORMS)
        kind = MIXERS[name].Options
        known = {field.name for field in fields(kind)}
        shared = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        values = {key: value for key, value in shared.items() if key in known and value is not None}
        values |= (self.mixer_options or {}).get(name, {}) | given
        for key in values:
            if key not in known:
                raise UserError(
                    f"layer {index}: mixer {name!r} has no option {key!r}",
                    near_names(key, known | {"mlp", "norm"}),
                )
        check_types(f"layer {index}: {name}", kind, values)
        check_sizes(f"layer {index}: {name}", values)
        return Layer(mixer=name, options=kind(**values), mlp=mlp, norm=norm)

    def _check_keywords(self, kwargs: dict[str, Any]) -> None:
        # transformers keeps unknown arguments as attributes: a typo would silently do nothing.
        allowed = _COMMON_KEYS | set(GenerationConfig().to_dict())
        for key in kwargs:
            if key not in allowed and not key.startswith("_"):
                known = [field.name for field in fields(type(self))]
                raise UserError(f"MixerLMConfig has no argument {key!r}", near_names(key, known))

    def _check_dtype(self, dtype: object) -> None:
        found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if found is None and dtype is None:
            return
        if not (isinstance(found, torch.dtype) and found.is_floating_point):
            raise UserError(f"dtype is {dtype!r}", near_names(str(dtype), DTYPES))

    def _check_tokens(self) -> None:
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            if value is None:
                continue
            several = name == "eos_token_id" and isinstance(value, list | tuple)
            tokens: list[Any] = list(value) if several else [value]
            for token in tokens:
                if not fits(token, int) or not 0 <= token < self.vocab_size:
                    raise UserError(
                        f"{name} is {value!r}", f"give a token from 0 to {self.vocab_size - 1}"
                    )

    def _check_containers(self) -> None:
        if self.mixers is not None and not isinstance(self.mixers, list | tuple):
            raise UserError(f"mixers is {self.mixers!r}", "give a list with one entry per layer")
        for index, entry in enumerate(self.mixers or []):
            name = entry.get("name") if isinstance(entry, dict) else entry
            if not isinstance(name, str):
                raise UserError(
                    f"layer {index} names no mixer: {entry!r}", 'give "mamba" or {"name": "mamba"}'
                )
        options = {} if self.mixer_options is None else self.mixer_options
        if not isinstance(options, dict) or not all(isinstance(v, dict) for v in options.values()):
            raise UserError(
                f"mixer_options is {options!r}", 'give options by mixer: {"mamba": {"d_conv": 2}}'
            )

    def _check_shape(self) -> None:
        assert self.mixers is not None
        if self.num_hidden_layers != len(self.mixers) or not self.mixers:
            raise UserError(
                f"num_hidden_layers is {self.num_hidden_layers}, mixers has {len(self.mixers)}",
                "name one mixer per layer, at least one",
            )
        for name in ("vocab_size", "hidden_size", "max_position_embeddings"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value!r}", "give a whole number of at least 1")
        for name in ("norm_eps", "rope_theta", "initializer_range"):
            if getattr(self, name) < 0 or (name == "rope_theta" and self.rope_theta == 0):
                raise UserError(f"{name} is {getattr(self, name)!r}", "give a positive number")
        for name, known in (
            ("mlp", MLPS), ("norm", NORMS), ("final_norm", NORMS), ("positions", POSITIONS),
            ("init", INITS),
        ):  # fmt: skip
            _one_of(name, getattr(self, name), known)
        self._check_tokens()
        used = {e if isinstance(e, str) else e.get("name") for e in self.mixers}
        for name in self.mixer_options or {}:
            if name not in used:
                raise UserError(
                    f"mixer_options names {name!r}, which no layer uses",
                    near_names(name, [str(u) for u in used]),
                )

    def _check_heads(self, layers: list[Layer]) -> None:
        for name in ("num_heads", "num_kv_heads"):
            value = getattr(self, name)
            if value is None:
                continue
            if not any(name in {f.name for f in fields(layer.options)} for layer in layers):
                mixers = ", ".join(sorted({layer.mixer for layer in layers}))
                raise UserError(f"{name} is {value} but no layer has heads", f"mixers: {mixers}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}", near_names(str(value), known))
