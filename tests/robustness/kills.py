"""Ends commands with `kill -9` at random moments, and looks at what they leave.

Use:

    python -m tests.robustness.kills --kills 50                   # of each command
    python -m tests.robustness.kills train sweep --kills 20 --seed 1

Half of the kills come at a random time of a run, the others before a random change to the disk (a
file opened for writing, renamed, removed, a folder made). After each: every file that a reader
would take for real can be read; the same command again (evaluate with --resume) ends well, or says
that the outcome is there; what it leaves is that of a run that was never killed, bit for bit in
weights and rows; and nothing else is left behind.
"""

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors.numpy import load_file

from patchbench.finding import load_results
from patchbench.results import Result
from patchbench.training import Trained
from patchbench.training.checkpoints import COMPLETE
from tests.robustness.warm import changes, ended, import_all, modules, start

TINY = ["num_pairs=2", "num_keys=4", "num_values=4"]
SETTINGS = {
    "steps": 12, "log-every": 2, "dynamics-every": 4, "dynamics-n": 4, "dev-n": 16, "test-n": 16,
    "train-n": 128, "batch-size": 8, "warmup": 0.1,
}  # fmt: skip


def _of_training(folder: Path) -> dict[str, Any]:
    trained = Trained.load(folder)
    return {
        "weights": _bits(folder / "model.safetensors"),
        "dynamics": (folder / "dynamics.parquet").read_bytes(),
        "history": trained.history,
        "result": _of_result(folder / "result"),
    }


def _of_result(folder: Path) -> dict[str, Any]:
    result = Result.load(folder)
    return {"rows": result.rows.to_pylist(), "runs": result.summary["runs"]}


def _of_sweep(folder: Path) -> dict[str, Any]:
    return {place.name: _of_training(place) for place in sorted((folder / "runs").iterdir())}


def _of_export(folder: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _bits(file: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in load_file(file).items()}


@dataclass(frozen=True)
class Command:
    """A command line without its `--out`, and what its folder holds that must not differ."""

    arguments: list[str]
    content: Callable[[Path], dict[str, Any]]
    again: tuple[str, ...] = ()
    workers: bool = False


COMMANDS = {
    "train": Command(
        ["train", "--arch", "delta_net", "--width", "16", "--task", "ar", "--device", "cpu"]
        + [word for pair in TINY for word in ("--set", pair)]
        + [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))],
        _of_training,
    ),
    "evaluate": Command(
        ["evaluate", "--model", "patchbench/ar-attention", "--n", "48", "--batch-size", "4"],
        _of_result,
        again=("--resume",),
    ),
    "sweep": Command(
        ["sweep", "paper_ar", "--arch", "delta_net", "--widths", "16", "--lrs", "1e-3"]
        + ["--seeds", "0,1", "--workers", "1", "--device", "cpu"]
        + [word for pair in TINY for word in ("--set", pair)]
        + [
            word
            for name, value in SETTINGS.items()
            for word in ("--train", f"{name.replace('-', '_')}={value}")
        ],
        _of_sweep,
        workers=True,
    ),
    "export": Command(["tasks", "export", "ar/tiny", "--n", "2000"], _of_export),
}


def unreadable(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the files that a reader takes for real."""
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        # Hidden: being written. A checkpoint without its seal is none.
        unsealed = (
            path.parent.name.startswith("checkpoint-") and not (path.parent / COMPLETE).exists()
        )
        if unsealed or not path.is_file() or any(part.startswith(".") for part in place.parts):
            continue
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".parquet":
                pq.read_table(path)
            elif path.suffix == ".safetensors":
                load_file(path)
            elif path.suffix == ".html" and "</html>" not in path.read_text(encoding="utf-8"):
                raise ValueError("cut off")
        except Exception as error:
            yield f"{place} cannot be read ({type(error).__name__}: {error})"


def names(folder: Path) -> set[str]:
    """Return everything below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


class Trials:
    """The kills of one command."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, self.command, self.folder = name, COMMANDS[name], folder
        self.random = random.Random(f"{name} {seed}")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        folder.mkdir()
        began = time.perf_counter()
        code, said = self._run("again", *self._counting("again"))
        self.seconds = time.perf_counter() - began
        assert code == 0, said
        self.whole = self._place("again")
        self.content = self.command.content(self.whole / "out")
        self.names = names(self.whole)
        told = [folder / f"again.{who}" for who in ("main", "worker")]
        self.changes = [file.stat().st_size if file.exists() else 0 for file in told]

    def _counting(self, trial: str) -> tuple[Callable[[], None], Callable[[], None]]:
        main, worker = (self.folder / f"{trial}.{who}" for who in ("main", "worker"))
        return changes(None, main), changes(None, worker)

    def _place(self, trial: str) -> Path:
        place = self.folder / trial
        place.mkdir(exist_ok=True)
        return place

    def _start(self, trial: str, before: Any = None, in_worker: Any = None, more: Any = ()) -> int:
        out = ["--out", str(self._place(trial) / "out")]
        return start(
            [*self.command.arguments, *more, *out],
            log=self.folder / f"{trial}.log",
            cache=self.folder / f"{trial}.cache",
            before=before,
            in_worker=in_worker,
        )

    def _run(self, trial: str, *more: Any) -> tuple[int, str]:
        log = self.folder / f"{trial}.log"
        log.unlink(missing_ok=True)
        code = ended(self._start(trial, *more))
        return code, log.read_text(encoding="utf-8", errors="replace")

    def _killed(self, trial: str) -> bool:
        """Kill a run; return whether it was still at work."""
        by_change = self.random.random() < 0.5
        if by_change:
            worker = self.command.workers and self.random.random() < 0.7
            kill = changes(self.random.randrange(self.changes[worker]))
            code = ended(self._start(trial, None, kill) if worker else self._start(trial, kill))
            # Its worker was killed again and again: the sweep says so, and goes on.
            killed = code == (1 if worker else -signal.SIGKILL)
        else:
            pid = self._start(trial)
            time.sleep(self.random.uniform(0, self.seconds))
            os.kill(pid, signal.SIGKILL)
            killed = ended(pid) == -signal.SIGKILL
        self.counts["by change" if by_change else "by time"] += killed
        return killed

    def trial(self, number: int) -> None:
        """Kill a run, look, run it again, and look again."""
        trial = f"k{number}"
        if not self._killed(trial):
            self.counts["ended before"] += 1
            self._forget(trial)
            return
        place = self._place(trial)
        self.counts["killed"] += 1
        problems = list(unreadable(place))
        left = names(place)
        if any(place.rglob("result.json")):
            try:
                load_results([str(place)])
            except ValueError as error:
                if "holds no Result" not in str(error):
                    problems.append(f"what is found cannot be loaded ({error})")
        self.counts["nothing on disk"] += not left
        hidden = [name for name in left if "/." in f"/{name}" and not name.endswith(".lock")]
        self.counts["temporaries left"] += bool(hidden)
        code, said = self._run(trial, None, None, self.command.again)
        there = code == 2 and " exists" in said
        self.counts["outcome there"] += there
        if code and not there:
            problems.append(f"again: code {code}: {said[-600:]}")
        elif self.command.content(place / "out") != self.content:
            problems.append("the outcome is another one")
        else:
            surplus, missing = names(place) - self.names, self.names - names(place)
            if surplus or missing:
                problems.append(f"left over {sorted(surplus)}, missing {sorted(missing)}")
        self.problems += [f"{self.name} {trial}: {problem}" for problem in problems]
        if not problems:
            self._forget(trial)

    def _forget(self, trial: str) -> None:
        for path in self.folder.glob(f"{trial}*"):
            if path.name.partition(".")[0] == trial:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def main() -> int:
    """Run the trials, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help=", ".join(COMMANDS))
    parser.add_argument("--kills", type=int, default=50, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    problems = []
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    for name in {"train" if COMMANDS[name].workers else name for name in asked.commands}:
        # What a run imports is imported by all others then: it is not what is killed.
        first = [*COMMANDS[name].arguments, "--out", str(folder / "first" / name)]
        log, told = folder / f"{name}.log", folder / f"{name}.modules"
        assert ended(start(first, log=log, cache=folder / "cache", before=modules(told))) == 0
        import_all(told)
    for name in asked.commands:
        began = time.perf_counter()
        trials = Trials(name, folder / name, asked.seed)
        number = 0
        while trials.counts["killed"] < asked.kills:
            trials.trial(number)
            number += 1
        problems += trials.problems
        counts = ", ".join(f"{count} {what}" for what, count in trials.counts.items())
        print(
            f"{name}: a run takes {trials.seconds:.1f} s and changes the disk {trials.changes} "
            f"times; {counts}; {len(trials.problems)} problems "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
    for problem in problems:
        print(problem)
    print(
        f"{len(problems)} problems" + (f"; what is left of them is in {folder}" if problems else "")
    )
    if not problems:
        shutil.rmtree(folder)
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
