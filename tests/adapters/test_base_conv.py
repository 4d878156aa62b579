"""The gated convolution and the implicit filter against scipy's filters and the definition."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.mixers.filters import FilterOptions, ImplicitFilter

WIDTH = 6


def build(d_conv):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "base_conv", width=WIDTH, layers=1, vocab_size=4, d_conv=d_conv, max_position_embeddings=32
    )
    mixer = MIXERS["base_conv"](config, 0).eval()
    mixer.init_weights(config)
    return mixer


@pytest.mark.parametrize("d_conv", [1, 2, 3, 4, "long"])
def test_output_is_the_gated_convolution(d_conv):
    mixer = build(d_conv)
    u = np.random.default_rng(0).normal(size=(2, 9, WIDTH))
    parameters = {n: p.detach().numpy().astype(np.float64) for n, p in mixer.named_parameters()}
    if d_conv == "long":
        taps, bias = mixer.filter(9).detach().numpy(), np.zeros(WIDTH)
    else:  # the newest input has the last tap
        taps, bias = parameters["conv1d.weight"][:, 0, ::-1], parameters["conv1d.bias"]
    convolved = np.stack(
        [lfilter(taps[c], [1.0], u[:, :, c], axis=1) + bias[c] for c in range(WIDTH)], -1
    )
    gate = u @ parameters["in_proj.weight"].T + parameters["in_proj.bias"]
    y, _ = mixer(torch.tensor(u, dtype=torch.float32))
    np.testing.assert_allclose(y.detach().numpy(), convolved * gate + u, atol=2e-6)


def test_hooks_see_the_three_values_and_replace_them():
    mixer = build(3)
    u = torch.randn(2, 7, WIDTH)
    mixer.hook_points["conv_output"].register_forward_hook(
        lambda m, a, out: 2 * torch.ones_like(out)
    )
    mixer.hook_points["gate"].register_forward_hook(lambda m, a, out: 0 * out + 3)
    torch.testing.assert_close(mixer(u)[0], u + 6)
    mixer = build(2)
    mixer.hook_points["conv_input"].register_forward_hook(lambda m, a, out: torch.zeros_like(out))
    expected = u + mixer.conv1d.bias * mixer.in_proj(u)
    torch.testing.assert_close(mixer(u)[0], expected)


@pytest.mark.parametrize("d_conv", [1, 3, "long"])
def test_a_continuation_equals_the_whole(d_conv):
    mixer = build(d_conv)
    x = torch.randn(3, 10, WIDTH)
    whole, _ = mixer(x)
    state, parts = mixer.initial_state(3, x.device, x.dtype), []
    for chunk in x.split([1, 1, 5, 3], 1):
        y, state = mixer(chunk, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-6, rtol=0)


def test_a_long_filter_begins_with_its_sine_frequency():
    config = MixerLMConfig.preset("based_long", width=WIDTH, vocab_size=4, sine_frequency=2.0)
    network = MixerLMForCausalLM(config).backbone.layers[0].mixer.filter
    assert torch.equal(network.frequency, torch.full((64,), 2.0))


def test_an_implicit_filter_is_the_network_of_the_lag():
    torch.manual_seed(0)
    options = FilterOptions(filter_width=5, filter_embedding=5, sine_frequency=2.0)
    network = ImplicitFilter(3, 20, options)
    network.init_weights()
    p = {n: q.detach().numpy().astype(np.float64) for n, q in network.named_parameters()}
    taps = network(7).detach().numpy()
    for lag in range(7):
        waves = np.array([1e-4, 1.0]) * 2 * np.pi * lag / 20
        x = np.concatenate([[lag / 19], np.cos(waves), -np.sin(waves)])
        for layer in range(3):
            x = np.sin(2.0 * (p[f"inner.{layer}.weight"] @ x + p[f"inner.{layer}.bias"]))
        rates = np.linspace(np.log(100) / 1.5, np.log(100) / 0.3, 3)
        expected = (p["outer.weight"] @ x) * np.exp(-rates * lag / 19)
        np.testing.assert_allclose(taps[:, lag], expected, atol=1e-6)
