"""Patching a mixer's hook points, and a recorder with which arithmetic by hand is patched alike.

Use:

    eye = Eye({"dt": vector})                       # in the hand-written arithmetic
    dt = eye.see("dt", dt)                          # (b, t, features): replaced at ROW, STEP
    write = eye.step("ssm_write", t, write)         # (b, *state), one step of a recurrence
    eye.seen("ssm_write")                           # what passed, (b, t, features)

    y, seen = run_hooked(mixer, x, {"dt": vector}, style="in-place")
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints

ROW, STEP = 1, 4
Patches = dict[str, np.ndarray]
STYLES = ("returned", "in-place", "pre-hook")


class Eye:
    """Sees every value under its component word and replaces those that `patches` names."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self._whole: dict[str, np.ndarray] = {}
        self._steps: dict[str, list[np.ndarray]] = {}

    def see(self, name: str, value: np.ndarray) -> np.ndarray:
        self._whole[name] = value
        if name in self.patches:
            value = value.copy()
            value[ROW, STEP] = self.patches[name]
        return value

    def step(self, name: str, t: int, value: np.ndarray) -> np.ndarray:
        self._steps.setdefault(name, []).append(value.reshape(len(value), -1))
        if name in self.patches and t == STEP:
            value = value.copy()
            value[ROW] = self.patches[name].reshape(value.shape[1:])
        return value

    def seen(self, name: str) -> np.ndarray:
        return self._whole[name] if name in self._whole else np.stack(self._steps[name], 1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def convolve(eye: Eye, x: np.ndarray, weight: np.ndarray | None, bias: Any = 0.0) -> np.ndarray:
    """The causal convolution, channel by channel, past its hook points; weight (d, 1, w)."""
    if weight is None:
        return x
    x = eye.see("conv_input", x)
    y = np.zeros_like(x)
    past = np.zeros((x.shape[0], weight.shape[2] - 1, x.shape[2]))
    for t in range(x.shape[1]):
        window = np.concatenate([past, x[:, t, None]], 1)  # b w d
        y[:, t] = np.einsum("bwd,dw->bd", window, weight[:, 0])
        past = window[:, 1:]
        if past.shape[1]:
            past = eye.step("conv_state", t, past)
    return eye.see("conv_output", y + bias)


def weights(mixer: nn.Module) -> dict[str, np.ndarray]:
    """The mixer's parameters in float64."""
    return {n: p.detach().numpy().astype(np.float64) for n, p in mixer.named_parameters()}


def run_hooked(
    mixer: nn.Module, x: Tensor, patches: Patches, style: str = "returned"
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Run the mixer with hooks that record every hook point and patch some of them.

    A patched hook point records what went in, as `Eye` does.
    """
    points, seen, handles = mixer.hook_points, {}, []
    assert isinstance(points, HookPoints)

    def patched(name: str, value: Tensor) -> Tensor:
        seen[name] = value.detach().numpy().copy()
        if name not in patches:
            return value
        value = value if style == "in-place" else value.clone()
        value[ROW, STEP] = torch.from_numpy(patches[name]).to(value.dtype)
        return value

    for name in points:
        if style == "pre-hook":
            handle = points[name].register_forward_pre_hook(
                lambda _, args, name=name: (patched(name, args[0]),)
            )
        else:
            handle = points[name].register_forward_hook(
                lambda _, __, out, name=name: patched(name, out)
            )
        handles.append(handle)
    with torch.no_grad():
        y, _ = mixer(x)
    for handle in handles:
        handle.remove()
    return y.numpy(), seen
