"""Hook points: identity, and aware of everything that may look at a value."""

import pytest
import torch
from torch import nn

from patchbench.adapters import MIXERS, MixerLMConfig
from patchbench.adapters.hook_points import Hook, HookPoints


def test_names_in_order_and_paths_under_a_mixer() -> None:
    mixer = nn.Module()
    mixer.hook_points = HookPoints("q", "dt", "B", "gate")
    assert list(mixer.hook_points) == ["q", "dt", "B", "gate"]
    assert isinstance(mixer.get_submodule("hook_points.dt"), Hook)
    assert not list(mixer.parameters())


def test_passes_the_very_same_tensor() -> None:
    x = torch.zeros(1, 2, 3)
    assert HookPoints("q")["q"](x) is x


@pytest.mark.parametrize(
    "register",
    [
        lambda hook: hook.register_forward_hook(lambda *_: None),
        lambda hook: hook.register_forward_hook(lambda *_, **__: None, with_kwargs=True),
        lambda hook: hook.register_forward_pre_hook(lambda *_: None),
        lambda hook: hook.register_full_backward_hook(lambda *_: None),
        lambda hook: hook.register_full_backward_pre_hook(lambda *_: None),
        lambda hook: nn.modules.module.register_module_forward_hook(lambda *_: None),
        lambda hook: nn.modules.module.register_module_forward_pre_hook(lambda *_: None),
    ],
    ids=["forward", "kwargs", "pre", "backward", "backward-pre", "global", "global-pre"],
)
def test_active_exactly_while_a_hook_is_there(register) -> None:
    hook = HookPoints("q")["q"]
    assert not hook.active
    handle = register(hook)
    assert hook.active
    handle.remove()
    assert not hook.active


def test_a_replaced_forward_is_noticed() -> None:
    hook = Hook()
    hook.forward = lambda x: x + 1
    assert hook.active
    assert float(hook(torch.zeros(()))) == 1


SSM = ("ssm_write", "ssm_state", "ssm_output")
CONV = ("conv_input", "conv_output")
# What each mixer offers; "conv_state" comes with a convolution that has a past.
OFFERED = {
    "attention": ("q", "k", "v", "attn_weights", "head_output"),
    "linear_attention": ("q", "k", "v", "attn_weights", *SSM[:2], "head_output"),
    "base_conv": (*CONV, "gate"),
    "hyena": (*CONV, "q", "k", "v", "ssm_input", "ssm_output", "head_output"),
    "h3": ("q", "k", "v", "conv_output", "ssm_input", *SSM, "head_output"),
    "mamba": (*CONV, "ssm_input", "dt", "B", "C", *SSM, "gate"),
    "mamba2": (*CONV, "ssm_input", "dt", "B", "C", *SSM, "gate"),
    "delta_net": (*CONV, "q", "k", "v", "beta", *SSM),
    "gated_delta_net": (*CONV, "q", "k", "v", "beta", "dt", *SSM, "gate"),
}


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_offers_its_inner_values(name: str) -> None:
    config = MixerLMConfig(vocab_size=4, hidden_size=8, mixers=[name])
    assert {*MIXERS[name](config, 0).hook_points} - {"conv_state"} == {*OFFERED[name]}
