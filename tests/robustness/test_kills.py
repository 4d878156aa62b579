"""Commands that end by `kill -9` at random moments; `kills.py` says what is looked at."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("export", 8),
        *(
            pytest.param(name, 50, marks=pytest.mark.slow)
            for name in ("train", "evaluate", "sweep")
        ),
    ],
)
def test_nothing_is_lost_or_left_half_written(command, count):
    """Of export the whole of a run takes a moment, and the same means write all the others."""
    module = [sys.executable, "-m", "tests.robustness.kills"]
    done = subprocess.run(
        [*module, command, "--kills", str(count)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} killed" in done.stdout
