"""What each of Mamba, Mamba-2, DeltaNet and Gated DeltaNet must satisfy; called from their tests.

`by_hand(mixer, x, eye)` is a mixer's definition in NumPy, written in the mixer's test.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from patchbench.adapters import MIXERS, MixerLMConfig
from patchbench.adapters.mixers import Mixer
from tests.adapters.hooked import STYLES, Eye, Patches, run_hooked

WIDTH = 8
CLOSE: dict[str, float] = {"rtol": 1e-9, "atol": 1e-9}
ByHand = Callable[[Any, np.ndarray, Eye], np.ndarray]


def build(name: str, **options: Any) -> Mixer:
    """A mixer whose weights are large enough for every term to matter."""
    torch.manual_seed(0)
    config = MixerLMConfig(
        vocab_size=4, hidden_size=WIDTH, mixers=["attention", {"name": name, **options}]
    )
    mixer = MIXERS[name](config, 1).eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def draw(rows: int = 3, steps: int = 9) -> Tensor:
    return torch.randn(rows, steps, WIDTH, generator=torch.Generator().manual_seed(1))


def check_values(mixer: Mixer, by_hand: ByHand) -> None:
    """The output, and the value at every hook point, are the definition's."""
    x, eye = draw(), Eye({})
    expected = by_hand(mixer, x.double().numpy(), eye)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(mixer(x)[0].detach().numpy(), expected, rtol=0, atol=2e-5 * scale)
    exact = copy.deepcopy(mixer).double()
    np.testing.assert_allclose(exact(x.double())[0].detach().numpy(), expected, **CLOSE)
    y, seen = run_hooked(exact, x.double(), {})
    np.testing.assert_allclose(y, expected, **CLOSE)
    assert set(seen) == set(mixer.hook_points)
    for name, value in seen.items():
        assert value.ndim == 3
        np.testing.assert_allclose(value, eye.seen(name), **CLOSE, err_msg=name)


def check_patches(mixer: Mixer, by_hand: ByHand) -> None:
    """A patch at any hook point, made in any way, changes the output as in the definition."""
    x = draw().double()
    mixer = copy.deepcopy(mixer).double()
    plain = mixer(x)[0].detach().numpy()
    rng = np.random.default_rng(0)
    _, seen = run_hooked(mixer, x, {})

    def agree(patches: Patches, style: str) -> None:
        y, _ = run_hooked(mixer, x, patches, style)
        expected = by_hand(mixer, x.numpy(), Eye(patches))
        message = f"{list(patches)} {style}"
        np.testing.assert_allclose(y, expected, **CLOSE, err_msg=message)
        assert np.abs(y - plain)[1, 4:].max() > 1e-4, message

    for name in mixer.hook_points:
        patch = rng.uniform(0.1, 0.9, seen[name].shape[2])
        for style in STYLES:
            agree({name: patch}, style)
    # Both lazy points at once: the state is replaced after the patched write.
    agree({n: rng.normal(size=seen[n].shape[2]) for n in ("ssm_write", "ssm_state")}, "returned")


def check_identity_hooks(mixer: Mixer) -> None:
    """Hooks that change nothing leave output and gradients as they are."""
    x = draw()
    grads = []
    for hooked in (False, True):
        if hooked:
            for name in mixer.hook_points:
                mixer.hook_points[name].register_forward_hook(lambda *_: None)
        own = x.clone().requires_grad_()
        y, _ = mixer(own)
        mixer.zero_grad()
        y.square().sum().backward()
        grads.append([own.grad, *(p.grad.clone() for p in mixer.parameters())])
    for plain, watched in zip(*grads, strict=True):
        scale = max(1.0, float(plain.detach().abs().max()))
        torch.testing.assert_close(watched, plain, rtol=1e-4, atol=1e-5 * scale)


def check_gradient_of_a_patch(mixer: Mixer) -> None:
    """The gradient with respect to a patched-in state is the output's real sensitivity to it."""
    mixer = copy.deepcopy(mixer).double()
    x = draw(rows=2).double()
    _, state = mixer(x[:, :5], return_state=True)
    assert state is not None
    put = torch.randn(state["ssm_state"].shape[1:], dtype=torch.float64).requires_grad_()

    def replace(_: Any, __: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[1, 4] = put.flatten()
        return out

    handle = mixer.hook_points["ssm_state"].register_forward_hook(replace)
    (patched,) = torch.autograd.grad(mixer(x)[0][1, 5:].square().sum(), put)
    handle.remove()
    state["ssm_state"] = torch.stack([state["ssm_state"][0], put])
    (continued,) = torch.autograd.grad(mixer(x[:, 5:], state)[0][1].square().sum(), put)
    torch.testing.assert_close(patched, continued, rtol=1e-9, atol=1e-9)


def check_patched_state_is_continued(mixer: Mixer) -> None:
    """Replacing `ssm_state` at t equals stopping after t and going on from the other state.

    What comes out up to t is as it was.
    """
    x = draw()
    before, state = mixer(x[:, :5], return_state=True)
    assert state is not None
    _, other = mixer(draw(steps=7).flip(1), return_state=True)
    assert other is not None
    state["ssm_state"][1] = other["ssm_state"][1]
    expected, _ = mixer(x[:, 5:], state)
    patch = other["ssm_state"][1].flatten().detach().numpy()
    y, _ = run_hooked(mixer, x, {"ssm_state": patch})
    np.testing.assert_allclose(y[:, 5:], expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y[:, :5], before.detach().numpy(), rtol=1e-5, atol=1e-5)


def check_states(mixer: Mixer) -> None:
    """Chunks and single tokens with carried state equal the whole; the given state is kept."""
    x = draw(steps=12)
    whole, last = mixer(x, return_state=True)
    scale = max(1.0, float(whole.detach().abs().max()))
    for sizes in ([1] * 12, [5, 1, 6], [2, 10]):
        state, parts = mixer.initial_state(3, x.device, x.dtype), []
        for chunk in x.split(sizes, 1):
            before = {k: v.clone() for k, v in state.items()}
            y, new = mixer(chunk, state, return_state=True)
            assert all(torch.equal(before[k], v) for k, v in state.items())
            assert new is not None
            state = new
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5 * scale)
        assert last is not None
        assert state.keys() == last.keys()
        for name, value in state.items():
            torch.testing.assert_close(value, last[name], rtol=1e-5, atol=1e-5)
    assert mixer(x)[1] is None


def check_nothing_stepwise_unless_hooked(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hooks on the lazy points no state is materialised, whatever else is hooked."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the states were materialised")

    monkeypatch.setattr("patchbench.adapters.mixers.scans.stepwise", refuse)
    for name in mixer.hook_points:
        if name not in ("ssm_write", "ssm_state"):
            mixer.hook_points[name].register_forward_hook(lambda *_: None)
    mixer(draw())
    handle = mixer.hook_points["ssm_write"].register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="materialised"):
        mixer(draw())
    handle.remove()
    mixer(draw())


def check_half_precision(mixer: Mixer, unrounded: set[str]) -> None:
    """In bf16 and fp16 the recurrence's parameters stay unrounded and the states fp32."""
    x = draw(steps=30)
    expected, _ = mixer(x)
    kept = {n: p.detach().clone() for n, p in mixer.named_parameters()}
    for dtype in (torch.bfloat16, torch.float16):
        cast = copy.deepcopy(mixer).to(dtype)
        for name, parameter in cast.named_parameters():
            if name in unrounded:
                assert torch.equal(parameter, kept[name]), name
            else:
                assert parameter.dtype == dtype, name
        state = cast.initial_state(3, x.device, dtype)
        y, last = cast(x.to(dtype), state, return_state=True)
        assert y.dtype == dtype
        assert last is not None
        assert state["ssm_state"].dtype == last["ssm_state"].dtype == torch.float32
        error = (y.float() - expected).abs().max() / expected.abs().max()
        assert error < 0.05, (dtype, float(error))
