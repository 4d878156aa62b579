"""Times of the ops against their naive twins, and the selective scan's memory.

    python tests/benchmarks/bench_ops.py

Forward and backward at the sizes inside a model of d 64 (batch 32, 36 tokens), one thread, CPU
time, both forms in turn; then the scan's peak at 2048 tokens in units of its input and output.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from patchbench.adapters import ops

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.adapters.ops.test_selective_scan import peak_bytes

BATCH, TIME, WIDTH, INNER = 32, 36, 64, 128


def inputs() -> dict[str, tuple[Callable[..., Any], dict[str, Tensor]]]:
    """Return op and arguments by label."""
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(BATCH, TIME, *shape, generator=rng).requires_grad_()

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(BATCH, TIME, *shape, generator=rng) * 0.1).requires_grad_()

    decay = -torch.arange(1.0, 17.0).repeat(INNER, 1)
    keys = F.normalize(normal(1, WIDTH).detach(), dim=-1).requires_grad_()
    delta = {"q": normal(1, WIDTH), "k": keys, "v": normal(1, WIDTH), "beta": uniform(1)}
    forgetting = (-uniform(1).detach()).requires_grad_()
    filters = torch.randn(WIDTH, TIME, generator=rng)
    return {
        "selective_scan": (
            ops.selective_scan,
            {"u": normal(INNER), "dt": uniform(INNER), "A": decay.requires_grad_(),
             "B": normal(16), "C": normal(16), "D": torch.ones(INNER).requires_grad_()},
        ),
        "ssd": (
            ops.ssd,
            {"x": normal(2, 64), "dt": uniform(2), "A": -torch.ones(2).requires_grad_(),
             "B": normal(1, 128), "C": normal(1, 128)},
        ),
        "delta_rule": (ops.delta_rule, delta),
        "gated_delta_rule": (ops.delta_rule, delta | {"g": forgetting}),
        "short_conv": (
            ops.short_conv,
            {"x": normal(INNER), "weight": torch.randn(INNER, 4, generator=rng).requires_grad_()},
        ),
        "long_conv": (
            ops.long_conv,
            {"x": normal(WIDTH), "filters": filters.requires_grad_()},
        ),
    }  # fmt: skip


def milliseconds(function: Callable[..., Any], arguments: dict[str, Tensor], backend: str) -> float:
    """Return the CPU time of one forward and backward pass."""
    for tensor in arguments.values():
        tensor.grad = None
    began = time.process_time()
    function(**arguments, backend=backend)[0].sum().backward()
    return 1e3 * (time.process_time() - began)


def memory_ratio(rows: int, d: int) -> float:
    """Return the scan's peak, inputs and output included, over inputs and output."""
    steps, n = 2048, 16
    u = torch.randn(rows, steps, d, requires_grad=True)
    dt = torch.full_like(u, 0.01).requires_grad_()
    B = torch.randn(rows, steps, n, requires_grad=True)
    C = torch.randn(rows, steps, n, requires_grad=True)
    A = -torch.ones(d, n).requires_grad_()
    upstream = torch.randn(rows, steps, d)
    held = peak_bytes(lambda: ops.selective_scan(u, dt, A, B, C)[0].backward(upstream))
    given = 4 * sum(x.numel() for x in (u, dt, B, C))
    return (given + 4 * upstream.numel() + held) / (given + 4 * u.numel())


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print(f"forward + backward, batch {BATCH}, {TIME} tokens, d {WIDTH}, best of 15")
    for label, (function, arguments) in inputs().items():
        fast, slow = [], []
        for turn in range(17):
            for backend, times in (("auto", fast), ("naive", slow)):
                took = milliseconds(function, arguments, backend)
                if turn >= 2:
                    times.append(took)
        ratio = min(slow) / min(fast)
        print(f"  {label:18}{min(fast):8.2f} ms{min(slow):9.2f} ms naive{ratio:7.1f} times")
    print("selective scan at 2048 tokens: peak over input + output (wanted at most 3)")
    for rows, d in ((1, 128), (8, 64), (32, 128)):
        print(f"  batch {rows:3}, {d} channels{memory_ratio(rows, d):8.2f}")


if __name__ == "__main__":
    main()
