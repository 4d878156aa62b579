"""For every op: equal to its twin, right gradients, causal, cut anywhere, fp32 inside."""

import importlib

import pytest
import torch
from torch import Tensor

from patchbench.adapters.ops import dispatch, precision
from patchbench.common import UserError
from tests.adapters.ops.cases import CASES, Case

EACH = pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # The scan's chunks shrink to two steps, so that short sequences span many.
    module = importlib.import_module("patchbench.adapters.ops.selective_scan")
    monkeypatch.setattr(module, "_BUFFER", 1)


def weigh(*outputs: Tensor) -> Tensor:
    """A scalar in which every element of every output has its own weight."""
    total = torch.zeros((), dtype=outputs[0].dtype)
    for number, output in enumerate(outputs):
        weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype) + number)
        total = total + (output * weights.view_as(output)).sum()
    return total


@EACH
@pytest.mark.parametrize("start", [False, True], ids=["from-zero", "from-state"])
@pytest.mark.parametrize("steps", [1, 7, 65, 130])
def test_equals_twin_forward_and_backward(
    case: Case, steps: int, start: bool, rng: torch.Generator
) -> None:
    inputs = case.draw(3, steps, torch.float32, rng)
    state = case.state(3, torch.float32, rng) if start else None
    results = []
    for function, options in ((case.fast, case.options | {"return_state": True}), (case.slow, {})):
        own = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        if state is not None:
            own["initial_state"] = state.clone().requires_grad_()
        y, last = function(**own, **options)
        grads = torch.autograd.grad(weigh(y, last), list(own.values()), allow_unused=True)
        results.append((y, last, dict(zip(own, grads, strict=True))))
    (y, last, grads), (y_twin, last_twin, grads_twin) = results
    torch.testing.assert_close(y, y_twin, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, last_twin, rtol=1e-5, atol=1e-5)
    for name, expected in grads_twin.items():
        if expected is None or not expected.numel():
            # With one step, the decay of an absent state; with width 1, the past.
            assert grads[name] is None or not grads[name].any()
        else:
            scale = max(1.0, expected.abs().max().item())
            torch.testing.assert_close(grads[name], expected, rtol=1e-5, atol=1e-5 * scale)


@EACH
def test_gradcheck_of_inputs_initial_and_final_state(case: Case, rng: torch.Generator) -> None:
    inputs = case.draw(2, 4, torch.float64, rng)
    state = case.state(2, torch.float64, rng)
    names = [*inputs, "initial_state"]

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        return case.fast(**dict(zip(names, values, strict=True)), **case.options, return_state=True)

    values = [value.requires_grad_() for value in (*inputs.values(), state)]
    assert torch.autograd.gradcheck(run, values, eps=1e-6, atol=1e-7, rtol=1e-5)


@EACH
@pytest.mark.parametrize("steps", [9, 130])
def test_later_input_leaves_earlier_outputs_bit_equal(
    case: Case, steps: int, rng: torch.Generator
) -> None:
    inputs = case.draw(2, steps, torch.float32, rng)
    before, _ = case.fast(**inputs, **case.options)
    for name in case.timed:
        for t in (1, steps // 2, steps - 1):
            changed = {key: x.clone() for key, x in inputs.items()}
            changed[name][:, t] = -0.7 if name == "g" else 0.7
            after, _ = case.fast(**changed, **case.options)
            assert torch.equal(after[:, :t], before[:, :t]), (name, t)
            if name == case.timed[0]:
                assert (after[:, t] != before[:, t]).any()


@EACH
def test_chunk_by_chunk_equals_whole(case: Case, rng: torch.Generator) -> None:
    inputs = case.draw(2, 20, torch.float32, rng)
    whole, last = case.fast(**inputs, **case.options, return_state=True)
    outputs, state = [], None
    for begin, end in ((0, 1), (1, 2), (2, 9), (9, 10), (10, 20)):
        part = {k: x[:, begin:end] if k in case.timed else x for k, x in inputs.items()}
        y, state = case.fast(**part, **case.options, initial_state=state, return_state=True)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)


@EACH
def test_rows_do_not_depend_on_the_batch(case: Case, rng: torch.Generator) -> None:
    inputs = case.draw(8, 12, torch.float32, rng)
    together, _ = case.fast(**inputs, **case.options)
    for row in (0, 7):
        alone = {k: x[row : row + 1] if k in case.timed else x for k, x in inputs.items()}
        y, _ = case.fast(**alone, **case.options)
        torch.testing.assert_close(y[0], together[row], rtol=1e-6, atol=1e-6)


@EACH
def test_no_state_unless_asked_for(case: Case, rng: torch.Generator) -> None:
    _, state = case.fast(**case.draw(1, 3, torch.float32, rng), **case.options)
    assert state is None


@EACH
def test_half_precision_in_and_out_but_float32_inside(case: Case, rng: torch.Generator) -> None:
    inputs = {k: x.bfloat16() for k, x in case.draw(2, 40, torch.float32, rng).items()}
    y, state = case.fast(**inputs, **case.options, return_state=True)
    exact, exact_state = case.slow(**{k: x.float() for k, x in inputs.items()})
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, exact.bfloat16()) or (y - exact.bfloat16()).abs().max() < 0.04
    if "conv" not in case.fast.__name__:  # a convolution's state is its last inputs as they came
        assert state.dtype == torch.float32
        torch.testing.assert_close(state, exact_state, rtol=1e-4, atol=1e-4)


@EACH
def test_autocast_does_not_reach_inside(case: Case, rng: torch.Generator) -> None:
    inputs = case.draw(2, 40, torch.float32, rng)
    expected, _ = case.fast(**inputs, **case.options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = case.fast(**inputs, **case.options)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("name", ["selective_scan", "gated_delta_rule"])
def test_compiled_equals_eager(name: str, rng: torch.Generator) -> None:
    case = CASES[name]
    inputs = case.draw(2, 6, torch.float32, rng)
    first = case.timed[0]
    inputs[first].requires_grad_()

    def loss(**values: Tensor) -> Tensor:
        return weigh(case.fast(**values, **case.options)[0])

    (expected,) = torch.autograd.grad(loss(**inputs), inputs[first])
    compiled = torch.compile(loss, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(**inputs), inputs[first])
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-5)


@EACH
def test_records_what_ran(case: Case, rng: torch.Generator) -> None:
    dispatch.reset()
    case.fast(**case.draw(1, 3, torch.float32, rng), **(case.options | {"backend": "naive"}))
    assert set(dispatch.used().values()) == {"naive"}
    dispatch.reset()


def test_working_dtype_is_the_widest_and_at_least_float32() -> None:
    half, double = torch.zeros(1).bfloat16(), torch.zeros(1).double()
    assert precision.working_dtype(half, None) == torch.float32
    assert precision.working_dtype(half, double) == torch.float64


@pytest.mark.parametrize("name", [name for name in CASES if "chunk_size" in CASES[name].options])
@pytest.mark.parametrize("chunk_size", [0, -1])
def test_refuses_an_empty_chunk(name: str, chunk_size: int, rng: torch.Generator) -> None:
    case = CASES[name]
    inputs = case.draw(2, 5, torch.float32, rng)
    with pytest.raises(UserError, match="chunk_size"):
        case.fast(**inputs, **case.options | {"chunk_size": chunk_size})
