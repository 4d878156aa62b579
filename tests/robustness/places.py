"""Where a command line is run, and how what came of it is judged; for `conditions.py`.

Use:

    place, findings = Place(folder, finished), Findings()
    code, said = place.run(["evaluate", "--out", str(folder / "out")])
    findings.judge("evaluate", code, said, folder)
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.robustness.kills import COMMANDS, names, unreadable
from tests.robustness.warm import ended, start

OUT = ("train", "evaluate", "sweep", "export")


@dataclass
class Findings:
    """What was tried, and what was wrong."""

    tried: int = 0
    codes: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lines: set[str] = field(default_factory=set)

    def judge(self, name: str, code: int, said: str, place: Path) -> None:
        """Take an outcome: of its stdout and stderr together, with what is in its place."""
        self.tried += 1
        self.codes[code] = self.codes.get(code, 0) + 1
        wrong = list(unreadable(place))
        told = [line for line in said.splitlines() if line.startswith("patchbench: ")]
        if "Traceback" in said:
            wrong.append(f"a traceback: {said[-1500:]}")
        if code not in (0, 1, 2) or (code == 1 and "failed " not in said):
            wrong.append(f"code {code}: {said[-800:]}")
        if code == 2 and (len(told) != 1 or ": " not in told[0][12:]):
            wrong.append(f"not one line with a remedy: {said[-800:]}")
        self.lines.update(line.replace(str(place), "…") for line in told)
        hidden = {name for name in names(place) if "/." in f"/{name}"}
        if hidden:
            wrong.append(f"left behind: {sorted(hidden)}")
        self.problems += [f"{name}: {problem}" for problem in wrong]


class Place:
    """Runs commands in conditions, in a folder for logs and another for what they write."""

    def __init__(self, folder: Path, finished: Path) -> None:
        self.folder, self.finished, self._count = folder, finished, 0

    def lines(self, out: Path) -> dict[str, list[str]]:
        """Return the command lines by name, with what they write at or in `out`."""
        result = str(self.finished / "evaluate")
        return {
            **{name: [*COMMANDS[name].arguments, "--out", str(out)] for name in OUT},
            "show": ["show", result, "--html", f"{out}.html"],
            "compare": ["compare", result, str(self.finished / "train"), "--html", f"{out}.html"],
            "leaderboard": ["leaderboard", str(self.finished), "--out", f"{out}.html"],
        }

    def run(
        self, arguments: list[str], before: Callable[[], None] | None = None
    ) -> tuple[int, str]:
        """Run a command line in a warm process; return its exit code and what it said."""
        self._count += 1
        log = self.folder / f"{self._count}.log"
        log.touch()
        log.chmod(0o666)
        began = time.perf_counter()
        code = ended(start(arguments, log=log, cache=self.folder / "cache", before=before))
        said = log.read_text(encoding="utf-8", errors="replace")
        if (took := time.perf_counter() - began) > 120:
            said += f"\nTraceback: it took {took:.0f} s"
        return code, said


@contextmanager
def mounted(place: Path, size: int) -> Iterator[Path]:
    """Yield a file system of its own, with so many bytes of room."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
