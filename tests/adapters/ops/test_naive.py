"""The twins against closed forms: sums over the past in float64, SciPy, the authors' loops."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch

from patchbench.adapters import ops
from patchbench.adapters.ops import naive

STEPS = 11


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_selective_scan_is_the_sum_over_the_past(rng: np.random.Generator) -> None:
    b, d, n = 2, 3, 4
    u, dt = rng.normal(size=(b, STEPS, d)), rng.uniform(0.01, 0.5, (b, STEPS, d))
    A, D = -rng.uniform(0.1, 4, (d, n)), rng.normal(size=d)
    B, C = rng.normal(size=(b, STEPS, n)), rng.normal(size=(b, STEPS, n))
    start = rng.normal(size=(b, d, n))
    y = np.zeros_like(u)
    for t in range(STEPS):
        for s in range(t + 1):
            decay = np.exp(A * dt[:, s + 1 : t + 1].sum(1)[:, :, None])  # b d n
            read = (decay * C[:, t, None, :] * B[:, s, None, :]).sum(-1)
            y[:, t] += read * dt[:, s] * u[:, s]
        since_start = np.exp(A * dt[:, : t + 1].sum(1)[:, :, None])
        y[:, t] += (since_start * start * C[:, t, None, :]).sum(-1) + D * u[:, t]
    for function in (naive.selective_scan, ops.selective_scan):
        got, _ = function(*tensors(u, dt, A, B, C, D), initial_state=torch.from_numpy(start))
        np.testing.assert_allclose(got.numpy(), y, rtol=1e-10, atol=1e-10)


def test_selective_scan_of_a_constant_system_is_a_linear_filter(rng: np.random.Generator) -> None:
    u = rng.normal(size=(1, 50, 1))
    dt, a = 0.3, -1.7
    pole = np.exp(dt * a)
    expected = scipy.signal.lfilter([dt * 0.8 * 1.3], [1, -pole], u[0, :, 0])
    ones = np.ones((1, 50, 1))
    for function in (naive.selective_scan, ops.selective_scan):
        y, _ = function(*tensors(u, dt * ones, np.array([[a]]), 0.8 * ones, 1.3 * ones))
        np.testing.assert_allclose(y[0, :, 0].numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_ssd_is_the_sum_over_the_past(groups: int, rng: np.random.Generator) -> None:
    b, heads, p, n = 2, 4, 3, 5
    x, dt = rng.normal(size=(b, STEPS, heads, p)), rng.uniform(0.01, 0.5, (b, STEPS, heads))
    A, D = -rng.uniform(0.1, 4, heads), rng.normal(size=heads)
    B, C = rng.normal(size=(2, b, STEPS, groups, n))
    y = np.zeros_like(x)
    for h in range(heads):
        g = h // (heads // groups)
        for t in range(STEPS):
            for s in range(t + 1):
                decay = np.exp(A[h] * dt[:, s + 1 : t + 1, h].sum(1))
                read = (C[:, t, g] * B[:, s, g]).sum(-1) * decay * dt[:, s, h]
                y[:, t, h] += read[:, None] * x[:, s, h]
            y[:, t, h] += D[h] * x[:, t, h]
    for function in (naive.ssd, ops.ssd):
        got, _ = function(*tensors(x, dt, A, B, C, D))
        np.testing.assert_allclose(got.numpy(), y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_delta_rule_is_a_product_of_reflections(gated: bool, rng: np.random.Generator) -> None:
    width, value = 4, 3
    q, k = rng.normal(size=(2, 1, STEPS, 1, width))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.normal(size=(1, STEPS, 1, value)), rng.uniform(size=(1, STEPS, 1))
    g = -rng.uniform(size=(1, STEPS, 1)) if gated else np.zeros((1, STEPS, 1))
    expected = np.zeros_like(v)
    for t in range(STEPS):
        # o[t] = q (Σ_s Π_{s<i≤t} e^g (I − beta k kᵀ) beta k vᵀ): no memory is ever updated.
        for s in range(t + 1):
            path = np.eye(width)
            for i in range(s + 1, t + 1):
                key = k[0, i, 0]
                path = (
                    np.exp(g[0, i, 0]) * (np.eye(width) - beta[0, i, 0] * np.outer(key, key)) @ path
                )
            written = beta[0, s, 0] * np.outer(k[0, s, 0], v[0, s, 0])
            expected[0, t, 0] += q[0, t, 0] @ path @ written
    for function in (naive.delta_rule, ops.delta_rule):
        o, _ = function(*tensors(q, k, v, beta), torch.from_numpy(g) if gated else None)
        np.testing.assert_allclose(o.numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_short_conv_is_scipys_filter(width: int, rng: np.random.Generator) -> None:
    x, weight, bias = rng.normal(size=(2, 20, 3)), rng.normal(size=(3, width)), rng.normal(size=3)
    expected = np.stack(
        [scipy.signal.lfilter(weight[c, ::-1], [1], x[:, :, c]) + bias[c] for c in range(3)], -1
    )
    for function in (naive.short_conv, ops.short_conv):
        y, last = function(*tensors(x, weight, bias), **_asking(function))
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(last.numpy(), x[:, 21 - width :])


@pytest.mark.parametrize("backend", ["direct", "fft", "naive"])
@pytest.mark.parametrize("taps", [1, 50, 150, 200])
def test_long_conv_is_numpys_convolution(taps: int, backend: str, rng: np.random.Generator) -> None:
    x, filters = rng.normal(size=(2, 150, 3)), rng.normal(size=(3, taps))
    expected = np.zeros_like(x)
    for row in range(2):
        for c in range(3):
            expected[row, :, c] = np.convolve(x[row, :, c], filters[c])[:150]
    y, _ = ops.long_conv(*tensors(x, filters), backend=backend)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-10)


def _asking(function: Any) -> dict[str, Any]:
    return {} if function.__module__.endswith("naive") else {"return_state": True}


@pytest.fixture
def fla(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load one of fla's plain-PyTorch files by path: its package does not import without triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fla-core is not installed (extra 'oracle')")
    root = Path(next(iter(spec.submodule_search_locations)))
    if importlib.util.find_spec("einops") is None:
        # The two recurrences read here do not call it; their files import it for others.
        stand_in = types.ModuleType("einops")
        stand_in.rearrange = None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "einops", stand_in)

    def load(op: str) -> Any:
        file = root / "ops" / op / "naive.py"
        found = importlib.util.spec_from_file_location(f"fla_{op}_naive", file)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    return load


def _delta_inputs(gated: bool, rng: np.random.Generator) -> list[torch.Tensor]:
    q, k = rng.normal(size=(2, 2, 70, 3, 8))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.normal(size=(2, 70, 3, 5)), rng.uniform(size=(2, 70, 3))
    inputs = [q, k, v, beta, -rng.uniform(size=beta.shape)] if gated else [q, k, v, beta]
    return [torch.from_numpy(x).float() for x in inputs]


def test_delta_rule_equals_flas_recurrence(fla: Any, rng: np.random.Generator) -> None:
    q, k, v, beta = _delta_inputs(False, rng)
    # Theirs is (b, h, t, k), with the queries scaled by 1/√k.
    theirs, memory = fla("delta_rule").delta_rule_recurrence(
        *(x.transpose(1, 2) for x in (q * 8**0.5, k, v, beta))
    )
    for backend in ("torch", "naive"):
        o, state = ops.delta_rule(q, k, v, beta, return_state=True, backend=backend)
        torch.testing.assert_close(o, theirs.transpose(1, 2), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state, memory, rtol=1e-5, atol=1e-5)


def test_gated_delta_rule_equals_flas_recurrence(fla: Any, rng: np.random.Generator) -> None:
    q, k, v, beta, g = _delta_inputs(True, rng)
    start = torch.from_numpy(rng.normal(size=(2, 3, 8, 5))).float()
    theirs, memory = fla("gated_delta_rule").naive_recurrent_gated_delta_rule(
        q, k, v, beta, g, scale=1.0, initial_state=start, output_final_state=True
    )
    for backend in ("torch", "naive"):
        o, state = ops.delta_rule(
            q, k, v, beta, g, initial_state=start, return_state=True, backend=backend
        )
        torch.testing.assert_close(o, theirs, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(state, memory, rtol=1e-5, atol=1e-5)
