"""An architecture of one's own: a mixer that remembers a decaying sum, next to attention.

A mixer is one class with its options; training, saving, generation and inner sites come with it.

    python examples/own_architecture.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import patchbench as pb
from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers import Mixer, MixerOptions, MixerState


@dataclass(frozen=True, kw_only=True)
class FadingOptions(MixerOptions):
    """Settings: what a token's share is multiplied by with each further token."""

    decay: float = 0.9


@MIXERS.register("fading")
class Fading(Mixer):
    """s = decay · s + x; the output is a linear map of s."""

    Options = FadingOptions

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.decay = vars(config.options_for(layer))["decay"]
        self.hook_points = HookPoints("ssm_state")
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`."""
        total = (state or self.initial_state(len(x), x.device, x.dtype))["ssm_state"]
        sums = []
        for t in range(x.shape[1]):
            total = self.decay * total + x[:, t]  # b d
            sums.append(total)
        states = self.hook_points["ssm_state"](torch.stack(sums, 1))  # b t d
        y = self.out_proj(states.to(x.dtype))
        return y, {"ssm_state": states[:, -1]} if return_state else None

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """See `Mixer.initial_state`."""
        width = self.out_proj.in_features
        dtype = torch.promote_types(dtype, torch.float32)  # a long sum in half precision drifts
        return {"ssm_state": torch.zeros(batch, width, device=device, dtype=dtype)}


def main(n: int = 32) -> pb.Result:
    """Build a hybrid with the mixer and patch its state; untrained, it is below the gate."""
    task = pb.load_task("ar/tiny")
    torch.manual_seed(0)
    model = MixerLMForCausalLM(
        MixerLMConfig.preset("fading,attention", width=32, layers=2, vocab_size=task.vocab_size)
    )
    result = pb.evaluate(model, task, n=n, components=["ssm_state", "block_input"], layers=[0, 1])
    print(sorted(set(result.rows["site"].to_pylist())))
    print(result.verdict)
    return result


if __name__ == "__main__":
    main()
