"""BaseConv (Arora et al., arXiv 2312.04927): a convolution gated by a projection, plus the input.

y = conv(u) ⊙ (W u + b) + u, channel by channel. The convolution is short (a few taps and a bias)
or long (an implicit filter over the whole past).

Use:

    MixerLMConfig.preset("base_conv", width=64, layers=4, vocab_size=26)      # 3, long, 3, long
    MixerLMConfig.preset("based", width=64, layers=2, vocab_size=26, d_conv=2)

Hook points: `conv_input` (u), `conv_output` (conv(u)), `gate` (W u + b).

Glossary: b batch, t time, d width, w taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from patchbench.adapters import ops
from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerState
from patchbench.adapters.mixers.filters import FilterOptions, ImplicitFilter
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig


@dataclass(frozen=True, kw_only=True)
class BaseConvOptions(FilterOptions):
    """Settings of `BaseConv`; those of the implicit filter matter only for a long convolution.

    Args:
        d_conv: number of taps (w), or "long".
    """

    d_conv: int | str = 3

    def __post_init__(self) -> None:
        """Check the convolution's width."""
        super().__post_init__()
        if self.d_conv != "long" and (not isinstance(self.d_conv, int) or self.d_conv < 1):
            raise UserError(f"base_conv: d_conv is {self.d_conv!r}", 'give 1, 2, 3, … or "long"')

    @property
    def limits_length(self) -> bool:
        """Whether the filter is implicit."""
        return self.d_conv == "long"


class BaseConv(Mixer):
    """Gated convolution; see the module's docstring and `Mixer`."""

    Options = BaseConvOptions
    residual_projection = None

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, BaseConvOptions)
        width = config.hidden_size
        self.in_proj = nn.Linear(width, width)
        self.conv1d = self.filter = None
        if isinstance(options.d_conv, int):
            self.conv1d = nn.Conv1d(width, width, options.d_conv, groups=width)
        else:
            self.max_length = config.max_position_embeddings or 1
            self.filter = ImplicitFilter(width, self.max_length, options)
        self.hook_points = HookPoints("conv_input", "conv_output", "gate")

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`; the state is {"conv_state": the last w − 1 inputs, or all}."""
        hook = self.hook_points["conv_input"]
        u = hook(x.clone() if hook.active else x)  # b t d; the gate reads x as it was
        past = None if state is None else state["conv_state"]
        if self.conv1d is not None:
            y, last = ops.short_conv(
                u,
                self.conv1d.weight[:, 0],
                self.conv1d.bias,
                initial_state=past,
                return_state=return_state,
            )
        else:
            assert self.filter is not None
            seen = x.shape[1] + (0 if past is None else past.shape[1])
            y, last = ops.long_conv(
                u, self.filter(seen), initial_state=past, return_state=return_state
            )
        y = self.hook_points["conv_output"](y)
        y = torch.addcmul(x, y, self.hook_points["gate"](self.in_proj(x)))  # b t d
        return y, {"conv_state": last} if last is not None else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return zeros for the inputs that a short convolution still needs, or no inputs."""
        before = 0 if self.conv1d is None else self.conv1d.kernel_size[0] - 1
        shape = (batch, before, self.in_proj.in_features)
        return {"conv_state": torch.zeros(shape, device=device, dtype=dtype)}

    def init_weights(self, config: MixerLMConfig) -> None:
        """Set the implicit filter's frequencies."""
        if self.filter is not None:
            self.filter.init_weights()
