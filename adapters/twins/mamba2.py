"""The twin of Mamba-2's mixer, which many hybrids have as well.

Glossary: b batch, t time, m model width, d inner width, h heads, p head width (h · p = d),
g groups, n state size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from patchbench.adapters.mixers.mamba2 import heads_of
from patchbench.adapters.mixers.recurrent import run_conv
from patchbench.adapters.mixers.scans import scan_heads
from patchbench.adapters.twins.base import Twin, masked


class Mamba2Twin(Twin):
    """Hook points as `patchbench.adapters.mixers.mamba2.Mamba2` has them."""

    points = (
        *("conv_input", "conv_output", "conv_state", "ssm_input", "dt", "B", "C"),
        *("ssm_write", "ssm_state", "ssm_output", "gate"),
    )

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix `x` (b, t, m) over time; see `Twin.mix`."""
        hooks, stock = self.hook_points, self.original
        x = masked(x, mask)
        if hasattr(stock, "ssm_in_multiplier"):  # FalconH1
            x = x * self.ssm_in_multiplier
        projected = self.in_proj(x)  # b t 2d+2gn+h
        if hasattr(stock, "mup_vector"):
            projected = projected * self.mup_vector
        shared = self.n_groups * self.ssm_state_size
        inner = self.intermediate_size
        gate, u, dt = projected.split([inner, inner + 2 * shared, self.num_heads], dim=-1)
        gate = hooks["gate"](gate)  # b t d
        u, _ = run_conv(self.conv1d, u, hooks, None, return_state=False)
        u, B, C = masked(self.act(u), mask).split([inner, shared, shared], dim=-1)
        u, B, C = hooks["ssm_input"](u), hooks["B"](B), hooks["C"](C)  # b t d, b t gn, b t gn
        dt = F.softplus(dt + self.dt_bias.float()).clamp(*self.time_step_limit)
        y, _ = scan_heads(
            hooks,
            u.unflatten(-1, (self.num_heads, self.head_dim)),  # b t h p
            hooks["dt"](dt),  # b t h
            -torch.exp(self.A_log.float()),  # h
            B.unflatten(-1, (self.n_groups, -1)),  # b t g n
            C.unflatten(-1, (self.n_groups, -1)),  # b t g n
            self.D.float(),
            None,
            return_state=False,
            chunk_size=self.chunk_size,
        )
        y = hooks["ssm_output"](y.flatten(2))  # b t d
        normed = getattr(stock, "mamba_rms_norm", True)  # FalconH1 may leave the norm out
        y = self.norm(y, gate) if normed else y * F.silu(gate)
        return self.out_proj(y.to(x.dtype))

    def heads(self, component: str) -> int | None:
        """Return the number of heads of what is laid out head by head; groups for B and C."""
        return heads_of(component, self.num_heads, self.n_groups)
