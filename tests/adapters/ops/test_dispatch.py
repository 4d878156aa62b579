"""Which backend runs, what is recorded, and how a wrong wish is answered."""

import sys
import types
from collections.abc import Iterator

import pytest
import torch

from patchbench.adapters import ops
from patchbench.adapters.ops import dispatch
from patchbench.common import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dispatch.reset()
    dispatch.kernel.cache_clear()
    yield
    dispatch.reset()
    dispatch.kernel.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, module, attribute in dispatch.KERNELS.values():
        stand_in = types.ModuleType(module)
        setattr(stand_in, attribute, lambda: None)
        for depth in range(1, len(module.split("."))):
            package = ".".join(module.split(".")[:depth])
            monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        monkeypatch.setitem(sys.modules, module, stand_in)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("op", sorted(dispatch.KERNELS))
def test_auto_takes_an_installed_kernel_on_cuda_only(op: str) -> None:
    assert dispatch.choose(op, "auto", CUDA) == dispatch.KERNELS[op][0]
    assert dispatch.choose(op, "auto", CUDA, unsupported="float64") == "torch"
    assert dispatch.choose(op, "auto", CPU) == "torch"


@pytest.mark.parametrize("op", sorted(dispatch.KERNELS))
def test_auto_without_kernels_is_ours(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, dispatch.KERNELS[op][1], None)  # importing it fails
    assert dispatch.choose(op, "auto", CUDA) == "torch"


def test_a_kernel_package_that_fails_to_import_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> None:
            raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "causal_conv1d", Broken("causal_conv1d"))
    assert dispatch.choose("short_conv", "auto", CUDA) == "torch"


@pytest.mark.parametrize(
    ("op", "backend", "device", "unsupported", "message"),
    [
        ("ssd", "mamba-ssm", CPU, "", "did you mean 'mamba_ssm'"),
        ("long_conv", "cuda", CPU, "", "known: auto, naive, torch"),
        ("ssd", "mamba_ssm", CPU, "", "needs CUDA tensors, not cpu"),
        ("ssd", "mamba_ssm", CUDA, "float64", "does not support float64"),
    ],
    ids=["typo", "no-kernel", "on-cpu", "unsupported"],
)
def test_impossible_wishes_are_one_line(
    op: str, backend: str, device: torch.device, unsupported: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        dispatch.choose(op, backend, device, unsupported=unsupported)
    assert "\n" not in str(error.value)


def test_a_kernel_asked_for_by_name_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", None)
    with pytest.raises(UserError, match="extra 'cuda'"):
        dispatch.choose("ssd", "mamba_ssm", CUDA)


def test_what_ran_is_recorded_by_op() -> None:
    x, weight = torch.ones(1, 3, 2), torch.ones(2, 2)
    ops.short_conv(x, weight)
    ops.short_conv(x, weight, backend="naive")
    ops.long_conv(x, weight)
    k = torch.ones(1, 3, 1, 2)
    ops.delta_rule(k, k, k, torch.ones(1, 3, 1), -torch.ones(1, 3, 1))
    assert dispatch.used() == {
        "gated_delta_rule": "torch",
        "long_conv": "direct",
        "short_conv": "naive+torch",
    }
    dispatch.reset()
    assert dispatch.used() == {}


def test_long_conv_changes_form_at_its_limit() -> None:
    from patchbench.adapters.ops.conv import DIRECT_LIMIT

    filters = torch.ones(1, 4)
    ops.long_conv(torch.ones(1, DIRECT_LIMIT, 1), filters)
    assert dispatch.used() == {"long_conv": "direct"}
    ops.long_conv(torch.ones(1, DIRECT_LIMIT + 1, 1), filters)
    assert dispatch.used() == {"long_conv": "direct+fft"}
    dispatch.reset()
    # Few outputs after a long past are cheaper one by one.
    ops.long_conv(torch.ones(1, 1, 1), filters, initial_state=torch.ones(1, 2 * DIRECT_LIMIT, 1))
    assert dispatch.used() == {"long_conv": "direct"}
