"""Mamba against its equations in NumPy, its initialisation and its size."""

import math

import numpy as np
import pytest
import torch

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.mixers.mamba import Mamba
from patchbench.common import UserError
from tests.adapters import recurrent_checks as checks
from tests.adapters.hooked import Eye, convolve, silu, softplus, weights

OPTIONS = [
    {}, {"d_conv": 0}, {"d_conv": 1}, {"d_conv": 2}, {"d_conv": 3},
    {"d_state": 3, "expand": 1, "dt_rank": 2},
]  # fmt: skip
each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def by_hand(mixer: Mamba, x: np.ndarray, eye: Eye) -> np.ndarray:
    p = weights(mixer)
    inner, n = p["A_log"].shape
    xz = x @ p["in_proj.weight"].T
    gate = eye.see("gate", xz[..., inner:])
    u = convolve(eye, xz[..., :inner], p.get("conv1d.weight"), p.get("conv1d.bias", 0.0))
    u = eye.see("ssm_input", silu(u))
    low, B, C = np.split(u @ p["x_proj.weight"].T, [mixer.dt_rank, mixer.dt_rank + n], -1)
    dt = eye.see("dt", softplus(low @ p["dt_proj.weight"].T + p["dt_proj.bias"]))
    B, C = eye.see("B", B), eye.see("C", C)
    A = -np.exp(p["A_log"])
    h = np.zeros((len(x), inner, n))
    y = np.zeros_like(u)
    for t in range(x.shape[1]):
        write = np.einsum("bd,bn,bd->bdn", dt[:, t], B[:, t], u[:, t])
        write = eye.step("ssm_write", t, write)
        h = np.exp(dt[:, t, :, None] * A) * h + write
        y[:, t] = np.einsum("bdn,bn->bd", h, C[:, t]) + p["D"] * u[:, t]
        h = eye.step("ssm_state", t, h)
    y = eye.see("ssm_output", y)
    return (y * silu(gate)) @ p["out_proj.weight"].T


@each
def test_values_are_the_definitions(options):
    checks.check_values(checks.build("mamba", **options), by_hand)


@each
def test_patches_propagate_as_in_the_definition(options):
    checks.check_patches(checks.build("mamba", **options), by_hand)


@each
def test_states_carry_over(options):
    checks.check_states(checks.build("mamba", **options))


def test_identity_hooks_change_nothing():
    checks.check_identity_hooks(checks.build("mamba"))


def test_a_patched_state_is_continued():
    checks.check_patched_state_is_continued(checks.build("mamba"))


def test_gradient_of_a_patched_state():
    checks.check_gradient_of_a_patch(checks.build("mamba"))


def test_no_state_is_materialised_unless_hooked(monkeypatch):
    checks.check_nothing_stepwise_unless_hooked(checks.build("mamba"), monkeypatch)


def test_half_precision_keeps_the_recurrence_in_float32():
    checks.check_half_precision(checks.build("mamba"), {"A_log", "D", "dt_proj.bias"})


def test_without_convolution_there_is_no_convolution_to_hook():
    assert {"conv_input", "conv_output"} <= set(checks.build("mamba").hook_points)
    bare = checks.build("mamba", d_conv=0)
    assert not {"conv_input", "conv_output"} & set(bare.hook_points)
    assert not any("conv" in name for name, _ in bare.named_parameters())


@pytest.mark.parametrize(
    ("width", "layers", "vocab", "expected"),
    [(256, 2, 8196, 2_974_720), (256, 1, 26, 445_184), (128, 2, 26, 236_800)],
    ids=["AR-256", "ATR-256-one-layer", "ATR-128"],
)
def test_parameter_count_is_the_papers(width, layers, vocab, expected):
    config = MixerLMConfig.preset("mamba", width=width, layers=layers, vocab_size=vocab)
    assert MixerLMForCausalLM(config).num_parameters() == expected


def test_initialisation_is_the_authors():
    torch.manual_seed(0)
    config = MixerLMConfig.preset("mamba", width=64, layers=4, vocab_size=10)
    mixer = MixerLMForCausalLM(config).backbone.layers[2].mixer
    assert isinstance(mixer, Mamba)
    rows = torch.arange(1.0, 17.0).log().expand(128, 16)
    torch.testing.assert_close(mixer.A_log, rows, rtol=0, atol=1e-6)
    assert torch.equal(mixer.D, torch.ones(128))
    steps = torch.nn.functional.softplus(mixer.dt_proj.bias).detach()
    assert 0.001 <= float(steps.min()) < 0.002
    assert 0.05 < float(steps.max()) <= 0.1
    assert 0.3 < float((steps < 0.01).float().mean()) < 0.7  # uniform in the logarithm
    largest = {
        "in_proj": 1 / math.sqrt(64),  # PyTorch's default: ±1/√(fan in)
        "x_proj": 1 / math.sqrt(128),
        "dt_proj": 1 / math.sqrt(4),  # ±1/√rank
        "out_proj": 1 / math.sqrt(128) / math.sqrt(4),  # over √layers
        "conv1d": 1 / math.sqrt(4),
    }
    for name, bound in largest.items():
        weight = mixer.get_parameter(f"{name}.weight")
        assert 0.98 * bound < float(weight.detach().abs().max()) <= bound * (1 + 1e-6), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_conv": -1}, "d_conv is -1: give 0"),
        ({"d_conv": "long"}, "d_conv is 'long'"),
        ({"d_state": 0}, "d_state is 0"),
        ({"expand": 0}, "expand is 0"),
        ({"dt_rank": 0}, "dt_rank is 0"),
        ({"d_stat": 4}, "did you mean 'd_state'"),
    ],
    ids=str,
)
def test_impossible_options_say_so(options, message):
    with pytest.raises(UserError, match=message):
        MixerLMConfig(vocab_size=4, hidden_size=8, mixers=[{"name": "mamba", **options}])
