"""`patchbench doctor` among distributions, plugins and machines that are made up."""

import json
import os
import subprocess
import sys

import pytest

import patchbench
from patchbench import doctor
from tests.fake_distributions import install

DEVICES = {"cores": 2, "cores_of_the_machine": 4, "threads": 1, "memory_gib": 8.0}
GPU = {"device": "cuda:0", "name": "Some GPU", "memory_gib": 80.0, "free_gib": 79.5}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def problems(report):
    return {f.what: f.remedy for f in report.findings if f.level == "problem"}


def notes(report):
    return {f.what: f.remedy for f in report.findings if f.level == "note"}


def test_this_environment_is_usable_and_everything_is_shown():
    report = doctor.examine()
    assert problems(report) == {}
    assert report.usable
    shown = {row["package"]: row for row in report.packages}
    names = "torch transformers pyvene nnsight datasets accelerate wandb trackio ray gguf peft "
    names += "mamba-ssm causal-conv1d fla-core triton xarray"
    assert set(names.split()) <= set(shown)
    assert (shown["pyvene"]["version"], shown["pyvene"]["wanted"]) == ("0.1.8", "==0.1.8")
    assert shown["ray"]["extra"] == "ray"
    assert {row["op"] for row in report.kernels} >= {"selective_scan", "short_conv"}
    assert [row["for"] for row in report.folders] == ["rows of tasks", "models", "temporary files"]


@pytest.mark.parametrize(
    ("name", "version", "what", "remedy"),
    [
        ("pyvene", "0.1.7", "pyvene==0.1.8, and pyvene 0.1.7", 'pip install "pyvene==0.1.8"'),
        ("torch", "2.14.0", "torch<2.14,>=2.6, and torch 2.14.0", 'pip install "torch<2.14,>=2.6"'),
        ("nnsight", "0.5", "nnsight>=0.8, and nnsight 0.5", 'pip install "nnsight>=0.8"'),
        ("wandb", "0.20", "wandb>=0.31, and wandb 0.20", 'pip install "wandb>=0.31"'),
        (
            "mamba-ssm",
            "1.0",
            "mamba-ssm>=2.2, and mamba-ssm 1.0",
            'pip install --no-build-isolation "mamba-ssm>=2.2"',
        ),
    ],
    ids=["pyvene", "torch", "nnsight", "wandb", "mamba-ssm"],
)
def test_a_version_out_of_bounds_is_a_problem(site, name, version, what, remedy):
    install(site, name, version)
    report = doctor.examine()
    assert problems(report) == {f"patchbench asks for {what} is installed": remedy}
    assert not report.usable


@pytest.mark.parametrize(
    ("installed", "what", "remedy"),
    [
        (
            {"transformer-lens": ("4.3.0", ()), "sae-lens": ("6.54.12", ("transformer-lens<4",))},
            "sae-lens 6.54.12 asks for transformer-lens<4, and transformer-lens 4.3.0 is installed",
            'pip install "transformer-lens<4"',
        ),
        (
            {"nnterp": ("1.3.0", ()), "nnsight": ("0.8.2", ())},
            "nnterp cannot be imported beside nnsight 0.8 (patchbench is not affected)",
            "give nnterp an environment of its own",
        ),
    ],
    ids=["sae-lens", "nnterp"],
)
def test_what_concerns_others_is_a_note(site, installed, what, remedy):
    for name, (version, requires) in installed.items():
        install(site, name, version, requires=requires)
    report = doctor.examine()
    assert notes(report)[what] == remedy
    assert report.usable


def test_a_package_that_is_missing_and_a_source_that_is_not_what_was_installed(site):
    install(site, "patchbench", "0.0.9", requires=["never-made>=3"])
    assert problems(doctor.examine()) == {
        f"patchbench {patchbench.__version__} is imported, and 0.0.9 is installed": (
            "pip install it again, or start Python outside of its source folder"
        ),
        "patchbench asks for never-made>=3, and that is not installed": (
            'pip install "never-made>=3"'
        ),
    }


@pytest.mark.parametrize(
    ("cuda", "gpus", "visible", "what"),
    [
        (None, [], None, "is built without CUDA"),
        ("12.8", [], None, "torch sees no GPU with CUDA 12.8"),
        ("12.8", [], "", None),
        ("12.8", [GPU], None, None),
    ],
    ids=["a CPU build", "an old driver", "hidden on purpose", "seen"],
)
def test_a_gpu_that_is_not_used_is_a_note(tmp_path, monkeypatch, cuda, gpus, visible, what):
    (tmp_path / "version").write_text("")
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(doctor, "devices", lambda: DEVICES | {"cuda": cuda, "gpus": gpus})
    monkeypatch.setattr(doctor, "kernels", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    report = doctor.examine()
    told = [text for text in notes(report) if "NVIDIA" in text]
    assert len(told) == (what is not None)
    assert what is None or told[0].endswith(what)
    assert report.usable


@pytest.mark.parametrize("gpus", [[GPU], []], ids=["gpu", "cpu"])
def test_a_broken_kernel_is_told_once_and_only_where_it_would_run(monkeypatch, gpus):
    rows = [
        {
            "op": op,
            "package": "fla",
            "runs": "torch",
            "why": "fla 1 cannot be used: x",
            "error": "x",
        }
        for op in ("delta_rule", "gated_delta_rule")
    ]
    monkeypatch.setattr(doctor, "devices", lambda: DEVICES | {"cuda": "12.8", "gpus": gpus})
    monkeypatch.setattr(doctor, "kernels", lambda: rows)
    report = doctor.examine()
    assert len([text for text in notes(report) if "fla 1 cannot be used: x" in text]) == len(gpus)


@pytest.mark.parametrize(
    ("kind", "error", "free", "level", "what"),
    [
        ("rows of tasks", "Read-only file system", None, "problem", "cannot be written (Read-only"),
        ("models", "Read-only file system", None, "note", "cannot be written (Read-only"),
        ("models", None, 0.3, "note", "has 0.3 GiB left"),
        ("models", None, 30.0, None, ""),
    ],
    ids=["rows", "models", "full", "fine"],
)
def test_folders(monkeypatch, kind, error, free, level, what):
    row = {"for": kind, "folder": "/a", "set_by": "A", "error": error, "free_gib": free}
    monkeypatch.setattr(doctor, "folders", lambda: [row])
    found = [f for f in doctor.examine().findings if f"/a for {kind}" in f.what]
    assert [f.level for f in found] == ([] if level is None else [level])
    assert all(what in f.what and "set A to a folder" in f.remedy for f in found)


def test_the_command_prints_80_columns(run, monkeypatch):
    gpus = [GPU, {"device": "mps", "name": "arm", "memory_gib": None, "free_gib": None}]
    monkeypatch.setattr(doctor, "devices", lambda: DEVICES | {"cuda": "12.8", "gpus": gpus})
    code, out, _ = run("doctor")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith(f"patchbench {patchbench.__version__}, Python 3.")
    words = " ".join(out.split())
    assert (
        "2 of 4 CPU cores can be used, 1 by PyTorch; 8.0 GiB of memory; cuda:0 (Some GPU," in words
    )
    assert "80.0 GiB, 79.5 GiB free), mps (arm)" in words
    assert out.endswith("nothing is broken\n")


def test_the_command_tells_what_is_broken(run, site):
    install(site, "pyvene", "0.1.7")
    code, out, _ = run("doctor")
    assert code == 1
    told = "problem: patchbench asks for pyvene==0.1.8, and pyvene 0.1.7 is installed: pip install"
    assert told in " ".join(out.split())
    assert out.endswith("1 broken\n")
    code, out, _ = run("doctor", "--json")
    content = json.loads(out)
    assert (code, content["usable"]) == (1, False)
    assert content["findings"][0]["level"] == "problem"


def test_plugins_and_packages_that_do_not_import(tmp_path):
    """In a process of its own: what is imported once stays so."""
    (tmp_path / "bad.py").write_text("raise RuntimeError('no luck')")
    (tmp_path / "fine.py").write_text("def mapped(model): ...")
    install(tmp_path, "bad", points={"patchbench.mixers": {"bad": "bad:Thing"}})
    install(tmp_path, "fine", points={"patchbench.adapters": {"fine": "fine:mapped"}})
    code, content = _in_a_process(tmp_path)
    assert code == 1
    skipped = {row["plugin"]: (row["package"], row["skipped"]) for row in content["plugins"]}
    assert skipped == {
        "mixer bad": ("bad", "RuntimeError: no luck"),
        "hook map fine": ("fine", None),
    }
    assert [(f["what"], f["remedy"]) for f in content["findings"] if f["level"] == "problem"] == [
        ("the mixer 'bad' of bad is skipped (RuntimeError: no luck)",
         "correct bad:Thing, or uninstall bad"),
    ]  # fmt: skip

    (tmp_path / "torch.py").write_text("raise ImportError('libmkl.so: cannot open')")
    code, content = _in_a_process(tmp_path)
    assert code == 1
    (problem,) = (f for f in content["findings"] if f["level"] == "problem")
    assert "cannot be imported (ImportError: libmkl.so: cannot open)" in problem["what"]
    assert problem["remedy"].startswith("pip install --force-reinstall torch")
    assert (content["devices"], content["kernels"], content["plugins"]) == ({}, [], [])


def _in_a_process(site):
    done = subprocess.run(
        [sys.executable, "-c", "from patchbench.cli import main; main()", "doctor", "--json"],
        env=os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)
