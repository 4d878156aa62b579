"""The long convolution at lengths at which "auto" takes Fourier transforms."""

import numpy as np
import pytest
import torch

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, ops
from patchbench.adapters.ops import dispatch

LENGTHS = [1030, 2500]


def direct_sum(x: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """y[t] = Σ_j filters[j] x[t − j], one lag after another."""
    y = np.zeros_like(x)
    for lag in range(min(x.shape[1], filters.shape[1])):
        y[:, lag:] += filters[:, lag] * x[:, : x.shape[1] - lag]
    return y


@pytest.mark.parametrize("taps", [7, 700, 5000], ids=lambda n: f"{n}-taps")
@pytest.mark.parametrize("steps", LENGTHS)
def test_equals_direct_summation_with_its_gradients(steps: int, taps: int) -> None:
    rng = np.random.default_rng(0)
    x, filters = rng.normal(size=(2, steps, 3)), rng.normal(size=(3, taps))
    upstream = rng.normal(size=x.shape)
    own = torch.from_numpy(x).requires_grad_(), torch.from_numpy(filters).requires_grad_()
    dispatch.reset()
    y, _ = ops.long_conv(*own)
    assert dispatch.used() == {"long_conv": "fft"}
    np.testing.assert_allclose(y.detach().numpy(), direct_sum(x, filters), rtol=0, atol=1e-10)
    dx, dfilters = torch.autograd.grad(y, own, torch.from_numpy(upstream))
    # The gradient of a convolution is one of the reversed upstream gradient.
    back = direct_sum(upstream[:, ::-1], filters)[:, ::-1]
    np.testing.assert_allclose(dx.numpy(), back, rtol=0, atol=1e-10)
    expected = np.zeros_like(filters)
    for lag in range(min(steps, taps)):
        expected[:, lag] = (upstream[:, lag:] * x[:, : steps - lag]).sum((0, 1))
    np.testing.assert_allclose(dfilters.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", LENGTHS)
def test_single_precision_keeps_its_digits(steps: int) -> None:
    rng = np.random.default_rng(1)
    x, filters = rng.normal(size=(2, steps, 3)), rng.normal(size=(3, steps)) / steps**0.5
    y, _ = ops.long_conv(torch.from_numpy(x).float(), torch.from_numpy(filters).float())
    np.testing.assert_allclose(y.numpy(), direct_sum(x, filters), rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("preset", ["base_conv", "hyena", "h3"])
def test_a_later_token_leaves_earlier_logits_bit_equal(preset: str, steps: int) -> None:
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        preset, width=8, layers=2, vocab_size=11, max_position_embeddings=2500
    )
    model = MixerLMForCausalLM(config).eval()
    ids = torch.randint(11, (1, steps))
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        for t in (1, 255, 256, 1024, steps - 1):
            changed = ids.clone()
            changed[0, t] = (ids[0, t] + 1) % 11
            after = model(changed, use_cache=False).logits
            assert torch.equal(after[:, :t], before[:, :t])
            assert not torch.equal(after[:, t], before[:, t])
