"""A place without a login and without variables of W&B, and the command line in this process."""

import os
import sys

import pytest

from patchbench import cli


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder of its own, no login, and an environment that is put back."""
    wandb = pytest.importorskip("wandb")
    for name in [*filter(lambda name: name.startswith("WANDB_"), os.environ), "WANDB_MODE"]:
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wandb.teardown()


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["patchbench", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return call
