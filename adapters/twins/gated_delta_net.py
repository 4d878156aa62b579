"""The twin of the gated delta rule's mixer, as Qwen3-Next, Qwen3.5 and OLMo-Hybrid have it.

Glossary: b batch, t time, m model width, h heads of the values, j heads of the keys (j divides h),
k key width, v value width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from patchbench.adapters.mixers.recurrent import l2_normalise, run_conv
from patchbench.adapters.mixers.scans import delta_memory
from patchbench.adapters.twins.base import Twin, masked

CHUNK_SIZE = 64


class GatedDeltaNetTwin(Twin):
    """Hook points as `patchbench.adapters.mixers.gated_delta_net.GatedDeltaNet` has them.

    `q` and `k` are of unit length, as the memory is read and written; q's scale comes after.
    """

    points = (
        *("conv_input", "conv_output", "conv_state", "q", "k", "v"),
        *("beta", "dt", "ssm_write", "ssm_state", "ssm_output", "gate"),
    )

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix `x` (b, t, m) over time; see `Twin.mix`."""
        hooks, stock = self.hook_points, self.original
        u, gate, write, step = self._project(masked(x, mask))
        gate = hooks["gate"](gate)  # b t hv
        u, _ = run_conv(self.conv1d, u, hooks, None, return_state=False)
        q, k, v = F.silu(u).split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        # Not rounded to the weights' format again, as in the stock mixer.
        q, k = (z.to(torch.promote_types(z.dtype, torch.float32)) for z in (q, k))
        q, k = (l2_normalise(z.unflatten(-1, (-1, self.head_k_dim))) for z in (q, k))  # b t j k
        q, k, v = hooks["q"](q.flatten(2)), hooks["k"](k.flatten(2)), hooks["v"](v)
        repeats = self.num_v_heads // self.num_k_heads
        q, k = (
            z.unflatten(-1, (-1, self.head_k_dim)).repeat_interleave(repeats, 2) for z in (q, k)
        )  # b t h k
        beta = torch.sigmoid(write)  # b t h
        if getattr(stock, "allow_neg_eigval", False):  # OLMo-Hybrid
            beta = 2 * beta
        dt = hooks["dt"](F.softplus(step.float() + self.dt_bias))  # b t h
        o, _ = delta_memory(
            hooks,
            q * self.head_k_dim**-0.5,
            k,
            v.unflatten(-1, (-1, self.head_v_dim)),  # b t h v
            hooks["beta"](beta),
            -torch.exp(self.A_log.float()) * dt,
            None,
            return_state=False,
            chunk_size=CHUNK_SIZE,
        )  # b t h v
        o = hooks["ssm_output"](o.flatten(2)).unflatten(-1, (-1, self.head_v_dim))  # b t h v
        norm = self.o_norm if hasattr(stock, "o_norm") else self.norm
        out = self.o_proj if hasattr(stock, "o_proj") else self.out_proj
        return out(norm(o, gate.view_as(o)).flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k and v side by side, the gate, and what beta and the step come from."""
        stock = self.original
        if hasattr(stock, "in_proj_qkvz"):  # Qwen3-Next, whose heads are interleaved
            projected = self.in_proj_qkvz(x), self.in_proj_ba(x)
            q, k, v, gate, write, step = self.fix_query_key_value_ordering(*projected)
            return torch.cat([z.flatten(2) for z in (q, k, v)], -1), gate.flatten(2), write, step
        if hasattr(stock, "in_proj_qkv"):  # Qwen3.5
            return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        return qkv, self.g_proj(x), self.b_proj(x), self.a_proj(x)

    def heads(self, component: str) -> int | None:
        """Return the number of heads of what is laid out head by head."""
        if component in ("q", "k"):
            return self.num_k_heads
        return None if component.startswith("conv") else self.num_v_heads
