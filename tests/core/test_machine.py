"""Devices, kernels and folders of a machine that is made up where it matters."""

import sys
import tempfile

import datasets
import pytest
import torch

from patchbench import machine
from patchbench.adapters.ops import dispatch
from tests.fake_distributions import install


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Write a package `causal_conv1d` of this source, and give what is said of its op."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)
    dispatch.kernel.cache_clear()

    def written(source, cuda):
        (tmp_path / "causal_conv1d.py").write_text(source)
        install(tmp_path, "causal-conv1d", "1.5.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        (row,) = (row for row in machine.kernels() if row["op"] == "short_conv")
        return row["runs"], row["why"], row["error"]

    yield written
    sys.modules.pop("causal_conv1d", None)
    dispatch.kernel.cache_clear()


@pytest.mark.parametrize(
    ("source", "cuda", "expected"),
    [
        ("def causal_conv1d_fn(): ...", True, ("causal_conv1d", "causal_conv1d 1.5.0", None)),
        (
            "def causal_conv1d_fn(): ...",
            False,
            ("torch", "causal_conv1d 1.5.0 needs a CUDA GPU", None),
        ),
        (
            "raise OSError('no\\n libcuda')",
            True,
            (
                "torch",
                "causal_conv1d 1.5.0 cannot be used: OSError: no libcuda",
                "OSError: no libcuda",
            ),
        ),
        (
            "old = 1",
            True,
            (
                "torch",
                "causal_conv1d 1.5.0 cannot be used: it has no causal_conv1d_fn",
                "it has no causal_conv1d_fn",
            ),
        ),
    ],
    ids=["usable", "without a GPU", "broken", "too old"],
)
def test_which_kernel_runs_and_why(kernel, source, cuda, expected):
    assert kernel(source, cuda) == expected


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert {row["why"].split()[0] for row in machine.kernels()} == {
        name for name, *_ in dispatch.KERNELS.values()
    }
    assert all(row["why"].endswith("is not installed") for row in machine.kernels())


def test_devices(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    limit.write_text("3221225472\n")
    monkeypatch.setattr(machine, "_MEMORY_LIMIT", limit)
    found = machine.devices()
    assert found["memory_gib"] == 3.0
    assert 1 <= found["cores"] <= found["cores_of_the_machine"]
    assert found["threads"] == torch.get_num_threads()
    assert len(found["gpus"]) >= torch.cuda.device_count()
    limit.write_text("max\n")
    assert machine.devices()["memory_gib"] > 0.5


def test_folders(tmp_path, monkeypatch):
    """A folder below a file can be made by nobody, not even by the superuser."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not yet" / "there"))
    rows, models, temporary = machine.folders()
    assert (rows["set_by"], rows["error"], rows["free_gib"]) == (
        "HF_DATASETS_CACHE",
        "Not a directory",
        None,
    )
    assert (temporary["folder"], temporary["error"]) == (str(tmp_path / "not yet" / "there"), None)
    assert temporary["free_gib"] > 0
    assert models["for"] == "models"
    assert not (tmp_path / "not yet").exists()  # nothing was left behind


def test_no_temporary_folder_at_all(monkeypatch):
    def none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert machine.folders()[-1]["error"] == "there is none"
