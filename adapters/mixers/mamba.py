"""Mamba-1 (Gu & Dao, arXiv 2312.00752): a short convolution, then a selective scan, gated.

Parameter names follow the authors' code. `d_conv=0` leaves the convolution out and keeps the SiLU.

Use:

    MixerLMConfig.preset("mamba", width=64, layers=2, vocab_size=8196, d_conv=4)

Glossary: b batch, t time, m model width, d inner width (expand · m), n state size, r rank of the
step size, w convolution width.
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
from patchbench.adapters.mixers.scans import scan_channels

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class MambaOptions(ConvOptions):
    """Settings of `Mamba`.

    Args:
        d_conv: width of the convolution, 0 for none (w).
        d_state: states per channel (n).
        expand: inner width over model width.
        dt_rank: rank of the step size (r); ⌈width / 16⌉ when None.
    """

    d_state: int = 16
    expand: int = 2
    dt_rank: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        check_positive("mamba", d_state=self.d_state, expand=self.expand, dt_rank=self.dt_rank)


class Mamba(Mixer):
    """y = out_proj(scan(SiLU(conv(u))) · SiLU(gate)), with u and gate projected from the input.

    Hook points, all (b, t, features): `conv_input`, `conv_output` before the SiLU (absent with
    `d_conv=0`), `ssm_input` after it (d); `dt` after softplus (d), `B` and `C` (n); `ssm_write`
    the increment dt u Bᵀ and `ssm_state` the state after it (d · n, channel by channel);
    `ssm_output` with the skip D u, before the gate (d); `gate` before its SiLU (d).

    State: "conv_state", the last w − 1 inputs of the convolution (b, w−1, d), and
    "ssm_state" (b, d, n) in fp32.
    """

    Options = MambaOptions
    float32_parameters = ("A_log", "D", "dt_proj.bias")
    linear_init = "pytorch"

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, MambaOptions)
        width, self.d_state = config.hidden_size, options.d_state
        self.d_inner = options.expand * width
        self.dt_rank = options.dt_rank or math.ceil(width / 16)
        self.in_proj = nn.Linear(width, 2 * self.d_inner, bias=False)
        self.conv1d = depthwise_conv(self.d_inner, options.d_conv, bias=True)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * self.d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.empty(self.d_inner, self.d_state))
        self.D = nn.Parameter(torch.empty(self.d_inner))
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
        u, gate = self.in_proj(x).chunk(2, dim=-1)  # b t d, b t d
        gate = hooks["gate"](gate)
        u, new_state = run_conv(self.conv1d, u, hooks, state, return_state=return_state)
        u = hooks["ssm_input"](F.silu(u))
        dt, B, C = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        # The projection runs in the model's dtype; the bias and all that follows in fp32.
        dt = F.linear(dt, self.dt_proj.weight)  # b t d
        dt = hooks["dt"](F.softplus(dt + self.dt_proj.bias))
        B, C = hooks["B"](B), hooks["C"](C)  # b t n, b t n
        start = None if state is None else state["ssm_state"]
        A = -torch.exp(self.A_log)  # d n
        y, last = scan_channels(hooks, u, dt, A, B, C, self.D, start, return_state=return_state)
        y = hooks["ssm_output"](y)
        if last is not None:
            new_state["ssm_state"] = last
        return self.out_proj(y * F.silu(gate)), new_state if return_state else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return the state before the first token; see `Mixer.initial_state`."""
        ssm = torch.zeros(batch, self.d_inner, self.d_state, device=device)
        return empty_conv_state(self.conv1d, batch, device, dtype) | {"ssm_state": ssm}

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw the authors' initialisation: S4D-real A, log-uniform steps, a scaled out_proj."""
        init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        init_steps(self.dt_proj.bias)
        n = torch.arange(1, self.d_state + 1, dtype=torch.float32, device=self.A_log.device)
        init.copy_(self.A_log, n.log().expand(self.d_inner, -1))
        init.ones_(self.D)
        # Kaiming-uniform (a = √5), over √layers.
        bound = 1 / math.sqrt(self.d_inner * len(config.layers()))
        init.uniform_(self.out_proj.weight, -bound, bound)
