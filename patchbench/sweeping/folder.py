"""The folder of a sweep: one folder per run, so that what is finished is never done again.

Use:

    folder = SweepFolder.open(out, config)         # refuses other settings under a known name
    with folder.held():                            # one sweep at a time
        folder.fail(outcome); folder.failures()

    sweep.json             the runs that belong to it, with their settings
    runs/NAME/             a training: config, weights, checkpoints until it is done, Result
    failures/NAME.txt      why a run failed; goes when it succeeds

A sweep may grow: more seeds, widths or architectures in the same folder are added to it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError, atomic_write, parse_json
from patchbench.common.differences import differences
from patchbench.common.files import check_writable, explained
from patchbench.common.locks import is_blank, locked
from patchbench.common.temporaries import NEW, clear
from patchbench.recipes import RunConfig, SweepConfig
from patchbench.sweeping.job import SWEEP_FILE, Outcome

if TYPE_CHECKING:
    from patchbench.results import Result

SCHEMA, VERSION = "patchbench/sweep", 1
RUNS, FAILURES = "runs", "failures"
_MOST_DIFFERENCES = 3


@dataclass(frozen=True, kw_only=True)
class SweepFolder:
    """An opened folder.

    Attributes:
        path: the folder.
        runs: what belongs to it, by name.
    """

    path: Path
    runs: Mapping[str, RunConfig]

    @classmethod
    def open(cls, path: str | Path, config: SweepConfig) -> "SweepFolder":
        """Return a folder with these runs and what it had; nothing is written yet.

        Raises:
            UserError: it is none, or has a run of that name with other settings.
        """
        path = Path(path)
        there = read_sweep(path).runs if _is_taken(path) else {}
        for run in config.runs:
            if run.name in there and there[run.name] != run:
                old, new = (_settings(r) for r in (there[run.name], run))
                found = differences(old, new)
                more = len(found) - _MOST_DIFFERENCES
                raise UserError(
                    f"{path} has a run {run.name} with other settings "
                    f"({', '.join(found[:_MOST_DIFFERENCES])}"
                    + (f", and {more} more" if more > 0 else "")
                    + ")",
                    "choose another --out",
                )
        check_writable(path, overwrite=True)
        return cls(path=path, runs={**there, **{run.name: run for run in config.runs}})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, with what belongs to it written down.

        Raises:
            Busy: another sweep is at work there.
        """
        with locked(self.path, self.path):
            with atomic_write(self.path / SWEEP_FILE) as temporary:
                content = {
                    "schema": SCHEMA,
                    "version": VERSION,
                    "runs": {name: run.to_json() for name, run in self.runs.items()},
                }
                temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            yield

    def run(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.path / RUNS / name

    def finished(self, name: str) -> bool:
        """Return whether a run is done; a folder that cannot be read is for the run to explain."""
        from patchbench.training.folder import read_folder

        try:
            return read_folder(self.run(name)).finished
        except UserError:
            return False

    def tidy(self, name: str) -> None:
        """Remove what a finished run does not need, where a killed process left it."""
        from patchbench.training.folder import read_folder

        self.record(Outcome(name=name))
        read_folder(self.run(name)).tidy()

    def result(self, name: str) -> "Result":
        """Return the Result of a finished run."""
        from patchbench.results import Result
        from patchbench.training.folder import RESULT

        return Result.load(self.run(name) / RESULT)

    def record(self, outcome: Outcome) -> None:
        """Keep why a run failed, or forget why it had."""
        file = self.path / FAILURES / f"{outcome.name}.txt"
        with explained(file):
            if outcome.error is None:
                file.unlink(missing_ok=True)
                clear(file, NEW)
                with suppress(OSError):  # it is not there, or holds others
                    file.parent.rmdir()
                return
            file.parent.mkdir(exist_ok=True)
        with atomic_write(file) as temporary:
            text = "\n".join(filter(None, (outcome.error, outcome.trace)))
            temporary.write_text(text.rstrip() + "\n", encoding="utf-8")


def read_sweep(path: str | Path) -> SweepFolder:
    """Return the folder of an earlier sweep.

    Raises:
        UserError: it is none, or it is damaged.
    """
    path = Path(path)
    file = path / SWEEP_FILE
    if not file.is_file():
        raise UserError(f"{path} is no sweep", f"it has no {SWEEP_FILE}: choose another --out")
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA or content["version"] != VERSION:
            raise UserError(f"{file} is of another version of patchbench", "choose another --out")
        runs = {name: RunConfig.from_json(run) for name, run in content["runs"].items()}
        if any(name != run.name for name, run in runs.items()):  # a name is a folder's
            raise ValueError("a run has two names")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{file} is damaged ({type(error).__name__}: {error})", "choose another --out"
        ) from None
    return SweepFolder(path=path, runs=runs)


def _is_taken(path: Path) -> bool:
    if os.path.exists(path) and not os.path.isdir(path):
        raise UserError(f"{path} is a file", "choose another --out")
    return os.path.isdir(path) and not is_blank(path, path / SWEEP_FILE)


def _settings(run: RunConfig) -> dict[str, Any]:
    return {name: value for name, value in run.to_json().items() if name != "estimate"}
