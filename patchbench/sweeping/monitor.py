"""How far a sweep has come, read from the disk: the same for runs of any process or machine.

Use:

    monitor = Monitor(folder, runs, slots=lambda: 2)
    monitor.look()
    monitor.states["mamba-s0"].done, monitor.speed, monitor.seconds_left()

A run's progress is its newest whole checkpoint; it is at work once anything in its folder is new
since the monitor was made, so that one which was killed before waits for its turn. Time left is the
steps that remain over the speed at which the group's runs went since this sweep began; training may
stop earlier.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchbench.recipes import RunConfig
from patchbench.sweeping.folder import FAILURES, SweepFolder
from patchbench.training.checkpoints import CHECKPOINTS, COMPLETE, step_of

WAITING, RUNNING, FINISHED, FAILED = "waiting", "running", "finished", "failed"
_STATE = "trainer_state.json"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """One run as it is now.

    Attributes:
        status: "waiting", "running", "finished" or "failed".
        done: optimiser steps, over all learning rates.
        total: that it takes if nothing stops it early.
        dev_accuracy: the last that it reached.
    """

    status: str
    done: int
    total: int
    dev_accuracy: float | None


class Monitor:
    """Watches the folders of a sweep.

    Args:
        folder: of the sweep.
        runs: to watch.
        slots: returns how many go on at a time; asked anew each time, since a cluster is known
            only when it has been reached, and may grow.
    """

    def __init__(
        self, folder: SweepFolder, runs: Sequence[RunConfig], *, slots: Callable[[], int]
    ) -> None:
        self.folder, self.runs, self.slots = folder, list(runs), slots
        self._left_behind = {run.name: _trace(folder.run(run.name)) for run in self.runs}
        self._rates = {run.name: run.train_config().rates for run in self.runs}
        self._steps = {run.name: run.train_config().total_steps for run in self.runs}
        self._began = time.monotonic()
        # When a run was first seen at work, and at which step.
        self._first: dict[str, tuple[float, int]] = {}
        # Steps and seconds of each group's runs since then.
        self._paces: dict[str, tuple[int, float]] = {}
        self.states: dict[str, RunState] = {}
        self.look()
        self._before = {name: state.done for name, state in self.states.items()}

    def look(self) -> None:
        """Read the disk."""
        now = time.monotonic()
        for run in self.runs:
            old = self.states.get(run.name)
            if old is not None and old.status == FINISHED:
                continue
            self.states[run.name] = state = self._state(run)
            if state.status == RUNNING and run.name not in self._first:
                self._first[run.name] = now, state.done
        self._paces = {}
        for run in self.runs:
            if run.name in self._first and (state := self.states[run.name]).status == RUNNING:
                since, at = self._first[run.name]
                steps, seconds = self._paces.get(run.group, (0, 0.0))
                self._paces[run.group] = steps + state.done - at, seconds + now - since

    @property
    def seconds(self) -> float:
        """Since this sweep began."""
        return time.monotonic() - self._began

    @property
    def speed(self) -> float:
        """Optimiser steps per second since this sweep began, of all runs together."""
        done = sum(state.done - self._before[name] for name, state in self.states.items())
        return done / max(self.seconds, 1e-9)

    def count(self, status: str) -> int:
        """Return how many runs are in a state."""
        return sum(state.status == status for state in self.states.values())

    def seconds_left(self) -> float | None:
        """Return how long the rest takes at the speed so far; None before anything is known."""
        steps = sum(steps for steps, _ in self._paces.values())
        seconds = sum(seconds for _, seconds in self._paces.values())
        if not steps:
            return None
        each = []
        for run in self.runs:
            state = self.states[run.name]
            if state.status in (FINISHED, FAILED):
                continue
            own, took = self._paces.get(run.group, (0, 0.0))
            pace = took / own if own else seconds / steps
            each.append(pace * (state.total - state.done))
        # No run is shared between workers.
        return max(sum(each) / max(1, self.slots()), max(each, default=0.0))

    def _state(self, run: RunConfig) -> RunState:
        place, rates, steps = (
            self.folder.run(run.name),
            self._rates[run.name],
            self._steps[run.name],
        )
        total = steps * len(rates)
        if self.folder.finished(run.name):
            return RunState(status=FINISHED, done=total, total=total, dev_accuracy=None)
        done, accuracy = 0, None
        for number, rate in enumerate(rates):
            checkpoint = _newest(place / "work" / f"lr-{rate!r}")
            if checkpoint is not None:
                # The rates before it are through, even if they stopped early.
                done, accuracy = number * steps + step_of(checkpoint), _dev_accuracy(checkpoint)
        failed = (self.folder.path / FAILURES / f"{run.name}.txt").exists()
        at_work = _trace(place) != self._left_behind[run.name]
        status = FAILED if failed else RUNNING if at_work else WAITING
        return RunState(status=status, done=done, total=total, dev_accuracy=accuracy)


def _trace(place: Path) -> frozenset[tuple[str, int]]:
    """Return what changes in a run's folder when somebody is at work in it."""
    found = set()
    for path in (place, *place.glob("*"), *place.glob(f"work/*/{CHECKPOINTS}")):
        with suppress(OSError):  # it is just being removed
            found.add((str(path), path.stat().st_mtime_ns))
    return frozenset(found)


def _newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is whole, as far as one can see without reading it."""
    found = (folder / CHECKPOINTS).glob("checkpoint-*")
    whole = [path for path in found if (path / COMPLETE).exists()]
    return max(whole, key=step_of, default=None)


def _dev_accuracy(checkpoint: Path) -> float | None:
    try:
        history = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))["log_history"]
        return float(history[-1]["dev_accuracy"])
    except (OSError, ValueError, LookupError, TypeError):  # it is just being removed
        return None
