"""Training under torchrun: two processes share every batch and do what one does."""

import json
import os
import shlex
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

FLAGS = shlex.split(
    "--arch delta_net --width 16 --task ar --set num_pairs=2 --set num_keys=4 --set num_values=4 "
    "--steps 6 --log-every 3 --dev-n 16 --test-n 8 --train-n 64 --batch-size 8 --device cpu "
    "--dynamics-n 8 --threads 1"
)
NAMES = ("one", "both")
CLI = "from patchbench.cli import main; main()"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def call(python, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    command = [sys.executable, *python, "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)


@pytest.mark.slow
def test_two_processes_train_as_one_and_return_what_is_finished(tmp_path):
    (tmp_path / "cli.py").write_text(CLI)
    two = [*TORCHRUN, str(tmp_path / "cli.py")]
    one = call(["-c", CLI], *FLAGS, "--out", tmp_path / "one")
    assert one.returncode == 0, one.stderr
    both = call(two, *FLAGS, "--out", tmp_path / "both")
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("trained 6 steps") == 1
    weights = [load_file(tmp_path / name / "model.safetensors") for name in NAMES]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=1e-4)
    histories = [json.loads((tmp_path / n / "training.json").read_text())["history"] for n in NAMES]
    for alone, shared in zip(*histories, strict=True):
        assert alone["loss"] == pytest.approx(shared["loss"], abs=1e-5)
        assert alone["accuracy"] == shared["accuracy"]
    again = call(two, *FLAGS, "--out", tmp_path / "both")
    assert again.returncode == 0, again.stderr
    assert again.stdout == both.stdout
    other = call(two, *FLAGS, "--out", tmp_path / "both", "--seed", 1)
    assert other.returncode != 0
    assert "training.seed: 0 → 1" in other.stderr


@pytest.mark.slow
def test_a_mistake_is_told_once(tmp_path):
    (tmp_path / "cli.py").write_text(CLI)
    wrong = ("--arch", "nonsense", "--task", "ar", "--steps", 6, "--out", tmp_path / "run")
    done = call([*TORCHRUN, str(tmp_path / "cli.py")], *wrong)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("patchbench: ")]
    assert len(lines) == 1, done.stderr
    assert "nonsense" in lines[0]
