"""Checkpoint folders that tests load, or damage first."""

import shutil
from pathlib import Path

import pytest

from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "gpt2"
    tiny("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "gpt2"))
