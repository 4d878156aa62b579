"""How far a sweep has come, from made-up folders."""

import json

import pytest

from patchbench.report.sweep import clock, run_table, status_line
from patchbench.sweeping import monitor as monitors
from patchbench.sweeping.folder import SweepFolder
from patchbench.sweeping.monitor import Monitor
from tests.core.sweep.tiny_sweep import run, sweep_of

RATES = [1e-3, 1e-2]
RUNS = (
    run("a-s0", steps=100),
    run("a-s1", steps=100),
    run("b-s0", steps=100, lr="auto", lr_grid=RATES),
    run("c-s0", steps=100),
)


@pytest.fixture
def clock_at(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(monitors.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def folder(tmp_path):
    return SweepFolder.open(tmp_path / "s", sweep_of(*RUNS))


def checkpoint(folder, name, rate, step, accuracy=0.5, whole=True):
    place = folder.run(name) / "work" / f"lr-{rate!r}" / "checkpoints" / f"checkpoint-{step}"
    place.mkdir(parents=True)
    history = [{"step": step, "dev_loss": 1.0, "dev_accuracy": accuracy}]
    (place / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    if whole:
        (place / "complete").write_text("{}")


def finish(folder, name):
    folder.run(name).mkdir(parents=True, exist_ok=True)
    content = {
        "schema": "patchbench/training", "version": 1, "config": {}, "status": "finished",
        "rate": 1e-3, "steps": 60, "stopped": None, "grid": [], "history": [],
    }  # fmt: skip
    (folder.run(name) / "training.json").write_text(json.dumps(content))


def test_speed_and_time_left_are_those_of_the_runs(folder, clock_at):
    monitor = Monitor(folder, RUNS, slots=lambda: 2)
    assert {state.status for state in monitor.states.values()} == {"waiting"}
    assert monitor.seconds_left() is None
    folder.run("a-s0").mkdir(parents=True)
    folder.run("b-s0").mkdir(parents=True)
    monitor.look()
    clock_at[0] = 10.0
    checkpoint(folder, "a-s0", 1e-3, 20, 0.25)
    checkpoint(folder, "a-s0", 1e-3, 40, 0.75, whole=False)
    checkpoint(folder, "b-s0", 1e-3, 50)
    monitor.look()
    state = monitor.states["a-s0"]
    assert (state.status, state.done, state.total, state.dev_accuracy) == ("running", 20, 100, 0.25)
    assert monitor.speed == pytest.approx(7.0)
    # a: 2 steps/s, 80 + 100 left; b: 5 steps/s, 150 left; c as all together: 70 steps in 20 s.
    each = (40.0, 50.0, 30.0, 100 / 3.5)
    assert monitor.seconds_left() == pytest.approx(sum(each) / 2)


def test_one_long_run_is_not_shared_between_workers(folder, clock_at):
    finish(folder, "a-s1")
    finish(folder, "c-s0")
    finish(folder, "b-s0")
    monitor = Monitor(folder, RUNS, slots=lambda: 4)
    folder.run("a-s0").mkdir(parents=True)
    monitor.look()
    clock_at[0] = 10.0
    checkpoint(folder, "a-s0", 1e-3, 20)
    monitor.look()
    assert monitor.seconds_left() == pytest.approx(40.0)
    assert monitor.count("finished") == 3


def test_a_rate_that_is_begun_means_that_those_before_are_through(folder, clock_at):
    checkpoint(folder, "b-s0", 1e-3, 50)  # stopped early
    checkpoint(folder, "b-s0", 1e-2, 10, 0.9)
    monitor = Monitor(folder, RUNS, slots=lambda: 1)
    state = monitor.states["b-s0"]
    assert (state.done, state.total, state.dev_accuracy) == (110, 200, 0.9)
    # What was there before this sweep is none of its speed.
    clock_at[0] = 1.0
    monitor.look()
    assert monitor.speed == 0


def test_failures_and_ends_are_seen(folder, clock_at):
    monitor = Monitor(folder, RUNS, slots=lambda: 1)
    finish(folder, "a-s0")
    (folder.path / "failures").mkdir(parents=True)
    (folder.path / "failures" / "a-s1.txt").write_text("NaN")
    monitor.look()
    assert [monitor.states[r.name].status for r in RUNS[:2]] == ["finished", "failed"]
    assert status_line(monitor).startswith("1 of 4 finished, 1 failed, ")


def test_the_table_shows_what_is_at_work_first(folder, clock_at):
    monitor = Monitor(folder, RUNS, slots=lambda: 1)
    checkpoint(folder, "c-s0", 1e-3, 10, 0.125)
    monitor.look()
    table = run_table(monitor, 2)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["c-s0", "a-s0", "and 2 more"]
    assert cells[1][0] == "10 of 100"
    assert cells[3][0] == "0.125"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00:00"), (3723.4, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_what_a_kill_left_waits_until_somebody_is_at_work_in_it(folder, clock_at):
    checkpoint(folder, "a-s0", 1e-3, 40)
    checkpoint(folder, "a-s1", 1e-3, 40)
    room = [1]
    monitor = Monitor(folder, RUNS[:2], slots=lambda: room[0])
    clock_at[0] = 1000.0  # a-s1 was in the queue all the time
    monitor.look()
    assert {state.status for state in monitor.states.values()} == {"waiting"}
    (folder.run("a-s0") / ".lock").touch()
    monitor.look()
    assert [state.status for state in monitor.states.values()] == ["running", "waiting"]
    assert [state.done for state in monitor.states.values()] == [40, 40]
    clock_at[0] = 1010.0
    checkpoint(folder, "a-s0", 1e-3, 60)
    monitor.look()
    # 2 steps/s; 40 steps of the one and 60 of the other are left.
    assert monitor.seconds_left() == pytest.approx(50.0)
    room[0] = 2
    assert monitor.seconds_left() == pytest.approx(30.0)
