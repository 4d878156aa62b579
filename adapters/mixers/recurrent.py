"""What Mamba, Mamba-2 and the delta nets share: the short convolution, step sizes, norms.

Glossary: b batch, t time, d channels, w convolution width.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters import ops
from patchbench.adapters.hook_points import Hook, HookPoints
from patchbench.adapters.mixers.base import MixerOptions, MixerState
from patchbench.adapters.mixers.stepwise import stepwise
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.common import UserError

# Steps of a fresh model are log-uniform in this range (arXiv 2312.00752, section 3.6).
STEP_RANGE = (1e-3, 1e-1)
STEP_FLOOR = 1e-4


@dataclass(frozen=True, kw_only=True)
class ConvOptions(MixerOptions):
    """Settings of a mixer with a short convolution.

    Args:
        d_conv: width of the convolution; 0 for none, whose activation stays.
    """

    d_conv: int = 4

    def __post_init__(self) -> None:
        """Check the width."""
        if not isinstance(self.d_conv, int) or self.d_conv < 0:
            raise UserError(f"d_conv is {self.d_conv!r}", "give 0 (no convolution), 1, 2, 3, 4, …")


def check_positive(mixer: str, **values: int | None) -> None:
    """Raise `UserError` for a value that is neither None nor a whole number of at least 1."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f"{mixer}: {name} is {value!r}", "give a whole number of at least 1")


def conv_points(width: int) -> tuple[str, ...]:
    """Return the hook points of a convolution of this width: one of width 1 has no state."""
    names = ("conv_input", "conv_output", "conv_state")
    return names[: min(width + 1, 3)] if width else ()


def depthwise_conv(channels: int, width: int, *, bias: bool) -> nn.Conv1d | None:
    """Return the module that holds the convolution's weights, or None for width 0."""
    return nn.Conv1d(channels, channels, width, groups=channels, bias=bias) if width else None


def run_conv(
    conv: nn.Conv1d | None,
    x: Tensor,
    hook_points: HookPoints,
    state: MixerState | None,
    *,
    return_state: bool,
) -> tuple[Tensor, MixerState]:
    """Convolve `x` (b, t, d) causally, through its hook points; without a convolution return it.

    Returns:
        The convolved values before any activation, and the state {"conv_state": last w − 1 inputs},
        empty without a convolution or when not asked for.
    """
    if conv is None:
        return x, {}
    x, weight = hook_points["conv_input"](x), conv.weight.squeeze(1)
    start = None if state is None else state["conv_state"]
    if "conv_state" in hook_points and hook_points["conv_state"].active:
        y, last = _conv_by_steps(x, weight, conv.bias, start, hook_points["conv_state"])
    else:
        y, last = ops.short_conv(
            x, weight, conv.bias, initial_state=start, return_state=return_state
        )
    return hook_points["conv_output"](y), {} if last is None else {"conv_state": last}


def _conv_by_steps(
    x: Tensor, weight: Tensor, bias: Tensor | None, start: Tensor | None, hook: Hook
) -> tuple[Tensor, Tensor]:
    """Convolve `x` (b, t, d) from windows that a hook may replace; see `run_conv`."""
    past = weight.shape[1] - 1
    start = x.new_zeros(len(x), past, x.shape[-1]) if start is None else start.to(x.dtype)
    _, states = stepwise(
        keep=lambda t, window: F.pad(window[:, 1:], (0, 0, 0, 1)),
        write=lambda t, kept: F.pad(x[:, t, None], (0, 0, past - 1, 0)),
        start=start,
        length=x.shape[1],
        state_hook=hook,
    )  # b t w-1 d
    before = torch.cat([start[:, None], states[:, :-1]], 1)  # b t w-1 d
    dtype = working_dtype(x, weight)  # as the fast form computes it
    with no_autocast(x):
        taps = weight.to(dtype)
        y = torch.einsum("btwd,dw->btd", before.to(dtype), taps[:, :-1])  # b t d
        y = y + x.to(dtype) * taps[:, -1]
        if bias is not None:
            y = y + bias.to(dtype)
    return y.to(x.dtype), states[:, -1]


def empty_conv_state(
    conv: nn.Conv1d | None, batch: int, device: torch.device, dtype: torch.dtype
) -> MixerState:
    """Return the convolution's part of the state before the first token."""
    if conv is None:
        return {}
    past = conv.kernel_size[0] - 1
    return {"conv_state": torch.zeros(batch, past, conv.in_channels, device=device, dtype=dtype)}


def l2_normalise(x: Tensor) -> Tensor:
    """Scale the last dimension to unit length; 0 stays 0, with a finite gradient."""
    full = x.to(torch.promote_types(x.dtype, torch.float32))
    return (full * torch.rsqrt(full.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def init_steps(bias: Tensor) -> None:
    """Set a bias so that softplus(bias) is log-uniform in `STEP_RANGE`."""
    low, high = (math.log(edge) for edge in STEP_RANGE)
    uniform = torch.rand(bias.shape, device=bias.device, dtype=torch.float32)
    step = torch.exp(low + uniform * (high - low)).clamp(min=STEP_FLOOR)
    init.copy_(bias, step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
