"""The map of our own MixerLM: outer sites by module, inner ones from each mixer's hook points.

Use:

    hook_map = map_mixer_lm(model)
    hook_map.point(0, "conv_output").path       # "backbone.layers.0.mixer.hook_points.conv_output"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from patchbench.adapters.families import block_points, embed_point
from patchbench.adapters.hook_map import HookMap, HookPoint, path_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCKS = "backbone.layers"
# What an attention head reads, weighs and gives; other inner values are not split by head.
_BY_HEAD = {"q", "k", "v", "head_output"}


def map_mixer_lm(model: PreTrainedModel) -> HookMap:
    """Return the map of a `MixerLMForCausalLM`."""
    stack = model.get_submodule(BLOCKS)
    assert isinstance(stack, nn.ModuleList)
    points: dict[tuple[int | None, str], HookPoint] = {
        (None, "embed"): embed_point("backbone.embed")
    }
    for layer, block in enumerate(stack):
        path = f"{BLOCKS}.{layer}"
        has_mlp = isinstance(getattr(block, "mlp", None), nn.Module)
        points |= block_points(path, layer, mixer="mixer", mlp="mlp" if has_mlp else None)
        mixer = block.get_submodule("mixer")
        for component in mixer.get_submodule("hook_points")._modules:
            points[layer, component] = HookPoint(
                component=component,
                path=f"{path}.mixer.hook_points.{component}",
                io="output",
                layer=layer,
                heads=_heads(mixer, component),
            )
    return HookMap(
        model_type="mixer_lm",
        origin="mixer_lm",
        num_layers=len(stack),
        blocks=BLOCKS,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
    )


def _heads(mixer: nn.Module, component: str) -> int | None:
    if component not in _BY_HEAD:
        return None
    grouped = component in ("k", "v") and getattr(mixer, "num_kv_heads", None) is not None
    return getattr(mixer, "num_kv_heads" if grouped else "num_heads", None)
