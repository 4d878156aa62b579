"""The twin of Mamba-1's mixer, as Mamba, FalconMamba and Jamba have it.

Glossary: b batch, t time, m model width, d inner width, n state size, r rank of the step size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from patchbench.adapters.mixers.recurrent import run_conv
from patchbench.adapters.mixers.scans import scan_channels
from patchbench.adapters.twins.base import Twin, masked


class MambaTwin(Twin):
    """Hook points as `patchbench.adapters.mixers.mamba.Mamba` has them."""

    points = (
        *("conv_input", "conv_output", "conv_state", "ssm_input", "dt", "B", "C"),
        *("ssm_write", "ssm_state", "ssm_output", "gate"),
    )

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix `x` (b, t, m) over time; see `Twin.mix`."""
        hooks = self.hook_points
        u, gate = self.in_proj(masked(x, mask)).chunk(2, dim=-1)  # b t d, b t d
        gate = hooks["gate"](gate)
        u, _ = run_conv(self.conv1d, u, hooks, None, return_state=False)
        u = hooks["ssm_input"](masked(self.act(u), mask))
        sizes = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
        dt, B, C = self.x_proj(u).split(sizes, dim=-1)  # b t r, b t n, b t n
        if hasattr(self.original, "dt_layernorm"):  # FalconMamba, Jamba
            dt, B, C = self.dt_layernorm(dt), self.b_layernorm(B), self.c_layernorm(C)
        dt = F.linear(dt, self.dt_proj.weight)  # b t d
        dt = hooks["dt"](F.softplus(dt + self.dt_proj.bias.float()))
        B, C = hooks["B"](B), hooks["C"](C)
        A = -torch.exp(self.A_log.float())  # d n
        y, _ = scan_channels(hooks, u, dt, A, B, C, self.D.float(), None, return_state=False)
        y = hooks["ssm_output"](y) * F.silu(gate)  # b t d
        return self.out_proj(y.to(x.dtype))
