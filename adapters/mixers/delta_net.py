"""DeltaNet (Yang et al., arXiv 2406.06484): a memory matrix corrected towards each new value.

At every position the memory recalls a value for the key, and the difference to the wanted value,
times the write strength beta, is written under the key: S ← S + k (beta (v − kᵀ S))ᵀ, o = qᵀ S.

Use:

    MixerLMConfig.preset("delta_net", width=64, layers=2, vocab_size=8196, d_conv=0)

Glossary: b batch, t time, m model width, h heads, k head width (h · k = m), w convolution width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerState
from patchbench.adapters.mixers.recurrent import (
    ConvOptions,
    check_positive,
    conv_points,
    depthwise_conv,
    empty_conv_state,
    l2_normalise,
    run_conv,
)
from patchbench.adapters.mixers.scans import delta_memory
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class DeltaNetOptions(ConvOptions):
    """Settings of `DeltaNet` and `GatedDeltaNet`.

    Args:
        d_conv: width of the convolutions on q, k and v, 0 for none (w).
        num_heads: memories side by side (h).
        chunk_size: steps that the op solves at once.
    """

    num_heads: int = 1
    chunk_size: int = 64

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        check_positive("delta rule", num_heads=self.num_heads, chunk_size=self.chunk_size)

    def check(self, config: MixerLMConfig) -> None:
        """Raise `UserError` where the heads do not divide the width."""
        if config.hidden_size % self.num_heads:
            raise UserError(
                f"num_heads {self.num_heads} does not divide the width {config.hidden_size}",
                f"give a divisor of {config.hidden_size}",
            )


class DeltaNet(Mixer):
    """y = out_proj(norm(delta rule over q, k, v, beta)), one RMSNorm per head.

    q, k and v come out of one projection, a short convolution each and a SiLU (kept with
    `d_conv=0`); q and k are scaled to unit length, beta = sigmoid of a projection.

    Hook points, all (b, t, features): `conv_input`, `conv_output` before the SiLU, of q, k and v
    side by side (3 m; absent with `d_conv=0`); `q`, `k` of unit length and `v` (m, head by head);
    `beta` (h); `ssm_write` the increment and `ssm_state` the memory after it (h · k · k, rows are
    keys); `ssm_output` before the norm (m).

    State: "conv_state", the last w − 1 inputs of the convolution, and "ssm_state"
    (b, h, k, k) in fp32.
    """

    Options = DeltaNetOptions

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, DeltaNetOptions)
        width = config.hidden_size
        self.num_heads, self.chunk_size = options.num_heads, options.chunk_size
        self.head_dim = width // self.num_heads
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.conv1d = depthwise_conv(3 * width, options.d_conv, bias=False)
        self.beta_proj = nn.Linear(width, self.num_heads, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.hook_points = HookPoints(
            *conv_points(options.d_conv),
            *("q", "k", "v", "ssm_write", "ssm_state", "ssm_output", "beta"),
        )

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """Mix `x` (b, t, m) over time; see `Mixer.forward`."""
        o, new_state = self.recall(x, None, state, return_state)
        return self.out_proj(self.norm(o).flatten(2)), new_state

    def recall(
        self, x: Tensor, g: Tensor | None, state: MixerState | None, return_state: bool
    ) -> tuple[Tensor, MixerState | None]:
        """Write `x` (b, t, m) into the memory and read it, with log decays `g` (b, t, h) if given.

        Returns:
            What was read (b, t, h, k), and the state if asked for.
        """
        hooks, heads = self.hook_points, (self.num_heads, self.head_dim)
        u = self.in_proj(x)  # b t 3m
        u, new_state = run_conv(self.conv1d, u, hooks, state, return_state=return_state)
        m = u.shape[-1] // 3
        qk, v = F.silu(u).split([2 * m, m], dim=-1)  # b t 2m, b t m
        qk = l2_normalise(qk.unflatten(-1, (-1, self.head_dim)))  # b t 2h k
        q, k = qk.flatten(2).chunk(2, dim=-1)  # b t m, b t m
        q, k, v = (
            hooks[name](z).unflatten(-1, heads) for name, z in (("q", q), ("k", k), ("v", v))
        )  # b t h k
        beta = hooks["beta"](torch.sigmoid(self.beta_proj(x)))  # b t h
        start = None if state is None else state["ssm_state"]
        o, last = delta_memory(
            hooks, q, k, v, beta, g, start,
            return_state=return_state, chunk_size=self.chunk_size,
        )  # fmt: skip
        o = hooks["ssm_output"](o.flatten(2)).unflatten(-1, heads)  # b t h k
        if last is not None:
            new_state["ssm_state"] = last
        return o, new_state if return_state else None

    def heads(self, component: str) -> int | None:
        """Return the number of heads of what is laid out head by head."""
        return None if component.startswith("conv") else self.num_heads

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return the state before the first token; see `Mixer.initial_state`."""
        shape = (batch, self.num_heads, self.head_dim, self.head_dim)
        conv = empty_conv_state(self.conv1d, batch, device, dtype)
        return conv | {"ssm_state": torch.zeros(shape, device=device)}
