"""An architecture: a mixer that sums what it has seen, older tokens less.

Use:

    MixerLMConfig.preset("leaky,attention", width=32, layers=2, vocab_size=64, decay=0.5)
"""

from dataclasses import dataclass

import torch
from torch import nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers import Mixer, MixerOptions


@dataclass(frozen=True, kw_only=True)
class LeakyOptions(MixerOptions):
    """Settings of `Leaky`.

    Args:
        decay: what a token's share is multiplied by with each further token.
    """

    decay: float = 0.9


class Leaky(Mixer):
    """out_proj(s), s = decay · s + x; the state is {"ssm_state": s}."""

    Options = LeakyOptions

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.decay = config.options_for(layer).decay
        self.hook_points = HookPoints("ssm_state")
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, state=None, *, return_state=False):
        """See `Mixer.forward`."""
        total = (state or self.initial_state(len(x), x.device, x.dtype))["ssm_state"]
        states = []
        for t in range(x.shape[1]):
            total = self.decay * total + x[:, t]  # b d
            states.append(total)
        states = self.hook_points["ssm_state"](torch.stack(states, 1))  # b t d
        y = self.out_proj(states.to(x.dtype))
        return y, {"ssm_state": states[:, -1]} if return_state else None

    def initial_state(self, batch, device, dtype):
        """See `Mixer.initial_state`."""
        width = self.out_proj.in_features
        dtype = torch.promote_types(dtype, torch.float32)  # a long sum in half precision drifts
        return {"ssm_state": torch.zeros(batch, width, device=device, dtype=dtype)}
