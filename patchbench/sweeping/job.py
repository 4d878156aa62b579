"""One run, done in whatever process or machine it was given to.

Use:

    job = Job(run=run, folder="out/runs/mamba-s0", root="out")
    outcome = attempt(Job.from_json(job.to_json()))          # never raises but for an interrupt
    outcome.error                                            # None, or one line

Jobs and outcomes travel as JSON: nothing is pickled. All that a run leaves is in its folder, and
depends on nothing but its config and the number of threads.
"""

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchbench.common import UserError
from patchbench.common.locks import Busy
from patchbench.recipes import RunConfig

# How often a run is begun once more whose process or machine was lost.
RETRIES = 2
# Seconds that the process of a lost machine may still hold a run's lock.
PATIENCE = 60.0
SWEEP_FILE = "sweep.json"
# One thread each, before any library counts the cores.
_POOLS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is given.

    Attributes:
        run: what to do.
        folder: of the run.
        root: of the sweep, which the worker has to see as well.
        device: "auto" or "cpu".
        threads: of the CPU.
        command: the sweep's command line, for the provenance.
    """

    run: RunConfig
    folder: str
    root: str
    device: str = "auto"
    threads: int = 1
    command: str | None = None

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """Undo `to_json`."""
        content = json.loads(text)
        return cls(**{**content, "run": RunConfig.from_json(content["run"])})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job.

    Attributes:
        name: of the run.
        error: why it failed, in one line; None when it is finished.
        trace: where, if it was no mistake in what was asked.
        seconds: that it took this time.
    """

    name: str
    error: str | None = None
    trace: str = ""
    seconds: float = 0.0

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Outcome":
        """Undo `to_json`."""
        return cls(**json.loads(text))


def pinned(threads: int) -> dict[str, str]:
    """Return the environment variables that keep a process to so many threads."""
    return {name: str(threads) for name in _POOLS} | {"TOKENIZERS_PARALLELISM": "false"}


def attempt(job: Job) -> Outcome:
    """Do a job, or go on with it, and return what became of it."""
    started, error, trace = time.perf_counter(), None, ""
    try:
        execute(job)
    except UserError as mistake:
        error = str(mistake)
    except Exception as bug:  # the other runs go on
        error, trace = f"{type(bug).__name__}: {bug}", traceback.format_exc()
    return Outcome(
        name=job.run.name,
        error=None if error is None else " ".join(error.split()),
        trace=trace,
        seconds=round(time.perf_counter() - started, 3),
    )


def execute(job: Job) -> None:
    """Train and evaluate.

    Raises:
        UserError: something does not exist or does not fit, or the training diverged.
    """
    import torch

    from patchbench.adapters import hook_map_for
    from patchbench.training import train

    if not (Path(job.root) / SWEEP_FILE).is_file():
        raise UserError(
            f"{job.root} is not seen where the run is to go on", "put --out on a shared disk"
        )
    torch.set_num_threads(job.threads)
    run = job.run
    task = run.load_task()
    model = run.spec().build(task, seed=int(run.training.get("seed", 0)))
    evaluation: dict[str, Any] = dict(run.evaluation)
    if "components" in evaluation:
        there = {component for _, component in hook_map_for(model).points}
        evaluation["components"] = [c for c in evaluation["components"] if c in there]
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            train(
                model,
                task,
                out=job.folder,
                device=job.device,
                command=job.command,
                name=run.name,
                evaluation=evaluation,
                **run.training,
            )
            return
        except Busy:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
