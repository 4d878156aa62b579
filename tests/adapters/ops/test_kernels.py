"""The wrappers around CUDA kernels, against stand-ins written from the kernels' documentation.

No GPU is needed: a stand-in has the kernel's signature, layouts and defaults and computes the
definition, so that a wrong layout, order or scale shows.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from patchbench.adapters import ops
from patchbench.adapters.ops import dispatch, kernels, naive
from tests.adapters.ops.cases import CASES


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    def install(stand_in: Callable[..., Any]) -> None:
        monkeypatch.setattr(dispatch, "kernel", lambda op: stand_in)

    return install


def selective_scan_fn(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:  # fmt: skip
    """u, delta (B, D, L); B, C (B, N, L): y (B, D, L), state (B, D, N)."""
    assert u.shape == delta.shape
    assert all(x.stride(-1) == 1 for x in (u, delta, B, C))
    state = u.new_zeros(len(u), *A.shape)
    y = torch.empty_like(u)
    for i in range(u.shape[2]):
        decay = torch.exp(torch.einsum("bd,dn->bdn", delta[:, :, i], A))
        write = torch.einsum("bd,bn,bd->bdn", delta[:, :, i], B[:, :, i], u[:, :, i])
        state = decay * state + write
        y[:, :, i] = torch.einsum("bdn,bn->bd", state, C[:, :, i])
    y = y if D is None else y + D[:, None] * u
    return (y, state) if return_last_state else y


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Any = None,
    initial_states: Tensor | None = None, return_final_states: bool = False,
    final_states_out: Any = None, activation: str | None = None,
) -> Tensor:  # fmt: skip
    """X (B, D, L); weight (D, W); initial_states (B, D, W − 1), channels innermost."""
    assert activation is None
    past = torch.zeros(*x.shape[:2], weight.shape[1] - 1)
    if initial_states is not None:
        assert x.stride(1) == 1
        assert initial_states.stride(1) == 1
        past = initial_states
    return F.conv1d(torch.cat([past, x], -1), weight[:, None], bias, groups=len(weight))


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """q, k (B, T, H, K); v (B, T, H, V); g, beta (B, T, H); scale 1/√K by default."""
    assert q.dtype == k.dtype == v.dtype != torch.float32
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    full = [x.float() for x in (q * scale, k, v, beta, g)]
    o, state = naive.delta_rule(*full, initial_state)
    return o.to(v.dtype), state if output_final_state else None


def chunk_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    zero = torch.zeros_like(beta)
    return chunk_gated_delta_rule(q, k, v, zero, beta, scale, initial_state, output_final_state)


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
    D: Tensor | None = None, z: Any = None, dt_bias: Any = None,
    initial_states: Tensor | None = None, seq_idx: Any = None, dt_softplus: bool = False,
    return_final_states: bool = False,
) -> Any:  # fmt: skip
    """X (B, L, H, P); dt (B, L, H); B, C (B, L, G, N); states (B, H, P, N)."""
    assert isinstance(chunk_size, int)
    y, state = naive.ssd(x, dt, A, B, C, D, initial_states)
    return (y, state) if return_final_states else y


def test_selective_scan(install: Callable[..., None]) -> None:
    install(selective_scan_fn)
    u, dt = torch.randn(2, 9, 5), torch.rand(2, 9, 5)
    inputs = (u, dt, -torch.rand(5, 3), torch.randn(2, 9, 3), torch.randn(2, 9, 3), torch.randn(5))
    expected, last = naive.selective_scan(*inputs)
    y, state = kernels.selective_scan(*inputs, return_state=True)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)
    y, state = kernels.selective_scan(*inputs, return_state=False)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert state is None


def test_ssd(install: Callable[..., None]) -> None:
    install(mamba_chunk_scan_combined)
    x, B = torch.randn(2, 9, 4, 3), torch.randn(2, 9, 2, 5)
    inputs = (x, torch.rand(2, 9, 4), -torch.rand(4), B, B.roll(1), torch.randn(4))
    start = torch.randn(2, 4, 3, 5)
    for got, expected in zip(
        kernels.ssd(*inputs, start, 64), naive.ssd(*inputs, start), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_delta_rule(gated: bool, install: Callable[..., None]) -> None:
    install(chunk_gated_delta_rule if gated else chunk_delta_rule)
    q, k, v = (torch.randn(2, 9, 3, 4).bfloat16() for _ in range(3))
    k = F.normalize(k, dim=-1)
    beta, g = torch.rand(2, 9, 3), -torch.rand(2, 9, 3) if gated else None
    start = torch.randn(2, 3, 4, 4)
    o, state = kernels.delta_rule(q, k, v, beta, g, start)
    expected, last = naive.delta_rule(
        q.float(), k.float(), v.float(), beta.bfloat16().float(), g, start
    )
    torch.testing.assert_close(o.float(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("start", [False, True], ids=["from-zero", "from-state"])
def test_short_conv(start: bool, install: Callable[..., None]) -> None:
    install(causal_conv1d_fn)
    x, weight, bias = torch.randn(2, 9, 8), torch.randn(8, 4), torch.randn(8)
    past = torch.randn(2, 3, 8) if start else None
    y = kernels.short_conv(x, weight, bias, past)
    expected, _ = naive.short_conv(x, weight, bias, past)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", sorted(dispatch.KERNELS))
def test_stand_ins_have_the_installed_kernels_parameters(op: str) -> None:
    """Where a kernel package imports, its real signature must take what the wrapper passes."""
    _, module, attribute = dispatch.KERNELS[op]
    try:
        real = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        pytest.skip(f"{module} does not import here: {type(error).__name__}")
    stand_in = globals()[attribute]
    assert set(inspect.signature(stand_in).parameters) <= set(inspect.signature(real).parameters)


STAND_INS = {
    "selective_scan": selective_scan_fn,
    "ssd": mamba_chunk_scan_combined,
    "delta_rule-half": chunk_delta_rule,
    "gated_delta_rule-half": chunk_gated_delta_rule,
    "short_conv-width-4": causal_conv1d_fn,
}


@pytest.mark.parametrize("label", STAND_INS)
def test_an_op_that_takes_the_kernel_gives_what_it_always_gives(
    label: str, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = label.removesuffix("-half")
    case, rng = CASES[name], torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if label != name else torch.float32
    inputs = {k: x.to(dtype) for k, x in case.draw(2, 9, torch.float32, rng).items()}
    expected, last = case.fast(**inputs, return_state=True)
    install(STAND_INS[label])
    kernel = dispatch.KERNELS[name.split("-")[0]][0]
    monkeypatch.setattr(dispatch, "choose", lambda *_, **__: kernel)
    y, state = case.fast(**inputs, return_state=True)
    tolerance = 1e-5 if label == name else 3e-2
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state, last, rtol=tolerance, atol=tolerance)


def scan(**changes: Any) -> dict[str, Any]:
    u, n = torch.ones(1, 3, 8, dtype=changes.pop("dtype", torch.float32)), changes.pop("n", 4)
    B = torch.ones(1, 3, n)
    return {"u": u, "dt": u, "A": -torch.ones(8, n), "B": B, "C": B, **changes}


def conv(d: int = 8, w: int = 4, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"x": torch.ones(1, 3, d, dtype=dtype), "weight": torch.ones(d, w)}


def heads(dtype: torch.dtype) -> dict[str, Any]:
    x = torch.ones(1, 3, 2, 4, dtype=dtype)
    return {"x": x, "dt": x[..., 0], "A": -torch.ones(2), "B": x, "C": x}


def memory(dtype: torch.dtype) -> dict[str, Any]:
    k = torch.ones(1, 3, 2, 4, dtype=dtype) / 2
    return {"q": k, "k": k, "v": k, "beta": k[..., 0]}


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        ("selective_scan", scan(), ""),
        ("selective_scan", scan(initial_state=torch.ones(1, 8, 4)), "an initial state"),
        ("selective_scan", scan(return_state=True), "gradients through the final state"),
        ("selective_scan", scan(n=257), "more than 256 state dimensions"),
        ("selective_scan", scan(dtype=torch.float64), "float64"),
        ("ssd", heads(torch.float32), ""),
        ("ssd", heads(torch.float64), "float64"),
        ("delta_rule", memory(torch.bfloat16), ""),
        ("delta_rule", memory(torch.float32), "float32"),
        ("short_conv", conv(), ""),
        ("short_conv", conv(w=1), "width 1"),
        ("short_conv", conv(w=5), "width 5"),
        ("short_conv", conv(d=6), "a number of channels that 8 does not divide"),
        ("short_conv", conv(dtype=torch.float64), "float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_kernel_cannot_do_is_left_to_ours(
    op: str, arguments: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(
        dispatch, "choose", lambda *_, unsupported="", **__: told.append(unsupported) or "torch"
    )
    getattr(ops, op)(**arguments)
    assert told == [reason]
