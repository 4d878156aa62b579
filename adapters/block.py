"""One layer around a mixer: norm, mixer, residual, and (unless switched off) norm, MLP, residual.

Use:

    block = MixerBlock(config, layer=0)
    x = block(x)                                # (batch, time, width)
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from patchbench.adapters.cache import MixerLMCache, state_of
from patchbench.adapters.config import MixerLMConfig
from patchbench.adapters.mixers import MIXERS
from patchbench.common import UserError


def build_norm(kind: str, width: int, eps: float) -> nn.Module:
    """Return a LayerNorm (weight and bias) or an RMSNorm (weight)."""
    return nn.LayerNorm(width, eps=eps) if kind == "layernorm" else nn.RMSNorm(width, eps=eps)


class MLP(nn.Module):
    """width → 4 width → width with GELU between, position by position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, 4 * width)
        self.down_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        return self.down_proj(F.gelu(self.up_proj(x)))


class MixerBlock(GradientCheckpointingLayer):
    """x + mixer(norm(x)), then x + mlp(norm2(x)).

    Args:
        config: the model's config.
        layer: the layer's index, from 0.
    """

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        what = config.layer(layer)
        self.norm = build_norm(what.norm, config.hidden_size, config.norm_eps)
        self.mixer = MIXERS[what.mixer](config, layer)
        self.norm2 = self.mlp = None
        if what.mlp != "none":
            self.norm2 = build_norm(what.norm, config.hidden_size, config.norm_eps)
            self.mlp = MLP(config.hidden_size)

    def forward(self, x: Tensor, cache: MixerLMCache | None = None) -> Tensor:
        """Return the block's output; with a cache, continue from it and leave the new state there.

        Args:
            x: (batch, time, width).
            cache: the model's cache.
        """
        state = None
        if cache is not None:
            state = state_of(cache, self.layer, self.mixer, rows=x.shape[0])
        mixed, state = self.mixer(self.norm(x), state, return_state=cache is not None)
        if mixed.shape != x.shape or (cache is not None and state is None):
            given = "no state" if mixed.shape == x.shape else f"shape {tuple(mixed.shape)}"
            raise UserError(
                f"layer {self.layer}: {type(self.mixer).__name__} returned {given} for an input of "
                f"shape {tuple(x.shape)}",
                "a mixer returns as many features as it is given, and a state when asked for one",
            )
        x = x + mixed
        if cache is not None:
            cache.states[self.layer] = state
        if self.norm2 is not None and self.mlp is not None:
            x = x + self.mlp(self.norm2(x))
        return x
