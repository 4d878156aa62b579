"""Hyena of order 2 (Poli et al., arXiv 2302.10866): two gates around a long implicit convolution.

(q, k, v) = shortconv(W u); y = W' (q ⊙ (filter ∗ (k ⊙ v) + D ⊙ k ⊙ v)).

Use:

    MixerLMConfig.preset("hyena", width=64, layers=2, vocab_size=8196, d_conv=3)

Hook points: `conv_input` and `conv_output` (before and after the short convolution, 3 widths: q, k
and v side by side; absent with `d_conv=0`), `q`, `k`, `v` (its three parts), `ssm_input` (k ⊙ v,
what enters the long convolution), `ssm_output` (what leaves it, with the D term), `head_output`
(gated by q, before the output projection).

Glossary: b batch, t time, d width, w taps of the short convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters import ops
from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerState
from patchbench.adapters.mixers.filters import FilterOptions, ImplicitFilter
from patchbench.adapters.mixers.recurrent import (
    conv_points,
    depthwise_conv,
    empty_conv_state,
    run_conv,
)
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class HyenaOptions(FilterOptions):
    """Settings of `Hyena`.

    Args:
        d_conv: taps of the short convolution on the projections (w), 0 for none.
    """

    d_conv: int = 3

    def __post_init__(self) -> None:
        """Check the short convolution's width."""
        super().__post_init__()
        if self.d_conv < 0:
            raise UserError(f"hyena: d_conv is {self.d_conv}", "give 0 (none) or more")

    @property
    def limits_length(self) -> bool:
        """True: the filter is implicit."""
        return True


class Hyena(Mixer):
    """Gated long convolution; see the module's docstring and `Mixer`."""

    Options = HyenaOptions

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, HyenaOptions)
        d = config.hidden_size
        self.max_length = config.max_position_embeddings or 1
        self.in_proj = nn.Linear(d, 3 * d)
        self.conv1d = depthwise_conv(3 * d, options.d_conv, bias=True)
        self.filter = ImplicitFilter(d, self.max_length, options)
        self.D = nn.Parameter(torch.empty(d))
        self.out_proj = nn.Linear(d, d)
        self.hook_points = HookPoints(
            *conv_points(options.d_conv),
            *("q", "k", "v", "ssm_input", "ssm_output", "head_output"),
        )

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`; the state: "conv_state" (b, w − 1, 3 d), "history" (b, t, d)."""
        points = self.hook_points
        projected, new_state = run_conv(
            self.conv1d, self.in_proj(x), points, state, return_state=return_state
        )  # b t 3d
        q, k, v = projected.chunk(3, -1)  # b t d each
        q, k, v = points["q"](q), points["k"](k), points["v"](v)
        u = points["ssm_input"](k * v)
        past = None if state is None else state["history"]
        seen = x.shape[1] + (0 if past is None else past.shape[1])
        y, history = ops.long_conv(
            u, self.filter(seen), initial_state=past, return_state=return_state
        )
        if history is not None:
            new_state["history"] = history
        y = points["ssm_output"](torch.addcmul(y, u, self.D))
        y = self.out_proj(points["head_output"](q * y))
        return y, new_state if return_state else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return zeros before the short convolution and no history."""
        d = self.D.shape[0]
        history = torch.zeros(batch, 0, d, device=device, dtype=dtype)
        return empty_conv_state(self.conv1d, batch, device, dtype) | {"history": history}

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw D ~ N(0, 1) and set the filter's frequencies."""
        init.normal_(self.D)
        self.filter.init_weights()
