"""Where in a model each component is: the one table that every engine reads.

A component word ("mixer_output") means the same value in every family; a `HookMap` says for one
model which module's input or output that value is, layer by layer, so that hybrids need nothing
special. It comes from the table of families, from a MixerLM's own hook points, from inspection of
an unknown model, or from the user.

Use:

    hook_map = hook_map_for(model)
    point = hook_map.point(3, "mixer_output")       # HookPoint(path="model.layers.3.self_attn", …)
    hook_map.module(model, point)                   # the nn.Module to hook
    @register_hook_map("my_type")                   # or an entry point in "patchbench.adapters"
    def my_map(model: PreTrainedModel) -> HookMap: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from patchbench.common import Registry, UserError, near_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# In the order in which a document passes them.
COMPONENTS = (
    "embed",
    "block_input",
    "mixer_input",
    "q",
    "k",
    "v",
    "attn_weights",
    "head_output",
    "conv_input",
    "conv_output",
    "conv_state",
    "ssm_input",
    "dt",
    "B",
    "C",
    "beta",
    "ssm_write",
    "ssm_state",
    "ssm_output",
    "gate",
    "mixer_output",
    "mlp_input",
    "mlp_output",
    "block_output",
)


@dataclass(frozen=True, kw_only=True)
class HookPoint:
    """One place in a model.

    Attributes:
        component: its word.
        path: name of the module, as in `model.get_submodule(path)`.
        io: whether the value is the module's input or its output.
        layer: None outside the blocks.
        heads: equal slices of the features that belong to one head each, where there are such.
        source: path inside the module's forward, for engines that can reach there.
    """

    component: str
    path: str
    io: Literal["input", "output"]
    layer: int | None
    heads: int | None = None
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class HookMap:
    """All places of one model.

    Attributes:
        model_type: the family.
        origin: who says so.
        num_layers: number of blocks.
        blocks: path of the list of blocks.
        head: path of the language model head, where the model names one.
        points: by layer (None outside the blocks) and component.
        notes: what the user should know about this mapping.
    """

    model_type: str
    origin: Literal["table", "inspection", "mixer_lm", "user"]
    num_layers: int
    blocks: str
    points: Mapping[tuple[int | None, str], HookPoint]
    head: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def embed(self) -> str:
        """The path of the token embedding."""
        return self.point(None, "embed").path

    def components(self, layer: int | None = None) -> list[str]:
        """Return the components of a layer (None: outside the blocks), in `COMPONENTS`' order."""
        names = [name for at, name in self.points if at == layer]
        return sorted(names, key=lambda n: (_ORDER.get(n, len(_ORDER)), n))

    def point(self, layer: int | None, component: str) -> HookPoint:
        """Return one place.

        Raises:
            UserError: there is no such layer, or no such component in it.
        """
        if (layer, component) in self.points:
            return self.points[layer, component]
        if layer is not None and not 0 <= layer < self.num_layers:
            raise UserError(
                f"layer {layer} does not exist", f"the model has layers 0–{self.num_layers - 1}"
            )
        where = "outside its layers" if layer is None else f"in layer {layer}"
        raise UserError(
            f"{self.model_type} has no component {component!r} {where}",
            near_names(component, self.components(layer)),
        )

    def module(self, model: nn.Module, point: HookPoint) -> nn.Module:
        """Return the module of a place.

        Raises:
            UserError: the model has no module of that name.
        """
        try:
            return model.get_submodule(point.path)
        except AttributeError:
            raise UserError(
                f"{self.model_type}: there is no module {point.path!r} for {point.component!r}",
                "correct the HookMap",
            ) from None


_ORDER = {name: index for index, name in enumerate(COMPONENTS)}

HookMapBuilder = Callable[["PreTrainedModel"], HookMap]
HOOK_MAPS: Registry[HookMapBuilder] = Registry(
    "hook map",
    entry_points="patchbench.adapters",
    refuse=lambda target: None if callable(target) else "it is no function of a model",
)


def register_hook_map(model_type: str) -> Callable[[HookMapBuilder], HookMapBuilder]:
    """Decorate a function that maps models of a `config.model_type`."""
    return HOOK_MAPS.register(model_type)


def hook_map_for(model: PreTrainedModel) -> HookMap:
    """Return the map of `model`: registered by type, tabulated by family, or found by inspection.

    The inner places are those of the twins that stand in it (see `patchbench.adapters.twins`).

    Raises:
        UserError: the model has no single list of repeated blocks.
    """
    from patchbench.adapters.families import FAMILIES, map_family
    from patchbench.adapters.fla_models import FLA_TYPES, map_fla
    from patchbench.adapters.inspection import map_by_inspection
    from patchbench.adapters.twins import with_twins

    model_type = str(model.config.model_type)
    if model_type in HOOK_MAPS:
        found = HOOK_MAPS[model_type](model)
    elif model_type in FAMILIES:
        found = map_family(model, FAMILIES[model_type])
    elif model_type in FLA_TYPES:
        found = map_fla(model)
    else:
        found = map_by_inspection(model)
    return with_twins(found, model)


def path_of(model: nn.Module, module: nn.Module | None) -> str | None:
    """Return the name of `module` inside `model`; None where it is not one of its modules."""
    return next((name for name, other in model.named_modules() if other is module), None)


HOOK_MAPS.add("mixer_lm", "patchbench.adapters.mixer_lm_map:map_mixer_lm")


# What transformers calls the hidden state, as an argument and in an output.
_HIDDEN_NAMES = ("hidden_states", "last_hidden_state")


def get_hidden(value: Any) -> Tensor:
    """Return the hidden state in what a module took or gave: (batch, time, features).

    Blocks return tensors, tuples or dataclasses depending on the family and its version, and some
    take everything by keyword. The hidden state is what is called so, or else the first floating
    tensor with at least three dimensions, or else the first tensor.

    Raises:
        UserError: there is no tensor.
    """
    slot = _slot(value)
    return value if slot is None else value[slot]


def put_hidden(value: Any, hidden: Tensor) -> Any:
    """Return `value` with its hidden state replaced; `value` itself is left as it was."""
    slot = _slot(value)
    if slot is None:
        return hidden
    if isinstance(value, tuple):
        parts = [hidden if index == slot else part for index, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [hidden if index == slot else part for index, part in enumerate(value)]
    return type(value)(**{**value, slot: hidden})


def _slot(value: Any) -> Any:
    """Return the index or key of the hidden state in a container; None for a bare tensor."""
    if isinstance(value, Tensor):
        return None
    if isinstance(value, tuple | list):
        items: list[tuple[Any, Any]] = list(enumerate(value))
    elif isinstance(value, Mapping):
        items = list(value.items())
    else:
        raise UserError(f"a {type(value).__name__} holds no hidden state", "hook another module")
    tensors = [(key, part) for key, part in items if isinstance(part, torch.Tensor)]
    named = [key for key, _ in tensors if key in _HIDDEN_NAMES]
    deep = [key for key, part in tensors if part.ndim >= 3 and part.is_floating_point()]
    for key in (*named, *deep, *(key for key, _ in tensors)):
        return key
    raise UserError(f"a {type(value).__name__} without tensors has no hidden state", "hook another")
