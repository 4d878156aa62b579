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
from patchbench.adapters.mixers.base import Mixer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCKS = "backbone.layers"


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
        assert isinstance(mixer, Mixer)
        for component in mixer.get_submodule("hook_points")._modules:
            points[layer, component] = HookPoint(
                component=component,
                path=f"{path}.mixer.hook_points.{component}",
                io="output",
                layer=layer,
                heads=mixer.heads(component),
            )
    return HookMap(
        model_type="mixer_lm",
        origin="mixer_lm",
        num_layers=len(stack),
        blocks=BLOCKS,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
    )
