"""Hyena against scipy's filters."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM

WIDTH = 6


def build(d_conv=3):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "hyena", width=WIDTH, layers=1, vocab_size=4, d_conv=d_conv, max_position_embeddings=32
    )
    mixer = MIXERS["hyena"](config, 0).eval()
    mixer.init_weights(config)
    return mixer


@pytest.mark.parametrize("d_conv", [0, 1, 3])
def test_output_is_two_gates_around_a_long_convolution(d_conv):
    mixer = build(d_conv)
    x = np.random.default_rng(0).normal(size=(2, 9, WIDTH))
    p = {n: q.detach().numpy().astype(np.float64) for n, q in mixer.named_parameters()}
    u = x @ p["in_proj.weight"].T + p["in_proj.bias"]
    if d_conv:
        taps, bias = p["conv1d.weight"][:, 0, ::-1], p["conv1d.bias"]
        u = np.stack(
            [lfilter(taps[c], [1.0], u[:, :, c], axis=1) + bias[c] for c in range(3 * WIDTH)], -1
        )
    q, k, v = np.split(u, 3, axis=-1)
    filters = mixer.filter(9).detach().numpy()
    gated = k * v
    y = np.stack([lfilter(filters[c], [1.0], gated[:, :, c], axis=1) for c in range(WIDTH)], -1)
    y = q * (y + p["D"] * gated)
    expected = y @ p["out_proj.weight"].T + p["out_proj.bias"]
    output, _ = mixer(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(output.detach().numpy(), expected, atol=3e-6)


def test_hooks_see_what_their_names_say():
    mixer = build()
    x, seen = torch.randn(2, 7, WIDTH), {}
    for name, hook in mixer.hook_points.items():
        hook.register_forward_hook(
            lambda module, args, output, name=name: seen.__setitem__(name, output)
        )
    y, _ = mixer(x)
    torch.testing.assert_close(seen["conv_input"], mixer.in_proj(x))
    torch.testing.assert_close(
        seen["conv_output"], torch.cat([seen["q"], seen["k"], seen["v"]], -1), atol=0, rtol=0
    )
    torch.testing.assert_close(seen["ssm_input"], seen["k"] * seen["v"])
    torch.testing.assert_close(seen["head_output"], seen["q"] * seen["ssm_output"])
    torch.testing.assert_close(mixer.out_proj(seen["head_output"]), y)
    assert "conv_output" not in build(0).hook_points


@pytest.mark.parametrize("d_conv", [0, 3])
def test_a_continuation_equals_the_whole(d_conv):
    mixer = build(d_conv)
    x = torch.randn(3, 10, WIDTH)
    whole, _ = mixer(x)
    state, parts = mixer.initial_state(3, x.device, x.dtype), []
    for chunk in x.split([1, 1, 5, 3], 1):
        y, state = mixer(chunk, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("frequency", [1.0, 3.0])
def test_initial_sines_and_skips(frequency):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "hyena", width=256, layers=2, vocab_size=4, sine_frequency=frequency
    )
    mixer = MixerLMForCausalLM(config).backbone.layers[1].mixer
    assert torch.equal(mixer.filter.frequency, torch.full((64,), frequency))
    assert float(mixer.D.detach().std()) == pytest.approx(1, rel=0.2)
