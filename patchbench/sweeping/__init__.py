"""Sweeps: many runs, on the cores of this machine or on a Ray cluster, that survive being killed.

Use:

    config = RECIPES["paper_ar"](scale="mini")
    swept = sweep(config, out="runs/ar", executor=LocalExecutor(workers=2))
    swept.failed                            # {"mamba-w64-s1": "the training loss is NaN …"}
    swept.result("attention-w64-s0")        # a Result

The same call again skips what is finished, goes on with what was killed and tries again what
failed. Of several learning rates a run tries them all and keeps the best on dev; test is looked at
once, at its end. What a run gives does not depend on the executor, nor on the number of workers.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from patchbench.common import UserError
from patchbench.recipes import RunConfig, SweepConfig
from patchbench.sweeping.folder import SweepFolder
from patchbench.sweeping.job import Job, Outcome
from patchbench.sweeping.local import LocalExecutor
from patchbench.sweeping.monitor import Monitor

if TYPE_CHECKING:
    from patchbench.results import Result

__all__ = ["Executor", "LocalExecutor", "Swept", "sweep"]


class Executor(Protocol):
    """What does jobs.

    Attributes:
        device: "auto" or "cpu".
        threads: of each run.
    """

    device: str
    threads: int

    @property
    def slots(self) -> int:
        """How many runs go on at a time."""
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Yield what became of each job, as they end; closing the iterator ends the rest."""
        ...


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep left.

    Attributes:
        folder: of the sweep.
        runs: that were asked for.
        skipped: names of those that were finished before.
        done: what became of the others.
    """

    folder: SweepFolder
    runs: tuple[RunConfig, ...]
    skipped: tuple[str, ...]
    done: dict[str, Outcome] = field(default_factory=dict)

    @property
    def failed(self) -> dict[str, str]:
        """Why, by the name of the run."""
        return {name: o.error for name, o in self.done.items() if o.error is not None}

    @property
    def finished(self) -> list[str]:
        """The names of the runs that have a Result."""
        return [run.name for run in self.runs if run.name not in self.failed]

    def result(self, name: str) -> "Result":
        """Return the Result of a run that is finished."""
        return self.folder.result(name)


def sweep(
    config: SweepConfig,
    *,
    out: str | Path,
    executor: Executor,
    command: str | None = None,
    show: Callable[[Monitor], AbstractContextManager[object]] | None = None,
    on_done: Callable[[SweepFolder, Outcome], None] | None = None,
) -> Swept:
    """Do all runs that are not finished yet.

    Args:
        config: what a recipe returned.
        out: the folder.
        executor: what does them.
        command: the command line, for the provenance.
        show: makes a context in which what the monitor sees is shown.
        on_done: called with the folder and what became of a run, after each.

    Raises:
        UserError: a run cannot be, or the folder holds something else; nothing was done then.
    """
    # Seeds of one group are alike in all that can be wrong.
    for group in config.groups().values():
        group[0].check()
    folder = SweepFolder.open(out, config)
    with folder.held():
        waiting = [run for run in config.runs if not folder.finished(run.name)]
        names = {run.name for run in waiting}
        skipped = tuple(run.name for run in config.runs if run.name not in names)
        swept = Swept(folder=folder, runs=config.runs, skipped=skipped)
        for name in skipped:
            folder.tidy(name)
        for run in waiting:
            folder.record(Outcome(name=run.name))  # what had failed is tried again
        jobs = [
            Job(
                run=run,
                folder=str(folder.run(run.name)),
                root=str(folder.path),
                device=executor.device,
                threads=executor.threads,
                command=command,
            )
            for run in waiting
        ]
        monitor = Monitor(folder, config.runs, slots=lambda: executor.slots)
        with (show or nullcontext)(monitor), closing(_run(executor, jobs)) as outcomes:
            for outcome in outcomes:
                if outcome.error is None and not folder.finished(outcome.name):
                    raise UserError(
                        f"{folder.run(outcome.name)} was written where it is not seen from here",
                        "put --out on a shared disk",
                    )
                swept.done[outcome.name] = outcome
                folder.record(outcome)
                if on_done is not None:
                    on_done(folder, outcome)
    return swept


def _run(executor: Executor, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
    """Yield the outcomes; without jobs nothing is started."""
    if jobs:
        yield from executor.run(jobs)
