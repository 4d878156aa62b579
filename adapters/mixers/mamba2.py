"""Mamba-2 (Dao & Gu, arXiv 2405.21060): one decay per head, scanned by matrix products.

Parameter names follow the authors' code. `d_conv=0` leaves the convolution out and keeps the SiLU.

Use:

    MixerLMConfig.preset("mamba2", width=64, layers=2, vocab_size=8196, head_dim=32)

Glossary: b batch, t time, m model width, d inner width (expand · m), h heads, p head width
(h · p = d), g groups, n state size, w convolution width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerState
from patchbench.adapters.mixers.recurrent import (
    ConvOptions,
    check_positive,
    conv_points,
    depthwise_conv,
    empty_conv_state,
    init_steps,
    run_conv,
)
from patchbench.adapters.mixers.scans import scan_heads
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class Mamba2Options(ConvOptions):
    """Settings of `Mamba2`.

    Args:
        d_conv: width of the convolution, 0 for none (w).
        d_state: states per channel (n).
        expand: inner width over model width.
        head_dim: width of a head (p); 64, or the inner width where that is smaller, when None.
        num_groups: groups of heads that share B and C (g).
        chunk_size: steps that the scan computes at once.
    """

    d_state: int = 128
    expand: int = 2
    head_dim: int | None = None
    num_groups: int = 1
    chunk_size: int = 64

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        names = ("d_state", "expand", "head_dim", "num_groups", "chunk_size")
        check_positive("mamba2", **{name: getattr(self, name) for name in names})

    def check(self, config: MixerLMConfig) -> None:
        """Raise `UserError` where heads or groups do not divide the inner width."""
        inner = self.expand * config.hidden_size
        head = self.head_width(inner)
        if inner % head:
            raise UserError(
                f"mamba2: head_dim {head} does not divide the inner width {inner}",
                f"give a divisor of {inner}",
            )
        if (inner // head) % self.num_groups:
            raise UserError(
                f"mamba2: num_groups {self.num_groups} does not divide the {inner // head} heads",
                f"give a divisor of {inner // head}",
            )

    def head_width(self, inner: int) -> int:
        """Return the width of a head for an inner width."""
        return self.head_dim or min(64, inner)


def heads_of(component: str, heads: int, groups: int) -> int | None:
    """Return in how many slices a component of Mamba-2 falls: by head, by group, or whole."""
    if component in ("ssm_input", "dt", "ssm_write", "ssm_state", "ssm_output", "gate"):
        return heads
    return groups if component in ("B", "C") else None


class GatedRMSNorm(nn.Module):
    """RMSNorm of y · SiLU(gate), group by group, computed in fp32."""

    def __init__(self, width: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.eps = groups, eps

    def forward(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return the gated, normalised values, both (b, t, d)."""
        dtype = torch.promote_types(y.dtype, torch.float32)
        gated = (y.to(dtype) * F.silu(gate.to(dtype))).unflatten(-1, (self.groups, -1))
        scale = torch.rsqrt(gated.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (gated * scale).flatten(-2).to(y.dtype)


class Mamba2(Mixer):
    """y = out_proj(norm(scan(x, dt, B, C) · SiLU(gate))), with x, B, C out of one convolution.

    Hook points, all (b, t, features): `conv_input`, `conv_output` before the SiLU, of x, B and C
    side by side (d + 2 g n; absent with `d_conv=0`); `ssm_input`, the part x after the SiLU (d);
    `dt` after softplus (h); `B` and `C` (g · n); `ssm_write` the increment dt x Bᵀ and `ssm_state`
    the state after it (h · p · n); `ssm_output` with the skip D x, before gate and norm (d);
    `gate` before its SiLU (d).

    State: "conv_state", the last w − 1 inputs of the convolution, and "ssm_state"
    (b, h, p, n) in fp32.
    """

    Options = Mamba2Options
    float32_parameters = ("A_log", "D", "dt_bias")
    linear_init = "pytorch"

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, Mamba2Options)
        width = config.hidden_size
        self.d_inner = options.expand * width
        self.head_dim = options.head_width(self.d_inner)
        self.num_heads = self.d_inner // self.head_dim
        self.groups, self.d_state = options.num_groups, options.d_state
        self.chunk_size = options.chunk_size
        self.mixed = self.d_inner + 2 * self.groups * self.d_state
        self.in_proj = nn.Linear(width, self.d_inner + self.mixed + self.num_heads, bias=False)
        self.conv1d = depthwise_conv(self.mixed, options.d_conv, bias=True)
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.D = nn.Parameter(torch.empty(self.num_heads))
        self.norm = GatedRMSNorm(self.d_inner, self.groups, config.norm_eps)
        self.out_proj = nn.Linear(self.d_inner, width, bias=False)
        self.hook_points = HookPoints(
            *conv_points(options.d_conv),
            *("ssm_input", "dt", "B", "C", "ssm_write", "ssm_state", "ssm_output", "gate"),
        )
        self.keep_float32()

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """Mix `x` (b, t, m) over time; see `Mixer.forward`."""
        hooks = self.hook_points
        sizes = [self.d_inner, self.mixed, self.num_heads]
        gate, u, dt = self.in_proj(x).split(sizes, dim=-1)  # b t d, b t d+2gn, b t h
        gate = hooks["gate"](gate)
        u, new_state = run_conv(self.conv1d, u, hooks, state, return_state=return_state)
        shared = self.groups * self.d_state
        u, B, C = F.silu(u).split([self.d_inner, shared, shared], dim=-1)  # b t d, b t gn, b t gn
        u, B, C = hooks["ssm_input"](u), hooks["B"](B), hooks["C"](C)
        dt = hooks["dt"](F.softplus(dt + self.dt_bias))
        start = None if state is None else state["ssm_state"]
        y, last = scan_heads(
            hooks,
            u.unflatten(-1, (self.num_heads, self.head_dim)),  # b t h p
            dt,
            -torch.exp(self.A_log),  # h
            B.unflatten(-1, (self.groups, self.d_state)),  # b t g n
            C.unflatten(-1, (self.groups, self.d_state)),  # b t g n
            self.D,
            start,
            return_state=return_state,
            chunk_size=self.chunk_size,
        )
        y = hooks["ssm_output"](y.flatten(2))  # b t d
        if last is not None:
            new_state["ssm_state"] = last
        return self.out_proj(self.norm(y, gate)), new_state if return_state else None

    def heads(self, component: str) -> int | None:
        """Return the number of heads of what is laid out head by head; groups for B and C."""
        return heads_of(component, self.num_heads, self.groups)

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return the state before the first token; see `Mixer.initial_state`."""
        shape = (batch, self.num_heads, self.head_dim, self.d_state)
        conv = empty_conv_state(self.conv1d, batch, device, dtype)
        return conv | {"ssm_state": torch.zeros(shape, device=device)}

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw the authors' initialisation: A uniform in [1, 16], log-uniform steps."""
        init_steps(self.dt_bias)
        a = torch.empty(self.num_heads, device=self.A_log.device).uniform_(1, 16)
        init.copy_(self.A_log, a.log())
        init.ones_(self.D)
        init.ones_(self.norm.weight)
        # Kaiming-uniform (a = √5), over √layers.
        bound = 1 / math.sqrt(self.d_inner * len(config.layers()))
        init.uniform_(self.out_proj.weight, -bound, bound)
