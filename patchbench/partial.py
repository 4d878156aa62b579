"""The finished parts of an evaluation, kept beside its `--out` until the Result is written.

A killed process loses the part that it was at. The next one takes the finished parts as they are
and goes on with what the engine had settled by then, so that its rows are those of a run that was
never interrupted.

Use:

    with partial_folder("runs/x", resume=True) as partial:        # one process at a time
        result = evaluate(model, task, partial=partial)
        result.save("runs/x")

    x.partial/.lock                         held by the process that writes
    x.partial/identity.json                 what the parts belong to
    x.partial/part-00000.parquet, .json     rows, and where the engine stood after them
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from patchbench.common import ControlError, UserError, atomic_write, parse_json
from patchbench.common.differences import differences
from patchbench.common.files import check_writable
from patchbench.common.locks import LOCK, locked
from patchbench.effects import ROW_SCHEMA

if TYPE_CHECKING:
    from patchbench.results import Result

SUFFIX, IDENTITY = ".partial", "identity.json"
_MOST_DIFFERENCES = 5


class Partial:
    """The parts of one evaluation; of several, one `child` each.

    Args:
        path: the folder.
        written: whether something is where the Result will be, and must not be replaced.

    Attributes:
        states: of the finished parts, in order.
        problem: why no more parts can be written; None if they can.
    """

    def __init__(self, path: Path, *, written: bool = False) -> None:
        self.path, self._written = path, written
        self.states: list[dict[str, Any]] = []
        self.problem: UserError | None = None

    def child(self, name: str) -> "Partial":
        """Return the folder of one of several evaluations."""
        return Partial(self.path / name)

    def open(self, identity: Mapping[str, Any]) -> None:
        """Find the finished parts of an evaluation.

        Args:
            identity: everything that its rows depend on, ready for JSON but for tuples.

        Raises:
            UserError: the parts are of another evaluation.
        """
        asked = json.loads(json.dumps(dict(identity)))
        file = self.path / IDENTITY
        if file.exists():
            different = differences(_read(file) or {}, asked)
            if different:
                more = len(different) - _MOST_DIFFERENCES
                shown = ", ".join(different[:_MOST_DIFFERENCES])
                raise UserError(
                    f"{self.path} holds an evaluation of other settings ({shown}"
                    + (f", and {more} more)" if more > 0 else ")"),
                    "choose another --out, or pass --overwrite without --resume to give it up",
                )
        else:
            self._write(lambda: _write_json(file, asked))
        while (state := self._finished(len(self.states))) is not None:
            self.states.append(state)

    def table(self, number: int) -> pa.Table:
        """Return the rows of a finished part."""
        return pq.read_table(self._file(number))

    def add(self, table: pa.Table, state: Mapping[str, Any]) -> None:
        """Keep the rows of the next part, with where the engine stands after them.

        A disk that is full costs the parts from there on, not the run: see `problem`.
        """

        def write() -> None:
            rows = self._file(len(self.states))
            with atomic_write(rows) as temporary:
                pq.write_table(table, temporary)
            content = {"sha256": _digest(rows), **state}
            # Last: a part without it is not finished.
            _write_json(rows.with_suffix(".json"), content)
            self.states.append(content)

        self._write(write)

    def save(self, results: "Mapping[Path, Result]", write: Callable[[], None]) -> None:
        """Write the outcome, unless a run that was killed after that has written the same.

        Args:
            results: what will be where.
            write: writes them.

        Raises:
            UserError: it cannot be written, or something else is there.
        """
        if not self._written:
            write()
            return
        for place, result in results.items():
            with suppress(UserError):  # it is no Result
                there = type(result).load(place)
                if there.config == result.config and there.rows.equals(result.rows):
                    continue
            raise UserError(
                f"{place} exists and is not of this evaluation",
                "choose another --out or pass --overwrite",
            )

    def _write(self, action: Any) -> None:
        if self.problem is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            action()
        except UserError as error:
            self.problem = error

    def _finished(self, number: int) -> dict[str, Any] | None:
        rows = self._file(number)
        state = _read(rows.with_suffix(".json"))
        if state is None or not rows.is_file() or state.get("sha256") != _digest(rows):
            return None
        return state if pq.read_schema(rows).equals(ROW_SCHEMA) else None

    def _file(self, number: int) -> Path:
        return self.path / f"part-{number:05d}.parquet"


@contextmanager
def partial_folder(
    out: str | Path, *, resume: bool = False, overwrite: bool = False
) -> Iterator[Partial]:
    """Yield the folder of parts for a Result at `out`, locked.

    It is removed when the block ends well, or holds no part; else it waits for `resume`.

    Args:
        out: where the Result will be.
        resume: whether to go on with what is there.
        overwrite: whether to give it up; with `resume` it is the Result's matter alone.

    Raises:
        UserError: another process writes there, or parts are there and neither is said.
    """
    out = Path(out)
    path = partial_of(out)
    check_writable(path, overwrite=True)
    with locked(path, out):
        if overwrite and not resume:
            _clear(path)
        elif not resume and _parts(path):
            raise UserError(
                f"{path} holds {_parts(path)} finished parts of an evaluation",
                "pass --resume to go on with it, or --overwrite to give it up",
            )
        elif not _parts(path):
            _clear(path)  # nothing that is worth going on with
        try:
            yield Partial(path, written=resume and not overwrite and os.path.lexists(out))
        except BaseException as error:
            # Parts whose controls are off are not worth going on with.
            if isinstance(error, ControlError) or not _parts(path):
                shutil.rmtree(path, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)


def partial_of(out: Path) -> Path:
    """Return where the parts of a Result at `out` are."""
    return out.with_name(out.name + SUFFIX)


def _parts(path: Path) -> int:
    return sum(1 for _ in path.rglob("part-*.json"))


def _clear(path: Path) -> None:
    """Remove everything but the lock."""
    for item in path.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != LOCK:
            item.unlink()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
