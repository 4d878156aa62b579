"""A model that is no `PreTrainedModel`: any module from token ids to logits, with a map of its own.

Use:

    hook_map = HookMap(model_type="mine", origin="user", num_layers=2, blocks="stack", points={…})
    loaded = load_model(network, hook_map=hook_map)     # an nn.Module: wrapped here
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from patchbench.adapters.hook_map import HookMap
from patchbench.common import UserError

_PREFIX = "network."


class WrappedConfig(PreTrainedConfig):
    """What is known of a model that brings no config: the shape of its embedding."""

    model_type = "wrapped"

    vocab_size: int = 0
    hidden_size: int = 0


class WrappedLM(PreTrainedModel):
    """A module as a causal language model of transformers; the module itself is left as it is."""

    config_class = WrappedConfig

    def __init__(self, config: WrappedConfig, network: nn.Module, hook_map: HookMap) -> None:
        super().__init__(config)
        self.network = network
        # Not `modules` of this one: they are the network's already.
        self._places = (hook_map.embed, hook_map.head)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding."""
        return self.get_submodule(self._places[0])

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the head, where the map names one."""
        head = self._places[1]
        return None if head is None else self.get_submodule(head)

    def forward(
        self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, **kwargs: Any
    ) -> CausalLMOutput:
        """Return the logits of the network, (batch, time, vocabulary), where they are asked for.

        Args:
            input_ids: (batch, time).
            logits_to_keep: the last so many positions, 0 for all; or which.
            **kwargs: what transformers' models take besides; the network gets none of it.

        Raises:
            UserError: the network returns no such logits.
        """
        logits = _logits(self.network(input_ids))
        if logits is None or logits.shape[:2] != input_ids.shape or logits.ndim != 3:
            shape = None if logits is None else tuple(logits.shape)
            raise UserError(
                f"{type(self.network).__name__} returns {shape} for {tuple(input_ids.shape)} ids",
                "return logits, (batch, time, vocabulary), alone, first, or as `logits`",
            )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutput(logits=logits[:, kept])  # pyright: ignore[reportArgumentType]


def wrap(network: nn.Module, hook_map: HookMap | None) -> tuple[WrappedLM, HookMap]:
    """Return a module as a model, and its map with the paths in that model.

    Raises:
        UserError: without a map, or without an embedding in it.
    """
    name = type(network).__name__
    if hook_map is None:
        raise UserError(
            f"{name} is an nn.Module whose components nobody knows",
            "take load_model(network, hook_map=HookMap(…)), or a transformers PreTrainedModel",
        )
    points = {
        place: replace(point, path=_PREFIX + point.path) for place, point in hook_map.points.items()
    }
    head = None if hook_map.head is None else _PREFIX + hook_map.head
    moved = replace(hook_map, points=points, blocks=_PREFIX + hook_map.blocks, head=head)
    weight: Any = moved.module(_holder(network), moved.point(None, "embed")).weight
    config = WrappedConfig(vocab_size=int(weight.shape[0]), hidden_size=int(weight.shape[1]))
    config.name_or_path = name
    wrapped = WrappedLM(config, network, moved)
    wrapped.training = network.training  # not `train`, which would change the network's parts
    return wrapped, moved


def _holder(network: nn.Module) -> nn.Module:
    return nn.ModuleDict({_PREFIX.rstrip("."): network})


def _logits(output: Any) -> Tensor | None:
    found = getattr(output, "logits", output)
    if isinstance(found, Mapping):
        found = found.get("logits")
    if isinstance(found, tuple | list):
        found = found[0] if found else None
    return found if isinstance(found, torch.Tensor) else None
