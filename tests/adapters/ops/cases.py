"""One row per op: how to draw its inputs and how to cut a call in two, for tests of all ops."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from patchbench.adapters import ops
from patchbench.adapters.ops import naive


@dataclass(frozen=True)
class Case:
    """An op with settings.

    Args:
        fast: the op.
        slow: its twin.
        draw: (rows, steps, dtype, generator) → inputs by name.
        timed: which inputs run over time (dimension 1); the first receives the tested change.
        state: (rows, dtype, generator) → an initial state.
        options: further arguments of the op.
    """

    fast: Callable[..., Any]
    slow: Callable[..., Any]
    draw: Callable[[int, int, torch.dtype, torch.Generator], dict[str, Tensor]]
    timed: tuple[str, ...]
    state: Callable[[int, torch.dtype, torch.Generator], Tensor]
    options: dict[str, Any]


def _scan(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
    d, n = 6, 4
    return {
        "u": torch.randn(rows, steps, d, dtype=dtype, generator=rng),
        "dt": torch.rand(rows, steps, d, dtype=dtype, generator=rng) * 0.5,
        "A": -torch.rand(d, n, dtype=dtype, generator=rng) * 4 - 0.1,
        "B": torch.randn(rows, steps, n, dtype=dtype, generator=rng),
        "C": torch.randn(rows, steps, n, dtype=dtype, generator=rng),
        "D": torch.randn(d, dtype=dtype, generator=rng),
    }


def _ssd(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
    heads, p, groups, n = 4, 3, 2, 5
    return {
        "x": torch.randn(rows, steps, heads, p, dtype=dtype, generator=rng),
        "dt": torch.rand(rows, steps, heads, dtype=dtype, generator=rng) * 0.5,
        "A": -torch.rand(heads, dtype=dtype, generator=rng) * 4 - 0.1,
        "B": torch.randn(rows, steps, groups, n, dtype=dtype, generator=rng),
        "C": torch.randn(rows, steps, groups, n, dtype=dtype, generator=rng),
        "D": torch.randn(heads, dtype=dtype, generator=rng),
    }


def _delta(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
    heads, k, v = 2, 4, 3
    keys = torch.randn(rows, steps, heads, k, dtype=dtype, generator=rng)
    return {
        "v": torch.randn(rows, steps, heads, v, dtype=dtype, generator=rng),
        "q": torch.randn(rows, steps, heads, k, dtype=dtype, generator=rng),
        "k": keys / keys.norm(dim=-1, keepdim=True),
        "beta": torch.rand(rows, steps, heads, dtype=dtype, generator=rng),
    }


def _gated(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
    g = -torch.rand(rows, steps, 2, dtype=dtype, generator=rng)
    return _delta(rows, steps, dtype, rng) | {"g": g}


def _short(width: int) -> Callable[..., dict[str, Tensor]]:
    def draw(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
        return {
            "x": torch.randn(rows, steps, 5, dtype=dtype, generator=rng),
            "weight": torch.randn(5, width, dtype=dtype, generator=rng),
            "bias": torch.randn(5, dtype=dtype, generator=rng),
        }

    return draw


def _long(taps: int) -> Callable[..., dict[str, Tensor]]:
    def draw(rows: int, steps: int, dtype: torch.dtype, rng: torch.Generator) -> dict[str, Tensor]:
        return {
            "x": torch.randn(rows, steps, 5, dtype=dtype, generator=rng),
            "filters": torch.randn(5, taps, dtype=dtype, generator=rng) / taps**0.5,
        }

    return draw


def _state(*shape: int) -> Callable[..., Tensor]:
    def draw(rows: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
        return torch.randn(rows, *shape, dtype=dtype, generator=rng)

    return draw


_OVER_TIME = {
    "scan": ("u", "dt", "B", "C"),
    "ssd": ("x", "dt", "B", "C"),
    "delta": ("v", "q", "k", "beta"),
    "gated": ("v", "q", "k", "beta", "g"),
}

CASES: dict[str, Case] = {
    "selective_scan": Case(
        ops.selective_scan, naive.selective_scan, _scan, _OVER_TIME["scan"], _state(6, 4), {}
    ),
    "ssd": Case(ops.ssd, naive.ssd, _ssd, _OVER_TIME["ssd"], _state(4, 3, 5), {}),
    "ssd-chunks-of-2": Case(
        ops.ssd, naive.ssd, _ssd, _OVER_TIME["ssd"], _state(4, 3, 5), {"chunk_size": 2}
    ),
    "delta_rule": Case(
        ops.delta_rule, naive.delta_rule, _delta, _OVER_TIME["delta"], _state(2, 4, 3), {}
    ),
    "delta_rule-chunks-of-2": Case(
        ops.delta_rule, naive.delta_rule, _delta, _OVER_TIME["delta"], _state(2, 4, 3),
        {"chunk_size": 2},
    ),
    "gated_delta_rule": Case(
        ops.delta_rule, naive.delta_rule, _gated, _OVER_TIME["gated"], _state(2, 4, 3), {}
    ),
    "gated_delta_rule-chunks-of-2": Case(
        ops.delta_rule, naive.delta_rule, _gated, _OVER_TIME["gated"], _state(2, 4, 3),
        {"chunk_size": 2},
    ),
    **{
        f"short_conv-width-{width}": Case(
            ops.short_conv, naive.short_conv, _short(width), ("x",), _state(width - 1, 5), {}
        )
        for width in (1, 2, 4)
    },
    "long_conv-direct": Case(
        ops.long_conv, naive.long_conv, _long(140), ("x",), _state(4, 5), {"backend": "direct"}
    ),
    "long_conv-direct-3-taps": Case(
        ops.long_conv, naive.long_conv, _long(3), ("x",), _state(4, 5), {"backend": "direct"}
    ),
    "long_conv-fft": Case(
        ops.long_conv, naive.long_conv, _long(140), ("x",), _state(4, 5), {"backend": "fft"}
    ),
    "long_conv-fft-chunks-of-2": Case(
        ops.long_conv, naive.long_conv, _long(140), ("x",), _state(4, 5),
        {"backend": "fft", "chunk_size": 2},
    ),
    "long_conv-fft-3-taps": Case(
        ops.long_conv, naive.long_conv, _long(3), ("x",), _state(4, 5),
        {"backend": "fft", "chunk_size": 1},
    ),
}  # fmt: skip
