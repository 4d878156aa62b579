"""DeltaNet against its equations in NumPy."""

import numpy as np
import pytest
import torch

from patchbench.adapters import MixerLMConfig
from patchbench.adapters.mixers.delta_net import DeltaNet
from patchbench.adapters.mixers.recurrent import l2_normalise
from patchbench.common import UserError
from tests.adapters import recurrent_checks as checks
from tests.adapters.hooked import Eye, convolve, sigmoid, silu, weights

OPTIONS = [{}, {"num_heads": 2}, {"d_conv": 0}, {"d_conv": 1, "chunk_size": 2}, {"d_conv": 2}]
each = pytest.mark.parametrize("options", OPTIONS, ids=str)


def by_hand(mixer: DeltaNet, x: np.ndarray, eye: Eye) -> np.ndarray:
    p = weights(mixer)
    o = recall(mixer, x, eye, np.zeros((*x.shape[:2], mixer.num_heads)))
    heads = o.reshape(*x.shape[:2], mixer.num_heads, mixer.head_dim)
    heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * p["norm.weight"]
    return heads.reshape(x.shape) @ p["out_proj.weight"].T


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def recall(mixer: DeltaNet, x: np.ndarray, eye: Eye, g: np.ndarray) -> np.ndarray:
    """What is read from the memories, (b, t, m); log decays (b, t, h)."""
    p = weights(mixer)
    heads, width = mixer.num_heads, mixer.head_dim
    u = silu(convolve(eye, x @ p["in_proj.weight"].T, p.get("conv1d.weight")))
    q, k, v = np.split(u, 3, -1)
    shape = (*x.shape[:2], heads, width)
    q, k = (unit(z.reshape(shape)).reshape(x.shape) for z in (q, k))
    q, k, v = (eye.see(name, z).reshape(shape) for name, z in (("q", q), ("k", k), ("v", v)))
    beta = eye.see("beta", sigmoid(x @ p["beta_proj.weight"].T))
    memory = np.zeros((len(x), heads, width, width))
    o = np.zeros(shape)
    for t in range(x.shape[1]):
        kept, write = np.exp(g[:, t])[..., None, None] * memory, np.zeros_like(memory)
        for b, h in np.ndindex(len(x), heads):
            error = v[b, t, h] - k[b, t, h] @ kept[b, h]
            write[b, h] = beta[b, t, h] * np.outer(k[b, t, h], error)
        memory = kept + eye.step("ssm_write", t, write)
        o[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], memory)
        memory = eye.step("ssm_state", t, memory)
    return eye.see("ssm_output", o.reshape(x.shape))


@each
def test_values_are_the_definitions(options):
    checks.check_values(checks.build("delta_net", **options), by_hand)


@each
def test_patches_propagate_as_in_the_definition(options):
    checks.check_patches(checks.build("delta_net", **options), by_hand)


@each
def test_states_carry_over(options):
    checks.check_states(checks.build("delta_net", **options))


def test_identity_hooks_change_nothing():
    checks.check_identity_hooks(checks.build("delta_net"))


def test_a_patched_state_is_continued():
    checks.check_patched_state_is_continued(checks.build("delta_net"))


def test_gradient_of_a_patched_state():
    checks.check_gradient_of_a_patch(checks.build("delta_net"))


def test_no_state_is_materialised_unless_hooked(monkeypatch):
    checks.check_nothing_stepwise_unless_hooked(checks.build("delta_net"), monkeypatch)


def test_half_precision_keeps_the_memory_in_float32():
    checks.check_half_precision(checks.build("delta_net"), set())


def test_l2_normalise_has_a_finite_gradient_at_zero():
    x = torch.zeros(2, 3, requires_grad=True)
    l2_normalise(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "num_heads 3 does not divide the width 8"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"d_conv": -1}, "d_conv is -1"),
    ],
    ids=str,
)
def test_impossible_options_say_so(options, message):
    with pytest.raises(UserError, match=message):
        MixerLMConfig(vocab_size=4, hidden_size=8, mixers=[{"name": "delta_net", **options}])
