"""Architectures as Hugging Face models, and where in any model its components are.

Use:

    from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, load_model

    loaded = load_model("EleutherAI/pythia-70m")
    model = MixerLMForCausalLM(MixerLMConfig.preset("mamba", width=64, vocab_size=8196))

Everything is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "HOOK_MAPS": "hook_map",
    "HookMap": "hook_map",
    "HookPoint": "hook_map",
    "LoadedModel": "loading",
    "MIXERS": "mixers",
    "MixerLMConfig": "config",
    "MixerLMForCausalLM": "model",
    "MixerLMModel": "model",
    "ModelInfo": "listing",
    "PRESETS": "presets",
    "hook_map_for": "hook_map",
    "instrument": "twins",
    "list_models": "listing",
    "load_model": "loading",
    # `probe` names the module as well: the function is patchbench.adapters.probe.probe.
    "register_auto_classes": "model",
    "register_hook_map": "hook_map",
    "restore": "twins",
}

__all__ = [
    "HOOK_MAPS",
    "MIXERS",
    "PRESETS",
    "HookMap",
    "HookPoint",
    "LoadedModel",
    "MixerLMConfig",
    "MixerLMForCausalLM",
    "MixerLMModel",
    "ModelInfo",
    "hook_map_for",
    "instrument",
    "list_models",
    "load_model",
    "register_auto_classes",
    "register_hook_map",
    "restore",
]

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig
    from patchbench.adapters.hook_map import (
        HOOK_MAPS,
        HookMap,
        HookPoint,
        hook_map_for,
        register_hook_map,
    )
    from patchbench.adapters.listing import ModelInfo, list_models
    from patchbench.adapters.loading import LoadedModel, load_model
    from patchbench.adapters.mixers import MIXERS
    from patchbench.adapters.model import (
        MixerLMForCausalLM,
        MixerLMModel,
        register_auto_classes,
    )
    from patchbench.adapters.presets import PRESETS
    from patchbench.adapters.twins import instrument, restore


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'patchbench.adapters' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"patchbench.adapters.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
