"""The scan's promises beyond being right: bounded memory, sane chunks, finite extremes."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from patchbench.adapters import ops
from patchbench.adapters.ops.selective_scan import chunk_length


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that PyTorch's allocator held for `function` at one time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        function()
    assert run.profiler is not None
    assert run.profiler.kineto_results is not None
    held = peak = 0
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize(("rows", "d"), [(1, 64), (2, 128), (8, 64), (32, 128)], ids=str)
def test_peak_memory_is_within_three_times_input_and_output(rows: int, d: int) -> None:
    steps, n = 2048, 16
    rng = torch.Generator().manual_seed(0)
    u = torch.randn(rows, steps, d, generator=rng, requires_grad=True)
    dt = torch.full_like(u, 0.01).requires_grad_()
    B = torch.randn(rows, steps, n, generator=rng, requires_grad=True)
    C = torch.randn(rows, steps, n, generator=rng, requires_grad=True)
    A = -torch.ones(d, n).requires_grad_()
    D = torch.ones(d).requires_grad_()
    given = sum(x.numel() for x in (u, dt, B, C)) * 4
    upstream = torch.randn(rows, steps, d, generator=rng)

    def run() -> None:
        y, _ = ops.selective_scan(u, dt, A, B, C, D)
        y.backward(upstream)

    output = u.numel() * 4
    total = given + output + peak_bytes(run)  # inputs stay, and `upstream` is as large as y
    assert total <= 3 * (given + output)
    assert total < rows * steps * d * n * 4  # what one tensor of all states would take


def test_peak_bytes_sees_a_large_tensor() -> None:
    assert peak_bytes(lambda: torch.zeros(1000, 1000) + 1) >= 2 * 4_000_000


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 36, 128, 16), 36),
        ((1, 2048, 128, 16), 64),
        ((32, 36, 128, 16), 8),
        ((256, 36, 128, 16), 8),
        ((1, 1, 8, 4), 1),
    ],
    ids=str,
)
def test_chunk_length(shape: tuple[int, int, int, int], expected: int) -> None:
    assert chunk_length(*shape) == expected


def test_double_backward_is_refused() -> None:
    u = torch.rand(1, 4, 2, requires_grad=True)
    B = torch.rand(1, 4, 3)
    y, _ = ops.selective_scan(u, u, -torch.ones(2, 3), B, B)
    (grad,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_large_steps_and_decays_stay_finite() -> None:
    u = torch.ones(1, 80, 2, requires_grad=True)
    dt = torch.full((1, 80, 2), 50.0, requires_grad=True)
    B = torch.ones(1, 80, 3)
    y, _ = ops.selective_scan(u, dt, torch.full((2, 3), -20.0), B, B)
    y.sum().backward()
    torch.testing.assert_close(y, torch.full_like(y, 150.0))  # dt u Σ B C, nothing carried over
    assert u.grad is not None
    assert dt.grad is not None
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(dt.grad).all()
