"""Sweeps as a library: what is done, skipped, gone on with, and left behind."""

import json
import os
import signal
import threading
import time

import pytest

from patchbench.common import UserError
from patchbench.sweeping import LocalExecutor, sweep
from patchbench.sweeping.folder import SweepFolder
from patchbench.sweeping.job import Job, Outcome, attempt
from patchbench.sweeping.local import cores
from patchbench.training import ModelSpec, Trained, train
from tests.core.sweep.tiny_sweep import (
    EVALUATION,
    QUICK,
    TASK,
    checkpoints,
    content,
    run,
    sweep_of,
)

GOOD, GRID = run(), run("b-s1", seed=1, lr="auto", lr_grid=[1e-3, 1e-2])
BAD = run("bad-s0", lr=1e30, clip=0.0, steps=40)
CONFIG = sweep_of(GOOD, BAD, GRID)


class Inline:
    """Does the jobs in this process; what all other executors are held against."""

    device, threads, slots = "cpu", 1, 1

    def __init__(self):
        self.done = []

    def run(self, jobs):
        for job in jobs:
            self.done.append(job.run.name)
            yield attempt(job)


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    return sweep(CONFIG, out=tmp_path_factory.mktemp("inline") / "s", executor=Inline())


def test_a_run_is_the_training_that_it_names(inline, tmp_path):
    import patchbench as pb

    trained = train(
        ModelSpec(arch="delta_net", width=16),
        pb.load_task("ar", seed=0, **TASK),
        out=tmp_path / "alone",
        device="cpu",
        name="a-s0",
        evaluation=EVALUATION,
        **QUICK,
    )
    assert content(trained.path) == content(inline.folder.run("a-s0"))


def test_components_that_a_model_lacks_are_left_out(tmp_path):
    config = sweep_of(run("a-s0", arch="attention"))
    swept = sweep(config, out=tmp_path / "s", executor=Inline())
    assert swept.result("a-s0").config["components"] == ["block_input"]


def test_a_failed_run_stops_no_other_and_is_told(inline):
    assert inline.finished == ["a-s0", "b-s1"]
    assert list(inline.failed) == ["bad-s0"]
    assert "NaN" in inline.failed["bad-s0"]
    told = (inline.folder.path / "failures" / "bad-s0.txt").read_text()
    assert told == inline.failed["bad-s0"] + "\n"


def test_the_rate_is_chosen_on_dev_and_test_is_looked_at_once(inline, tmp_path, monkeypatch):
    trained = Trained.load(inline.folder.run("b-s1"))
    best = min(trained.grid, key=lambda line: line["dev_loss"])
    assert trained.rate == best["rate"]
    assert len(trained.grid) == 2
    splits = []
    from patchbench.tasks.base import Task

    real = Task.dataset
    monkeypatch.setattr(
        Task, "dataset", lambda self, split, n=None: (splits.append(split), real(self, split, n))[1]
    )
    sweep(sweep_of(GRID), out=tmp_path / "s", executor=Inline())
    assert splits.count("test") == 1
    assert splits[-1] == "test"


def test_the_result_names_the_run_and_no_folder(inline):
    result = inline.result("a-s0")
    assert result.summary["model"]["name"] == "a-s0"
    assert str(inline.folder.path) not in json.dumps(result.provenance)


def test_local_workers_give_the_same_bits(inline, tmp_path):
    config = sweep_of(GOOD, BAD, GRID)
    swept = sweep(config, out=tmp_path / "s", executor=LocalExecutor(workers=2, device="cpu"))
    assert swept.failed == inline.failed
    for name in ("a-s0", "b-s1"):
        assert content(swept.folder.run(name)) == content(inline.folder.run(name))


def test_what_is_finished_is_skipped_and_what_failed_is_tried_again(inline, tmp_path):
    first = Inline()
    sweep(CONFIG, out=tmp_path / "s", executor=first)
    again = Inline()
    swept = sweep(CONFIG, out=tmp_path / "s", executor=again)
    assert (first.done, again.done) == (["a-s0", "bad-s0", "b-s1"], ["bad-s0"])
    assert swept.skipped == ("a-s0", "b-s1")
    # The reason is gone once it works.
    (tmp_path / "s" / "sweep.json").unlink()
    (tmp_path / "s" / "runs" / "bad-s0").rename(tmp_path / "old")
    folder = SweepFolder(path=tmp_path / "s", runs={})
    folder.record(Outcome(name="bad-s0"))
    assert not (tmp_path / "s" / "failures").exists()


def test_what_a_kill_left_of_a_finished_run_goes_with_the_next_call(tmp_path):
    out = tmp_path / "s"
    sweep(sweep_of(GOOD), out=out, executor=Inline())
    (out / "runs" / "a-s0" / "work").mkdir()
    SweepFolder(path=out, runs={}).record(Outcome(name="a-s0", error="ended by SIGKILL"))
    again = Inline()
    swept = sweep(sweep_of(GOOD), out=out, executor=again)
    assert (again.done, swept.skipped) == ([], ("a-s0",))
    assert sorted(os.listdir(out)) == ["runs", "sweep.json"]
    assert not (out / "runs" / "a-s0" / "work").exists()


def test_a_sweep_may_grow_but_not_change(inline, tmp_path):
    out = tmp_path / "s"
    sweep(sweep_of(GOOD), out=out, executor=Inline())
    grown = Inline()
    sweep(sweep_of(GRID), out=out, executor=grown)
    assert grown.done == ["b-s1"]
    assert set(json.loads((out / "sweep.json").read_text())["runs"]) == {"a-s0", "b-s1"}
    before = sorted(out.rglob("*"))
    with pytest.raises(UserError, match=r"run a-s0 with other settings \(training.steps: 8 → 9\)"):
        sweep(sweep_of(run(steps=9)), out=out, executor=Inline())
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda out: out.write_text(""), "is a file"),
        (lambda out: (out.mkdir(), (out / "x").write_text("")), "is no sweep"),
        (lambda out: (out.mkdir(), (out / "sweep.json").write_text("{")), "is damaged"),
        (lambda out: (out.mkdir(), (out / "sweep.json").write_text("[]")), "is damaged"),
        (
            lambda out: (out.mkdir(), (out / "sweep.json").write_text('{"schema": 1}')),
            "damaged|another version",
        ),
    ],
    ids=["a file", "something else", "cut off", "a list", "another schema"],
)
def test_a_folder_that_holds_something_else_is_refused(tmp_path, make, says):
    make(tmp_path / "s")
    with pytest.raises(UserError, match=says):
        sweep(sweep_of(GOOD), out=tmp_path / "s", executor=Inline())


def test_a_name_that_is_too_long_is_told(tmp_path):
    with pytest.raises(UserError, match="File name too long"):
        sweep(sweep_of(GOOD), out=tmp_path / ("s" * 256), executor=Inline())


def test_a_run_that_cannot_be_is_told_before_any_begins(tmp_path):
    executor = Inline()
    with pytest.raises(UserError, match="mambo"):
        sweep(sweep_of(GOOD, run("c-s0", arch="mambo")), out=tmp_path / "s", executor=executor)
    assert executor.done == []
    assert not (tmp_path / "s").exists()


def test_two_sweeps_in_one_folder_are_refused(tmp_path):
    class Nested(Inline):
        def run(self, jobs):
            with pytest.raises(UserError, match="another process is writing"):
                sweep(sweep_of(GOOD), out=tmp_path / "s", executor=Inline())
            yield from super().run(jobs)

    assert sweep(sweep_of(GOOD), out=tmp_path / "s", executor=Nested()).finished == ["a-s0"]


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path):
    job = Job(run=GOOD, folder=str(tmp_path / "s/runs/a"), root=str(tmp_path / "s"))
    outcome = attempt(Job.from_json(job.to_json()))
    assert outcome.error is not None
    assert "shared disk" in outcome.error
    assert not (tmp_path / "s").exists()


def children(pid):
    """Return the processes that a process started, by /proc."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(entry))
    return found


def test_a_worker_that_is_killed_costs_no_more_than_steps(inline, tmp_path):
    long = run("long-s0", steps=120, log_every=10)
    whole = sweep(sweep_of(long), out=tmp_path / "whole", executor=Inline())
    out, killed, stop = tmp_path / "s", [], threading.Event()

    def kill_at_a_checkpoint():
        while not stop.is_set():
            if checkpoints(out) and not killed:
                killed.extend(children(os.getpid()))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    before = children(os.getpid())
    watch = threading.Thread(target=kill_at_a_checkpoint)
    watch.start()
    try:
        swept = sweep(sweep_of(long), out=out, executor=LocalExecutor(workers=1, device="cpu"))
    finally:
        stop.set()
        watch.join()
    assert before == []
    assert len(killed) == 1
    assert swept.failed == {}
    assert content(swept.folder.run("long-s0")) == content(whole.folder.run("long-s0"))
    assert children(os.getpid()) == []


def test_a_worker_that_dies_again_and_again_is_a_failed_run(tmp_path, monkeypatch):
    # A library that cannot be loaded ends each worker at once.
    monkeypatch.setenv("PYTHONSTARTUP", "")
    monkeypatch.setattr(
        "patchbench.sweeping.local._PROGRAM",
        "import sys; print('no such library', file=sys.stderr); sys.exit(3)",
    )
    swept = sweep(sweep_of(GOOD, GRID), out=tmp_path / "s", executor=LocalExecutor(workers=2))
    assert set(swept.failed) == {"a-s0", "b-s1"}
    assert swept.failed["a-s0"] == "its process ended with code 3"
    told = (tmp_path / "s" / "failures" / "a-s0.txt").read_text()
    assert "no such library" in told


def test_numbers_below_one_are_refused():
    for name in ("workers", "threads", "runs_per_gpu"):
        with pytest.raises(UserError, match="at least 1"):
            LocalExecutor(**{name: 0})


def test_workers_fit_the_cores_and_the_gpus(monkeypatch):
    assert LocalExecutor(device="cpu").slots == cores() >= 1
    monkeypatch.setattr("patchbench.sweeping.local.cores", lambda: 12)
    assert LocalExecutor(device="cpu", threads=5).slots == 2
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    shared = LocalExecutor(runs_per_gpu=3)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in shared._places] == ["4", "6"] * 3
    assert LocalExecutor(device="cpu").slots == 12
    assert LocalExecutor(workers=1, runs_per_gpu=3).slots == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [place["CUDA_VISIBLE_DEVICES"] for place in LocalExecutor()._places] == ["0", "1"]
