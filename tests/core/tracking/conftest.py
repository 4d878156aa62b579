"""A place without a login and without variables of W&B."""

import os

import pytest


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
