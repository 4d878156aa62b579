"""`patchbench sweep` and `recipes` as a user meets them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from patchbench import cli_sweep
from patchbench.common import UserError
from tests.core.sweep.tiny_sweep import content


def tiny(**training):
    """Return the arguments of a sweep of the smallest trainings."""
    settings = {"steps": 8, "log_every": 2, "dev_n": 16, "test_n": 8, "warmup": 2, **training}
    changes = [part for name, value in settings.items() for part in ("--train", f"{name}={value}")]
    task = ("--set", "num_pairs=2", "--set", "num_keys=4", "--set", "num_values=4")
    return ("paper_ar", "--arch", "delta_net", "--widths", "16", "--device", "cpu", *changes, *task)


TINY = tiny()


def test_recipes_are_listed(run):
    code, stdout, _ = run("recipes", "--json")
    assert code == 0
    assert {line["name"] for line in json.loads(stdout)} >= {"paper_ar", "paper_sibling"}


def test_a_dry_run_tells_and_does_nothing(run, tmp_path):
    arguments = ("sweep", "paper_ar", "--dry-run", "--out", tmp_path / "s")
    code, stdout, stderr = run(*arguments, "--json")
    assert (code, stderr) == (0, "")
    lines = json.loads(stdout)["runs"]
    assert len(lines) == 24
    assert lines[0]["run"] == "attention-w64-s0"
    assert lines[0]["steps"] == 8000
    assert lines[0]["cpu_seconds"] > 10
    assert not (tmp_path / "s").exists()
    code, stdout, _ = run(*arguments)
    assert "24 of 24 runs to do" in stdout
    assert max(map(len, stdout.splitlines())) <= 80


def test_a_sweep_prints_runs_and_seeds_and_skips_them_then(run, tmp_path):
    out = tmp_path / "s"
    arguments = ("sweep", *TINY, "--out", out, "--workers", 1)
    code, stdout, stderr = run(*arguments, "--seeds", "0,1")
    assert code == 0, stderr
    for word in ("delta_net-w16-s0", "delta_net-w16-s1", "accuracy", str(out)):
        assert word in stdout.replace("\n", "")
    code, stdout, stderr = run(*arguments, "--seeds", "0,1", "--json")
    assert (code, stderr) == (0, "")
    found = json.loads(stdout)
    assert [line["skipped"] for line in found["runs"]] == [True, True]
    assert found["groups"]["delta_net-w16"]["seeds"] == 2
    code, stdout, _ = run("compare", out, "--json")
    assert {row["name"] for row in json.loads(stdout)["rows"]} == {
        "delta_net-w16-s0", "delta_net-w16-s1",
    }  # fmt: skip
    pages = sorted(path.parent.name for path in out.rglob("report.html"))
    assert pages == ["delta_net-w16-s0", "delta_net-w16-s1"]
    (out / "runs/delta_net-w16-s0/report.html").unlink()  # as after a kill before it was written
    assert run("sweep", *TINY, "--out", out, "--seeds", "0", "--quiet")[0] == 0
    assert (out / "runs/delta_net-w16-s0/report.html").exists()
    result = json.loads((out / "runs/delta_net-w16-s0/result/result.json").read_text())
    assert result["provenance"]["command"].startswith("patchbench sweep paper_ar")


def test_a_failed_run_is_code_1_and_one_line(run, tmp_path):
    arguments = tiny(clip=0, steps=40)
    code, stdout, stderr = run(
        "sweep", *arguments, "--seeds", 0, "--lrs", "1e30", "--out", tmp_path / "s"
    )
    assert code == 1, stderr
    assert "failed delta_net-w16-s0" in stdout
    assert "NaN" in stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--executor", "slurm"], "unknown executor 'slurm'"),
        (["--address", "auto"], "add --executor ray"),
        (["--scale", "huge"], "unknown scale"),
        (["--arch", "mambo"], "mamba"),
        (["--seeds", "0", "--seeds", "1"], "--seeds is given twice"),
        (["--widths", "x"], "whole numbers"),
        (["--widths", "8,8"], "different whole numbers"),
        (["--lrs", "fast"], "numbers by comma"),
        (["--seeds", "0.5"], "whole numbers"),
        (["--train", "stepz=3"], "steps"),
        (["--train", "steps"], "--train 'steps' is not NAME=VALUE"),
        (["--train", "lr=0.1"], "give rates"),
        (["--set", "pairs=3"], "num_pairs"),
        (["--only", "nothing*"], "fits no run"),
        (["--workers", "0"], "at least 1"),
        (["--runs-per-gpu", "0"], "at least 1"),
        (["--threads", "0"], "at least 1"),
        (["--device", "tpu"], "auto or cpu"),
        (["--out", "/proc/nowhere"], "/proc"),
        (["--wandb-mode", "offline"], "--wandb"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_code_2(run, tmp_path, change, says):
    # A list is given once.
    at = TINY.index(change[0]) if change[0] in ("--arch", "--widths") else len(TINY)
    code, stdout, stderr = run(
        "sweep", *TINY[:at], *TINY[at + 2 :], "--out", tmp_path / "s", *change
    )
    assert (code, stdout) == (2, ""), stderr
    assert len(stderr.strip().splitlines()) == 1
    assert says in stderr
    assert not (tmp_path / "s").exists()


def test_a_tracker_that_fails_stops_no_run(run, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise UserError("the tracker is down", "try later")

    monkeypatch.setattr(cli_sweep, "tracking_of", lambda *args: object())
    monkeypatch.setattr(cli_sweep, "send", fail)
    out = tmp_path / "s"
    code, _, stderr = run("sweep", *TINY, "--seeds", "0,1", "--out", out, "--quiet")
    assert code == 0
    for seed in (0, 1):
        assert (out / "runs" / f"delta_net-w16-s{seed}" / "result" / "result.json").is_file()
        assert f"s{seed} is not logged (the tracker is down: try later): `patchbench log" in stderr


def test_an_unknown_recipe_and_no_folder(run, tmp_path):
    code, _, stderr = run("sweep", "paper_arr", "--out", tmp_path / "s")
    assert code == 2
    assert "paper_ar" in stderr
    code, _, stderr = run("sweep", "paper_ar")
    assert code == 2
    assert "--out is missing" in stderr


STEPS = 600
LONG = tiny(steps=STEPS, log_every=20, dynamics_every=0, stop_at=1.0)


def begin(out):
    arguments = ["sweep", *LONG, "--seeds", "0", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", "from patchbench.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def workers_of(out):
    """Return the processes that have a run of this sweep locked, by /proc."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            files = [
                os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")
            ]
        except OSError:
            continue
        if any(str(out / "runs") in file for file in files):
            found.append(int(entry))
    return found


def newest(out):
    """Return the step of the newest checkpoint."""
    steps = [path.parent.name.rpartition("-")[2] for path in out.rglob("complete")]
    return max(map(int, steps), default=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the long sweep leaves when nobody interrupts it."""
    out = tmp_path_factory.mktemp("whole") / "s"
    process = begin(out)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return content(out / "runs" / "delta_net-w16-s0")


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_sweep_and_a_rerun_goes_on(sign, whole, tmp_path):
    out = tmp_path / "s"
    process = begin(out)
    wait_for(lambda: newest(out))
    assert len(workers_of(out)) == 1
    process.send_signal(sign)
    _, stderr = process.communicate(timeout=60)
    if sign == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert len(stderr.splitlines()) == 1
        assert "goes on from the last checkpoints" in stderr
    wait_for(lambda: not workers_of(out), seconds=15)
    assert 0 < newest(out) < STEPS
    process = begin(out)
    assert process.wait(timeout=120) == 0
    assert content(out / "runs" / "delta_net-w16-s0") == whole
