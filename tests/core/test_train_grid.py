"""`lr="auto"`: the rate is chosen by dev loss over a grid, and a kill changes nothing."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

import patchbench as pb
from patchbench.training import ModelSpec, train
from patchbench.training.folder import TrainFolder
from tests.core.tiny_training import QUICK, SPEC, TASK


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_the_rate_is_chosen_by_dev_loss_and_the_grid_is_in_the_result(task, tmp_path):
    trained = train(
        SPEC, task, out=tmp_path / "run", lr="auto", lr_grid=[1e-4, 1e-2], **{**QUICK, "steps": 40}
    )
    losses = {line["rate"]: line["dev_loss"] for line in trained.grid}
    assert losses[1e-2] < losses[1e-4]
    assert trained.rate == 1e-2
    recorded = trained.result.provenance["training"]
    assert recorded["grid"] == trained.grid
    assert recorded["rate"] == 1e-2
    alone = train(SPEC, task, out=tmp_path / "alone", lr=1e-2, **{**QUICK, "steps": 40})
    assert equal(weights(trained.path), weights(alone.path))
    assert alone.history[-1]["dev_loss"] == losses[1e-2]


def test_a_rate_that_diverges_loses_the_grid(task, tmp_path):
    trained = train(
        ModelSpec(arch="attention", width=16), task, out=tmp_path / "run", lr="auto",
        lr_grid=[1e-3, 1e30], warmup=0, clip=0, dynamics_every=0, **QUICK,
    )  # fmt: skip
    assert trained.rate == 1e-3
    assert "NaN" in trained.grid[1]["diverged"]
    assert trained.grid[1]["dev_loss"] is None


# Run here and in a process that is killed. The last rate diverges.
SCRIPT = """
import sys
import torch
import patchbench as pb
from patchbench.training import ModelSpec, train

def run(out, progress=None):
    torch.set_num_threads(1)
    return train(
        ModelSpec(arch="attention", width=16),
        pb.load_task("ar", num_pairs=2, num_keys=4, num_values=4),
        out=out, device="cpu", steps=60, batch_size=8, train_n=256, warmup=0, clip=0,
        lr="auto", lr_grid=[1e-4, 1e-2, 1e30], log_every=5, dynamics_every=10, dynamics_n=8,
        dev_n=16, test_n=8, progress=progress,
    )
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    threads = torch.get_num_threads()
    space: dict = {}
    exec(SCRIPT, space)
    yield space["run"], space["run"](tmp_path_factory.mktemp("whole") / "run")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rate", [1e-4, 1e-2], ids=["in the first rate", "in the second"])
def test_a_grid_that_is_killed_chooses_what_it_would_have_chosen(whole, tmp_path, rate):
    run, uninterrupted = whole
    out = tmp_path / "run"
    script = SCRIPT + "run(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", script, str(out)])
    deadline = time.monotonic() + 240
    seal = out / "work" / f"lr-{rate}" / "checkpoints" / "checkpoint-20" / "complete"
    while not seal.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL

    steps: dict[float, list[int]] = {}
    resumed = run(out, lambda rate, done, *rest: steps.setdefault(rate, []).append(done))
    assert resumed.rate == uninterrupted.rate == 1e-2
    assert resumed.grid == uninterrupted.grid
    assert "NaN" in resumed.grid[2]["diverged"]
    assert resumed.history == uninterrupted.history
    assert equal(weights(resumed.path), weights(uninterrupted.path))
    assert resumed.result.rows.equals(uninterrupted.result.rows)
    dynamics = [(run.path / "dynamics.parquet").read_bytes() for run in (resumed, uninterrupted)]
    assert dynamics[0] == dynamics[1]
    assert steps[rate][0] > 15  # it went on,
    assert (1e-4 in steps) == (rate == 1e-4)  # and what was done is not done again


def test_learning_rates_that_print_alike_have_folders_of_their_own(tmp_path):
    """Sharing one, the second would go on where the first ended."""
    folder = TrainFolder.open(tmp_path / "run", {})
    assert folder.work(1e-3) != folder.work(0.0010000001)
