"""H3 (Fu et al., arXiv 2212.14052): a shift on the keys, then a diagonal state space on k vᵀ.

Per head: k' = shift(k); y = qᵀ SSM(k' vᵀ). The shift is a state space that remembers its last
inputs, that is, a causal convolution with free taps; the second is S4D (arXiv 2206.11893): complex
diagonal, h ← Ā h + u, output 2 Re(C̄ h) + D u, one of them per head for all entries of k' vᵀ.

Use:

    MixerLMConfig.preset("h3", width=64, layers=2, vocab_size=8196, head_dim=2)

Hook points: `q`, `k`, `v` (projected), `conv_output` (k', the shifted key), `ssm_input` (k' vᵀ,
heads · e · e), `ssm_write` and `ssm_state` (the increment and the state, heads · e · e · states ·
2 with real and imaginary part last), `ssm_output`, `head_output` (read by q, before the output
projection).

Glossary: b batch, t time, d width, h heads, e head_dim, n complex states, w taps of the shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters import ops
from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerOptions, MixerState
from patchbench.adapters.mixers.stepwise import stepwise
from patchbench.adapters.ops.precision import no_autocast
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig

_DT_MIN, _DT_MAX = 1e-3, 1e-1


@dataclass(frozen=True, kw_only=True)
class H3Options(MixerOptions):
    """Settings of `H3`.

    Args:
        head_dim: width of a head (e); divides the width.
        d_state: size of the diagonal state space; half as many complex states (n). Even.
        d_conv: taps of the shift on the keys (w), 0 for none.
    """

    head_dim: int = 2
    d_state: int = 64
    d_conv: int = 64

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.d_state < 2 or self.d_state % 2:
            raise UserError(f"h3: d_state is {self.d_state}", "give an even number")
        if self.d_conv < 0:
            raise UserError(f"h3: d_conv is {self.d_conv}", "give 0 (none) or more")

    def check(self, config: MixerLMConfig) -> None:
        """Check that the heads fit the width."""
        if self.head_dim < 1 or config.hidden_size % self.head_dim:
            raise UserError(
                f"h3: head_dim {self.head_dim} does not divide the width {config.hidden_size}",
                "choose a divisor",
            )


class H3(Mixer):
    """Shift and diagonal state space; see the module's docstring and `Mixer`."""

    Options = H3Options
    float32_parameters = ("log_dt", "log_A_real", "A_imag", "C", "D")

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, H3Options)
        d = config.hidden_size
        self.head_dim = options.head_dim
        self.num_heads = h = d // options.head_dim
        n = options.d_state // 2
        self.in_proj = nn.Linear(d, 3 * d)
        self.shift = None
        if options.d_conv:
            self.shift = nn.Parameter(torch.empty(d, options.d_conv))  # d w, newest input first
        self.log_dt = nn.Parameter(torch.empty(h))
        self.log_A_real = nn.Parameter(torch.empty(h, n))
        self.A_imag = nn.Parameter(torch.empty(h, n))
        self.C = nn.Parameter(torch.empty(h, n, 2))
        self.D = nn.Parameter(torch.empty(h))
        self.out_proj = nn.Linear(d, d)
        self.hook_points = HookPoints(
            "q", "k", "v", "conv_output", "ssm_input", "ssm_write", "ssm_state", "ssm_output",
            "head_output",
        )  # fmt: skip

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`.

        State: "conv_state", up to w − 1 keys (b, ·, d), and "ssm_state" (b, h, e, e, n, 2).
        """
        b, t, _ = x.shape
        h, e, points = self.num_heads, self.head_dim, self.hook_points
        q, k, v = self.in_proj(x).chunk(3, -1)  # b t d each
        q, k, v = points["q"](q), points["k"](k), points["v"](v)
        new_state: MixerState = {}
        if self.shift is not None:
            past = None if state is None else state["conv_state"]
            k, seen = ops.long_conv(k, self.shift, initial_state=past, return_state=return_state)
            if seen is not None:
                before = self.shift.shape[1] - 1
                new_state["conv_state"] = seen[:, max(seen.shape[1] - before, 0) :]
        k = points["conv_output"](k).view(b, t, h, e, 1)
        u = points["ssm_input"]((k * v.view(b, t, h, 1, e)).flatten(2))  # b t h·e·e
        start = None if state is None else state["ssm_state"]
        with no_autocast(x):
            y, last = self._scan(u.to(self.D.dtype).view(b, t, h, e, e), start, return_state)
        if last is not None:
            new_state["ssm_state"] = last
        y = points["ssm_output"](y.flatten(2).to(x.dtype)).view(b, t, h, e, e)
        y = (q.view(b, t, h, e, 1) * y).sum(3).flatten(2)  # b t d
        y = self.out_proj(points["head_output"](y))
        return y, new_state if return_state else None

    def heads(self, component: str) -> int | None:
        """Return the number of heads of what is laid out head by head."""
        return self.num_heads if component in ("q", "k", "v", "head_output") else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return no keys before the shift and zero states."""
        h, e, n = self.num_heads, self.head_dim, self.A_imag.shape[1]
        state = {"ssm_state": torch.zeros(batch, h, e, e, n, 2, device=device, dtype=self.D.dtype)}
        if self.shift is not None:
            state["conv_state"] = torch.zeros(batch, 0, h * e, device=device, dtype=dtype)
        return state

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw the taps and C ~ N(0, 1), D ~ N(0, 1), A as in S4D-Lin, dt log-uniform."""
        if self.shift is not None:
            init.normal_(self.shift)
        h, n = self.A_imag.shape
        uniform = torch.rand(h, device=self.D.device)
        low, high = math.log(_DT_MIN), math.log(_DT_MAX)
        init.copy_(self.log_dt, low + uniform * (high - low))
        init.constant_(self.log_A_real, math.log(0.5))
        init.copy_(self.A_imag, math.pi * torch.arange(n, device=self.D.device).expand(h, n))
        init.normal_(self.C, std=math.sqrt(0.5))
        init.normal_(self.D)

    def _scan(
        self, u: Tensor, start: Tensor | None, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run the diagonal state space over u (b, t, h, e, e); see the module for the equations."""
        b, t, h, e, _ = u.shape
        A = torch.complex(-self.log_A_real.exp(), self.A_imag)  # h n
        dtA = A * self.log_dt.exp()[:, None]  # h n
        # Zero-order hold; the input weight is folded into the read-out.
        C = torch.view_as_complex(self.C) * torch.expm1(dtA) / A  # h n
        steps = torch.arange(t, device=u.device)
        powers = torch.exp(dtA[:, :, None] * steps)  # h n t
        skip = self.D.view(h, 1, 1) * u
        if self.hook_points["ssm_write"].active or self.hook_points["ssm_state"].active:
            read, states = self._states(u, dtA.exp(), start)  # b t h e e n 2
            read = torch.view_as_complex(read.contiguous())  # b t h e e n
            y = 2 * torch.einsum("bthijn,hn->bthij", read, C).real + skip
            return y, states[:, -1] if return_state else None
        kernel = 2 * torch.einsum("hn,hnt->ht", C, powers).real  # h t
        flat = u.permute(0, 3, 4, 1, 2).reshape(b * e * e, t, h)
        y, _ = ops.long_conv(flat, kernel)
        y = y.view(b, e, e, t, h).permute(0, 3, 4, 1, 2) + skip  # b t h e e
        past = None if start is None else torch.view_as_complex(start.contiguous())  # b h e e n
        if past is not None:
            reach = C[:, :, None] * powers * dtA.exp()[:, :, None]  # h n t
            y = y + 2 * torch.einsum("bhijn,hnt->bthij", past, reach).real
        if not return_state:
            return y, None
        new = torch.einsum("bthij,hnt->bhijn", u.to(powers.dtype), powers.flip(2))
        if past is not None:
            new = new + past * torch.exp(dtA * t)[:, None, None]
        return y, torch.view_as_real(new)

    def _states(self, u: Tensor, decay: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the states that each position reads, and leaves to the next (b t h e e n 2)."""
        b, t, h, e, _ = u.shape
        n = decay.shape[1]
        first = u.new_zeros(b, h, e, e, n, 2) if start is None else start
        factor = decay[:, None, None]  # h 1 1 n

        def keep(step: int, state: Tensor) -> Tensor:
            return torch.view_as_real(torch.view_as_complex(state.contiguous()) * factor)

        def write(step: int, state: Tensor) -> Tensor:
            real = u[:, step, ..., None, None].expand(b, h, e, e, n, 1)
            return F.pad(real, (0, 1))  # the imaginary part is 0

        hooks = self.hook_points
        return stepwise(
            keep, write, first, t, state_hook=hooks["ssm_state"], write_hook=hooks["ssm_write"]
        )
