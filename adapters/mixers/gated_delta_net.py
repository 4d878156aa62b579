"""Gated DeltaNet (Yang et al., arXiv 2412.06464): the delta rule with a forgetting memory.

Before each write the memory of a head is multiplied by exp(−exp(A_log) · dt), with a step size dt
projected from the input; the output is gated.

Use:

    MixerLMConfig.preset("gated_delta_net", width=64, layers=2, vocab_size=8196, num_heads=2)

Glossary: b batch, t time, m model width, h heads, k head width (h · k = m).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import MixerState
from patchbench.adapters.mixers.delta_net import DeltaNet
from patchbench.adapters.mixers.recurrent import init_steps

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


class GatedDeltaNet(DeltaNet):
    """y = out_proj(norm(gated delta rule over q, k, v, beta, dt) · SiLU(gate)).

    Hook points and state are those of `DeltaNet`, and `dt` after softplus (h), `gate` before its
    SiLU (m).
    """

    float32_parameters = ("A_log", "dt_bias")

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        width = config.hidden_size
        self.dt_proj = nn.Linear(width, self.num_heads, bias=False)
        self.gate_proj = nn.Linear(width, width, bias=False)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(self.num_heads))
        self.hook_points = HookPoints(*self.hook_points, "dt", "gate")
        self.keep_float32()

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """Mix `x` (b, t, m) over time; see `Mixer.forward`."""
        hooks = self.hook_points
        dt = hooks["dt"](F.softplus(self.dt_proj(x) + self.dt_bias))  # b t h
        gate = hooks["gate"](self.gate_proj(x))  # b t m
        g = -torch.exp(self.A_log) * dt  # b t h
        o, new_state = self.recall(x, g, state, return_state)
        y = self.norm(o).flatten(2) * F.silu(gate)  # b t m
        return self.out_proj(y), new_state

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw A uniform in [1, 16] and log-uniform steps; the rest as `DeltaNet`."""
        super().init_weights(config)
        init_steps(self.dt_bias)
        a = torch.empty(self.num_heads, device=self.A_log.device).uniform_(1, 16)
        init.copy_(self.A_log, a.log())
