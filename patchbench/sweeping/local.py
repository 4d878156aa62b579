"""Runs side by side in processes of this machine: as many as it has cores, or its GPUs have room.

Use:

    executor = LocalExecutor(workers=4)
    for outcome in executor.run(jobs):
        ...

Each worker has its threads pinned, so that a run's numbers do not depend on how many there are. A
worker that is killed (by the system, for memory) costs its run nothing but the steps since the last
checkpoint: another goes on with it, `RETRIES` times. When the sweep ends, in whatever way, so do
its workers.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from patchbench.common import UserError
from patchbench.sweeping.job import RETRIES, Job, Outcome, pinned
from patchbench.sweeping.worker import GRACE

_PROGRAM = "from patchbench.sweeping.worker import main; main()"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalExecutor:
    """Processes of this machine.

    Args:
        workers: how many; one per core, or `runs_per_gpu` per GPU, when None.
        threads: of each.
        device: "auto" (the GPUs, if there are any) or "cpu".
        runs_per_gpu: how many share one GPU.

    Raises:
        UserError: a number below 1.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        threads: int = 1,
        device: str = "auto",
        runs_per_gpu: int = 1,
    ) -> None:
        check_counts(workers=workers, threads=threads, runs_per_gpu=runs_per_gpu)
        gpus = [] if device == "cpu" else _gpus()
        if gpus:
            places: list[dict[str, str]] = [
                {_VISIBLE: gpu} for _ in range(runs_per_gpu) for gpu in gpus
            ]
        else:
            places = [{}] * max(1, cores() // threads)
        if workers is not None:
            # More than there is room for, if that is asked for.
            places = [places[i % len(places)] for i in range(workers)]
        self._places = places
        self.threads, self.device = threads, device

    @property
    def slots(self) -> int:
        """How many runs go on at a time."""
        return len(self._places)

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Yield what became of each job, as they end; the workers end with the iterator."""
        self._waiting = deque((job, 0) for job in jobs)
        self._workers: list[_Worker] = []
        try:
            with selectors.DefaultSelector() as selector:
                for place in self._places[: len(jobs)]:
                    self._start(place, selector)
                while selector.get_map():
                    for key, _ in selector.select():
                        outcome = self._heard(key.data, selector)
                        if outcome is not None:
                            yield outcome
        finally:
            for worker in self._workers:
                worker.dismiss()
            for worker in self._workers:
                worker.end()

    def _start(self, place: Mapping[str, str], selector: selectors.BaseSelector) -> None:
        """Start a worker at what waits first."""
        worker = _Worker(place, self.threads)
        self._workers.append(worker)
        worker.take(*self._waiting.popleft())
        selector.register(worker.output, selectors.EVENT_READ, worker)

    def _heard(self, worker: "_Worker", selector: selectors.BaseSelector) -> Outcome | None:
        """Return the outcome that a worker told, if it told one; see that work goes on."""
        outcome = worker.outcome()
        if outcome is not None and self._waiting:
            worker.take(*self._waiting.popleft())
            return outcome
        selector.unregister(worker.output)
        if outcome is not None:
            worker.dismiss()
            return outcome
        self._workers.remove(worker)
        reason = worker.died()
        if worker.tries < RETRIES:
            self._waiting.appendleft((worker.job, worker.tries + 1))
        else:
            outcome = Outcome(name=worker.job.run.name, error=reason, trace=worker.tail())
        if self._waiting:
            self._start(worker.place, selector)
        return outcome


class _Worker:
    """A process, and the job that it is at."""

    job: Job
    tries: int

    def __init__(self, place: Mapping[str, str], threads: int) -> None:
        self.place = place
        # It lives as long as the process, so no `with` can close it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            # -P: what lies in the working directory is not imported in place of what is installed.
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **pinned(threads), **place},
            # Ctrl-C is for the sweep, which then tells its workers.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout

    def take(self, job: Job, tries: int) -> None:
        """Begin a job."""
        self.job, self.tries = job, tries
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died; the end of its output tells
            self._process.stdin.write(job.to_json().encode() + b"\n")
            self._process.stdin.flush()

    def outcome(self) -> Outcome | None:
        """Return what became of the job; None when the worker is no more."""
        line = self.output.readline()
        return Outcome.from_json(line.decode()) if line.endswith(b"\n") else None

    def died(self) -> str:
        """Return in words how."""
        self.end()
        code = self._process.returncode
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (often for lack of memory)" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with code {code}"

    def tail(self) -> str:
        """Return the last that it wrote to stderr."""
        self._log.seek(0)
        return self._log.read()[-4000:].decode(errors="replace")

    def dismiss(self) -> None:
        """Tell it to end."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Wait until it has ended; it has a while to clear up."""
        self.dismiss()
        try:
            self._process.wait(timeout=GRACE + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_counts(**counts: int | None) -> None:
    """Raise `UserError` for a number below 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"--{name.replace('_', '-')} {count}", "at least 1 is needed")


def cores() -> int:
    """Return how many CPU cores this process may use, by affinity and by cgroup."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        count = os.cpu_count() or 1
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _gpus() -> list[str]:
    """Return the GPUs as `CUDA_VISIBLE_DEVICES` names them."""
    import torch

    visible = os.environ.get(_VISIBLE)
    names = [name.strip() for name in visible.split(",")] if visible else []
    count = torch.cuda.device_count()
    return names[:count] if len(names) >= count else [str(i) for i in range(count)]
