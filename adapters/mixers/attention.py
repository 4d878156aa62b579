"""Causal softmax attention, with grouped key-value heads and optional rotary positions.

PyTorch's fused attention runs unless something looks at `attn_weights`; then the weights are
computed. Learned positions are added to the embedding by the model, not here. Projections of q, k
and v have no bias, the output projection has one.

Use:

    MixerLMConfig.preset("attention", width=64, layers=2, vocab_size=26, num_heads=4)
    MixerLMConfig.preset("attention", width=64, vocab_size=26, positions="rope", num_kv_heads=1)

Hook points: `q`, `k`, `v` (projected, before the rotation), `attn_weights` (batch, time, heads ×
key positions; only of this call when there is a longer past: all past keys), `head_output` (what
each head gives, before the output projection).

Glossary: b batch, t time, s key positions (past and present), h heads, g key-value heads, e head
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerOptions, MixerState, check_heads
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(MixerOptions):
    """Settings of `Attention`.

    Args:
        num_heads: heads (h); divides the width.
        num_kv_heads: heads of keys and values (g), shared by num_heads / num_kv_heads queries
            each; as many as `num_heads` when None.
    """

    num_heads: int = 1
    num_kv_heads: int | None = None

    def check(self, config: MixerLMConfig) -> None:
        """Check that the heads fit the width and each other."""
        check_heads("attention", config.hidden_size, self.num_heads)
        groups = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        if groups < 1 or self.num_heads % groups:
            raise UserError(
                f"attention: num_kv_heads {groups} does not divide num_heads {self.num_heads}",
                "choose a divisor",
            )
        if config.positions == "rope" and (config.hidden_size // self.num_heads) % 2:
            raise UserError(
                f"attention: rotary positions need an even head width, not "
                f"{config.hidden_size // self.num_heads}",
                "change the width, num_heads or positions",
            )


class Attention(Mixer):
    """Softmax attention; see the module's docstring and `Mixer`."""

    Options = AttentionOptions

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, AttentionOptions)
        self.num_heads = options.num_heads
        self.num_kv_heads = options.num_kv_heads or options.num_heads
        width = config.hidden_size
        self.head_dim = width // self.num_heads
        self.rope_theta = config.rope_theta if config.positions == "rope" else None
        self.qkv_proj = nn.Linear(
            width, (self.num_heads + 2 * self.num_kv_heads) * self.head_dim, bias=False
        )
        self.out_proj = nn.Linear(width, width)
        self.hook_points = HookPoints("q", "k", "v", "attn_weights", "head_output")

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`; the state is {"k", "v"}, each (b, g, s, e)."""
        b, t, _ = x.shape
        h, g, e = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.qkv_proj(x).split([h * e, g * e, g * e], dim=-1)
        q = self.hook_points["q"](q).view(b, t, h, e).transpose(1, 2)  # b h t e
        k = self.hook_points["k"](k).view(b, t, g, e).transpose(1, 2)  # b g t e
        v = self.hook_points["v"](v).view(b, t, g, e).transpose(1, 2)  # b g t e
        if self.rope_theta is not None:
            past = 0 if state is None else state["k"].shape[2]
            cos, sin = _rotation(past, t, e, self.rope_theta, x.device)
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if state is not None:
            k = torch.cat([state["k"].to(k.dtype), k], 2)  # b g s e
            v = torch.cat([state["v"].to(v.dtype), v], 2)  # b g s e
        new_state: MixerState | None = {"k": k, "v": v} if return_state else None
        if g != h:
            k = k.repeat_interleave(h // g, 1)  # b h s e
            v = v.repeat_interleave(h // g, 1)  # b h s e
        y = self._attend(q, k, v)  # b h t e
        y = y.transpose(1, 2).reshape(b, t, h * e)
        return self.out_proj(self.hook_points["head_output"](y)), new_state

    def heads(self, component: str) -> int | None:
        """Return the heads of queries and results, and the fewer ones of keys and values."""
        if component in ("q", "head_output"):
            return self.num_heads
        return self.num_kv_heads if component in ("k", "v") else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return no keys and no values."""
        empty = torch.zeros(batch, self.num_kv_heads, 0, self.head_dim, device=device, dtype=dtype)
        return {"k": empty, "v": empty}

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, h, t, e = q.shape
        s = k.shape[2]
        hook = self.hook_points["attn_weights"]
        if not hook.active:
            if t == s or t == 1:
                return F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=_visible(t, s, q.device))
        scores = (q @ k.transpose(2, 3) * e**-0.5).float()  # b h t s
        scores = scores.masked_fill(~_visible(t, s, q.device), -torch.inf)
        weights = scores.softmax(-1).to(v.dtype).transpose(1, 2).reshape(b, t, h * s)
        return hook(weights).view(b, t, h, s).transpose(1, 2) @ v


def _visible(t: int, s: int, device: torch.device) -> Tensor:
    """Return which of `s` keys each of the last `t` positions may see, (t, s)."""
    return torch.ones(t, s, dtype=torch.bool, device=device).tril(s - t)


def _rotation(
    past: int, t: int, e: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles position · theta^(−2i/e), (t, e / 2) each."""
    frequency = theta ** (-torch.arange(0, e, 2, device=device, dtype=torch.float32) / e)
    position = torch.arange(past, past + t, device=device, dtype=torch.float32)
    angle = position[:, None] * frequency
    return angle.cos(), angle.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + e/2]) of (b, h, t, e) by their position's angles (RoFormer)."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
