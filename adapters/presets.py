"""The architectures by name, with the settings of the paper (arXiv 2505.15105, appendix).

A preset is a pattern of layers that repeats to the wanted depth, and config settings. Several
names joined by commas give a hybrid, whose pattern is theirs one after the other.

Use:

    preset_arguments("mamba,attention", width=64, layers=4, vocab_size=26, options={})
    sorted(PRESETS)
"""

from dataclasses import dataclass, field, fields
from typing import Any

from patchbench.adapters.mixers import MIXERS
from patchbench.common import UserError, near_names

# Fields that have an argument of their own.
_NAMED = {"mixers", "num_hidden_layers", "hidden_size", "vocab_size"}
# Blocks of the Mamba authors: RMSNorm, mixer, residual; no MLP.
_BARE: dict[str, Any] = {"mlp": "none", "norm": "rmsnorm"}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named architecture.

    Args:
        pattern: layers as `MixerLMConfig.mixers` takes them, repeated to the wanted depth.
        settings: config fields that differ from the defaults.
    """

    pattern: tuple[dict[str, Any], ...]
    settings: dict[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
    "attention": Preset(pattern=({"name": "attention"},), settings={"positions": "learned"}),
    "based": Preset(pattern=({"name": "base_conv", "d_conv": 3}, {"name": "linear_attention"})),
    "based_long": Preset(
        pattern=({"name": "base_conv", "d_conv": "long"}, {"name": "linear_attention"})
    ),
    "base_conv": Preset(
        pattern=({"name": "base_conv", "d_conv": 3}, {"name": "base_conv", "d_conv": "long"})
    ),
    "hyena": Preset(pattern=({"name": "hyena"},)),
    "h3": Preset(pattern=({"name": "h3"},)),
    "mamba": Preset(pattern=({"name": "mamba", **_BARE},)),
    "mamba_noconv": Preset(pattern=({"name": "mamba", "d_conv": 0, **_BARE},)),
    "mamba2": Preset(pattern=({"name": "mamba2", **_BARE},)),
    "delta_net": Preset(pattern=({"name": "delta_net"},)),
    "delta_net_noconv": Preset(pattern=({"name": "delta_net", "d_conv": 0},)),
    "gated_delta_net": Preset(pattern=({"name": "gated_delta_net"},)),
}


def preset_arguments(
    name: str, width: int, layers: int | None, vocab_size: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `MixerLMConfig` for a preset; see `MixerLMConfig.preset`.

    Raises:
        UserError: unknown preset, or an option that neither the config nor a mixer has.
    """
    from patchbench.adapters.config import MixerLMConfig

    if not isinstance(name, str):
        raise UserError(f"the preset is {name!r}", near_names(str(name), PRESETS))
    parts = [_preset(part.strip()) for part in name.split(",")]
    pattern = [dict(layer) for part in parts for layer in part.pattern]
    depth = max(2, len(pattern)) if layers is None else layers
    if not isinstance(depth, int) or depth < 1:
        raise UserError(f"layers is {depth!r}", "give a whole number of at least 1")
    chosen = [dict(pattern[index % len(pattern)]) for index in range(depth)]
    # In a hybrid the first part that sets something sets it for all.
    settings = {key: value for part in reversed(parts) for key, value in part.settings.items()}
    own = MixerLMConfig.__annotations__  # transformers' would be without effect
    config_fields = {f.name for f in fields(MixerLMConfig) if f.name in own} - _NAMED
    for key, value in options.items():
        if key in config_fields:
            settings[key] = value
            for layer in chosen if key in _BARE else ():
                layer.pop(key, None)
            continue
        takers = [layer for layer in chosen if key in _option_names(layer["name"])]
        if not takers:
            known = {n for layer in chosen for n in _option_names(layer["name"])} | config_fields
            raise UserError(f"preset {name!r} has no option {key!r}", near_names(key, known))
        for layer in takers:
            layer[key] = value
    return {"hidden_size": width, "vocab_size": vocab_size, "mixers": chosen, **settings}


def _preset(name: str) -> Preset:
    if name in PRESETS:
        return PRESETS[name]
    if name in MIXERS:
        return Preset(pattern=({"name": name},))
    raise UserError(f"unknown preset {name!r}", near_names(name, {*PRESETS, *MIXERS}))


def _option_names(mixer: str) -> set[str]:
    return {f.name for f in fields(MIXERS[mixer].Options)}
