"""Hook points inside the recurrent mixers of transformers' own models.

Inside a stock mixer most values are no module's output, and several modules are never called (their
weights are read directly), so that a hook there never fires. A twin stands in the mixer's place: it
holds the same parameters under the same names, computes the same, and passes its inner values
through the hook points that a `MixerLM` has.

Use:

    twins = instrument(model)      # {"backbone.layers.0.mixer": MambaTwin, …}; in place
    hook_map_for(model)            # now with the inner places
    restore(model)                 # the stock mixers again
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from patchbench.adapters.hook_map import HookMap, HookPoint
from patchbench.adapters.twins.base import Twin
from patchbench.adapters.twins.gated_delta_net import GatedDeltaNetTwin
from patchbench.adapters.twins.mamba import MambaTwin
from patchbench.adapters.twins.mamba2 import Mamba2Twin

# By the class of the mixer in transformers.
TWINS: dict[str, type[Twin]] = {
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer", "JambaMambaMixer"), MambaTwin),
    **dict.fromkeys(
        (
            "Mamba2Mixer",
            "BambaMixer",
            "Zamba2MambaMixer",
            "FalconH1Mixer",
            "GraniteMoeHybridMambaLayer",
            "NemotronHMamba2Mixer",
        ),
        Mamba2Twin,
    ),
    **dict.fromkeys(
        (
            "Qwen3NextGatedDeltaNet",
            "Qwen3_5GatedDeltaNet",
            "Qwen3_5MoeGatedDeltaNet",
            "OlmoHybridGatedDeltaNet",
        ),
        GatedDeltaNetTwin,
    ),
}


def instrument(model: nn.Module) -> dict[str, Twin]:
    """Put a twin in the place of every mixer that has one, and return them by path.

    A mixer whose weights are quantised or not in memory keeps its place.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            twin = _twin_for(child)
            if twin is not None and twin.possible(child):
                setattr(parent, name, twin(child))
    return twins_of(model)


def _twin_for(module: nn.Module) -> type[Twin] | None:
    stock = type(module).__module__.startswith("transformers.")
    return TWINS.get(type(module).__name__) if stock else None


def restore(model: nn.Module) -> None:
    """Put the stock mixers back."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Twin):
                setattr(parent, name, child.original)


def twins_of(model: nn.Module) -> dict[str, Twin]:
    """Return the twins that stand in a model, by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Twin)}


@contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """Put the stock mixers back at the end, unless twins stood in their places before."""
    before = twins_of(model)
    try:
        yield
    finally:
        if not before:
            restore(model)


def with_twins(hook_map: HookMap, model: nn.Module) -> HookMap:
    """Return the map with the hook points of the twins that stand in the blocks.

    Its notes say how many mixers could have one and do not.
    """
    points, notes = dict(hook_map.points), hook_map.notes
    kinds = ((_twin_for(module), module) for module in model.modules())
    if plain := sum(twin is not None and not twin.possible(module) for twin, module in kinds):
        notes += (
            f"{plain} recurrent mixers have no inner components: their weights are quantised or "
            "not in memory",
        )
    for path, twin in twins_of(model).items():
        layer = path.removeprefix(f"{hook_map.blocks}.").partition(".")[0]
        if not path.startswith(f"{hook_map.blocks}.") or not layer.isdecimal():
            continue
        for component in twin.points:
            points[int(layer), component] = HookPoint(
                component=component,
                path=f"{path}.hook_points.{component}",
                io="output",
                layer=int(layer),
                heads=twin.heads(component),
            )
    return replace(hook_map, points=points, notes=notes)


__all__ = ["TWINS", "Twin", "instrument", "put_back", "restore", "twins_of", "with_twins"]
