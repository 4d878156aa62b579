"""What every mixer is: a module from (batch, time, width) to the same shape that looks only back.

A mixer names its inner values as hook points, can continue from a state (token by token or chunk
by chunk, with the same result as in one go), and draws its own special initialisation.

Use:

    @dataclass(frozen=True, kw_only=True)
    class LeakyOptions(MixerOptions):
        decay: float = 0.9

    @MIXERS.register("leaky")
    class Leaky(Mixer):
        Options = LeakyOptions

        def __init__(self, config, layer):
            super().__init__(config, layer)
            self.options = config.options_for(layer)           # a LeakyOptions
            self.hook_points = HookPoints("ssm_state")
            self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig

MixerState = dict[str, Tensor]
"""What a mixer remembers of the past; every tensor has the batch as its first dimension."""


@dataclass(frozen=True, kw_only=True)
class MixerOptions:
    """Settings of one mixer; subclasses add fields and check them in `__post_init__`."""

    def check(self, config: MixerLMConfig) -> None:
        """Raise `UserError` where the options do not fit the rest of the model's config."""

    @property
    def limits_length(self) -> bool:
        """Whether the mixer learns something per position, up to `max_position_embeddings`."""
        return False


class Mixer(nn.Module):
    """A causal map (batch, time, width) → (batch, time, width).

    Args:
        config: the model's config; `config.options_for(layer)` gives this layer's `Options`.
        layer: the layer's index, from 0.

    Attributes:
        Options: the dataclass of the mixer's settings.
        float32_parameters: names of parameters that stay fp32 when the model is cast to bf16 or
            fp16 (`"A_log"`, `"dt_proj.bias"`): rounding them is amplified over time.
        linear_init: "config" to draw the Linears by the config's rule, "pytorch" where the mixer's
            authors use PyTorch's default whatever the rest of the model does.
        residual_projection: name of the last Linear, whose initial scale shrinks with depth under
            the config's rule "normal".
        max_length: the longest sequence the mixer can take, or None.
        hook_points: the inner values that hooks may read and replace, by component word.
    """

    Options: ClassVar[type[MixerOptions]] = MixerOptions
    float32_parameters: ClassVar[tuple[str, ...]] = ()
    linear_init: ClassVar[Literal["config", "pytorch"]] = "config"
    residual_projection: ClassVar[str | None] = "out_proj"
    max_length: int | None = None
    hook_points: HookPoints

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """Mix `x` over time.

        Args:
            x: (batch, time, width).
            state: what an earlier call returned; `x` continues from there. None: from scratch.
            return_state: whether to return the state after the last token of `x`.

        Returns:
            The mixed values, (batch, time, width), and the new state or None. `state` itself is
            left as it was.
        """
        raise TypeError(f"{type(self).__name__} defines no forward")

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return the state before the first token; continuing from it equals starting afresh.

        Args:
            batch: number of rows.
            device: where the tensors live.
            dtype: the model's dtype; recurrent states are fp32 whatever it is.
        """
        raise TypeError(f"{type(self).__name__} defines no initial_state")

    def heads(self, component: str) -> int | None:
        """Return in how many equal slices a component's features belong to one head each."""
        return None

    def init_weights(self, config: MixerLMConfig) -> None:
        """Draw the initial weights that differ from the model's common rule.

        Called after all Linears of the mixer were drawn (see `linear_init`). Use the functions of
        `transformers.initialization` (they leave loaded weights alone), also for non-persistent
        buffers: a loaded model is built without memory and filled here.
        """

    def keep_float32(self) -> None:
        """Cast the parameters of `float32_parameters` to fp32."""
        for name in self.float32_parameters:
            parameter = self.get_parameter(name)
            parameter.data = parameter.data.float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.to(bfloat16)` and `.half()` come through here. The old values are put back, not cast
        # up again: the detour through bf16 would have rounded them.
        kept = [(self.get_parameter(name), self.get_parameter(name).data) for name in self._kept()]
        super()._apply(fn, recurse)
        for parameter, old in kept:
            if parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.data = old.to(parameter.device)
        return self

    def _kept(self) -> tuple[str, ...]:
        return tuple(n for n in self.float32_parameters if n in dict(self.named_parameters()))


def check_heads(mixer: str, width: int, num_heads: int) -> None:
    """Raise `UserError` unless `num_heads` splits `width` evenly."""
    if num_heads < 1 or width % num_heads:
        raise UserError(
            f"{mixer}: num_heads {num_heads} does not divide the width {width}", "choose a divisor"
        )
