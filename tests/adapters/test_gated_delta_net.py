"""Gated DeltaNet against its equations in NumPy, and its initialisation."""

import numpy as np
import pytest
import torch

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.mixers.gated_delta_net import GatedDeltaNet
from tests.adapters import recurrent_checks as checks
from tests.adapters.hooked import Eye, silu, softplus, weights
from tests.adapters.test_delta_net import recall

OPTIONS = [{}, {"num_heads": 2}, {"d_conv": 0}, {"d_conv": 1, "chunk_size": 2}]
each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def by_hand(mixer: GatedDeltaNet, x: np.ndarray, eye: Eye) -> np.ndarray:
    p = weights(mixer)
    dt = eye.see("dt", softplus(x @ p["dt_proj.weight"].T + p["dt_bias"]))
    gate = eye.see("gate", x @ p["gate_proj.weight"].T)
    o = recall(mixer, x, eye, -np.exp(p["A_log"]) * dt)
    heads = o.reshape(*x.shape[:2], mixer.num_heads, mixer.head_dim)
    heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * p["norm.weight"]
    return (heads.reshape(x.shape) * silu(gate)) @ p["out_proj.weight"].T


@each
def test_values_are_the_definitions(options):
    checks.check_values(checks.build("gated_delta_net", **options), by_hand)


@each
def test_patches_propagate_as_in_the_definition(options):
    checks.check_patches(checks.build("gated_delta_net", **options), by_hand)


@each
def test_states_carry_over(options):
    checks.check_states(checks.build("gated_delta_net", **options))


def test_identity_hooks_change_nothing():
    checks.check_identity_hooks(checks.build("gated_delta_net"))


def test_a_patched_state_is_continued():
    checks.check_patched_state_is_continued(checks.build("gated_delta_net"))


def test_gradient_of_a_patched_state():
    checks.check_gradient_of_a_patch(checks.build("gated_delta_net"))


def test_half_precision_keeps_the_recurrence_in_float32():
    checks.check_half_precision(checks.build("gated_delta_net"), {"A_log", "dt_bias"})


def test_initialisation_forgets_slowly_at_many_rates():
    torch.manual_seed(0)
    config = MixerLMConfig.preset("gated_delta_net", width=128, vocab_size=10, num_heads=128)
    mixer = MixerLMForCausalLM(config).backbone.layers[0].mixer
    assert isinstance(mixer, GatedDeltaNet)
    rate = mixer.A_log.exp().detach()
    assert 1 <= float(rate.min()) < 2
    assert 15 < float(rate.max()) <= 16
    steps = torch.nn.functional.softplus(mixer.dt_bias).detach()
    assert 0.001 <= float(steps.min()) < 0.002
    assert 0.05 < float(steps.max()) <= 0.1
