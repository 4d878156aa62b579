"""Mamba-2 against its equations in NumPy, and its initialisation."""

import numpy as np
import pytest
import torch

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.mixers.mamba2 import Mamba2
from patchbench.common import UserError
from tests.adapters import recurrent_checks as checks
from tests.adapters.hooked import Eye, convolve, silu, softplus, weights

OPTIONS = [
    {"d_state": 5, "head_dim": 4},
    {"d_state": 5},
    {"d_state": 3, "head_dim": 4, "num_groups": 2, "chunk_size": 2},
    {"d_state": 3, "head_dim": 4, "num_groups": 4, "d_conv": 0},
    {"d_state": 3, "expand": 1, "d_conv": 1},
]
each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def by_hand(mixer: Mamba2, x: np.ndarray, eye: Eye) -> np.ndarray:
    p = weights(mixer)
    heads, width, groups, n = mixer.num_heads, mixer.head_dim, mixer.groups, mixer.d_state
    inner, shared = heads * width, groups * n
    gate, u, dt = np.split(x @ p["in_proj.weight"].T, [inner, 2 * inner + 2 * shared], -1)
    gate = eye.see("gate", gate)
    u = silu(convolve(eye, u, p.get("conv1d.weight"), p.get("conv1d.bias", 0.0)))
    u, B, C = np.split(u, [inner, inner + shared], -1)
    u, B, C = eye.see("ssm_input", u), eye.see("B", B), eye.see("C", C)
    dt = eye.see("dt", softplus(dt + p["dt_bias"]))
    y = np.zeros_like(u)
    h = np.zeros((len(x), heads, width, n))
    for t in range(x.shape[1]):
        write, kept = np.zeros_like(h), np.zeros_like(h)
        for head in range(heads):
            group = head // (heads // groups)
            b = B[:, t, group * n : (group + 1) * n]
            channels = u[:, t, head * width : (head + 1) * width]
            write[:, head] = np.einsum("b,bp,bn->bpn", dt[:, t, head], channels, b)
            decay = np.exp(-np.exp(p["A_log"][head]) * dt[:, t, head])
            kept[:, head] = decay[:, None, None] * h[:, head]
        h = kept + eye.step("ssm_write", t, write)
        for head in range(heads):
            group = head // (heads // groups)
            mine = slice(head * width, (head + 1) * width)
            c = C[:, t, group * n : (group + 1) * n]
            y[:, t, mine] = np.einsum("bpn,bn->bp", h[:, head], c) + p["D"][head] * u[:, t, mine]
        h = eye.step("ssm_state", t, h)
    y = eye.see("ssm_output", y) * silu(gate)
    for part in np.split(np.arange(inner), groups):
        y[..., part] /= np.sqrt((y[..., part] ** 2).mean(-1, keepdims=True) + 1e-5)
    return (y * p["norm.weight"]) @ p["out_proj.weight"].T


@each
def test_values_are_the_definitions(options):
    checks.check_values(checks.build("mamba2", **options), by_hand)


@each
def test_patches_propagate_as_in_the_definition(options):
    checks.check_patches(checks.build("mamba2", **options), by_hand)


@each
def test_states_carry_over(options):
    checks.check_states(checks.build("mamba2", **options))


def test_identity_hooks_change_nothing():
    checks.check_identity_hooks(checks.build("mamba2", **OPTIONS[0]))


def test_a_patched_state_is_continued():
    checks.check_patched_state_is_continued(checks.build("mamba2", **OPTIONS[0]))


def test_gradient_of_a_patched_state():
    checks.check_gradient_of_a_patch(checks.build("mamba2", **OPTIONS[0]))


def test_no_state_is_materialised_unless_hooked(monkeypatch):
    checks.check_nothing_stepwise_unless_hooked(checks.build("mamba2", **OPTIONS[0]), monkeypatch)


def test_half_precision_keeps_the_recurrence_in_float32():
    checks.check_half_precision(checks.build("mamba2", **OPTIONS[0]), {"A_log", "D", "dt_bias"})


def test_initialisation_is_the_authors():
    torch.manual_seed(0)
    config = MixerLMConfig.preset("mamba2", width=128, layers=2, vocab_size=10, head_dim=2)
    mixer = MixerLMForCausalLM(config).backbone.layers[1].mixer
    assert isinstance(mixer, Mamba2)
    decay = mixer.A_log.exp().detach()
    assert 1 <= float(decay.min()) < 2
    assert 15 < float(decay.max()) <= 16
    assert torch.equal(mixer.D, torch.ones(128))
    assert torch.equal(mixer.norm.weight, torch.ones(256))
    steps = torch.nn.functional.softplus(mixer.dt_bias).detach()
    assert 0.001 <= float(steps.min()) < 0.002
    assert 0.05 < float(steps.max()) <= 0.1
    for name, bound in (
        ("in_proj", 1 / 128**0.5),  # PyTorch's default: ±1/√(fan in)
        ("out_proj", 1 / 256**0.5 / 2**0.5),  # over √layers
    ):
        largest = float(mixer.get_parameter(f"{name}.weight").detach().abs().max())
        assert 0.98 * bound < largest <= bound * (1 + 1e-6), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 6}, "head_dim 6 does not divide the inner width 16"),
        ({"head_dim": 4, "num_groups": 3}, "num_groups 3 does not divide the 4 heads"),
        ({"d_conv": -2}, "d_conv is -2"),
        ({"d_state": 1.5}, "d_state is 1.5"),
    ],
    ids=str,
)
def test_impossible_options_say_so(options, message):
    with pytest.raises(UserError, match=message):
        MixerLMConfig(vocab_size=4, hidden_size=8, mixers=[{"name": "mamba2", **options}])
