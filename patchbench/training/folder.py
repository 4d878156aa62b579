"""The folder of a training: which configuration it belongs to, and how far it has come.

Use:

    folder = TrainFolder.open(out, identity, overwrite=False)   # refuses another configuration
    folder.work(1e-3)                                           # of the run with that rate
    with folder.held() as folder:                               # one process at a time
        folder.record(status="finished", steps=2000)

    config.json, model.safetensors     the model, as `patchbench evaluate --model` takes it
    result/                            the Result on test
    before/                            the Result on test of the weights that it started from
    tokenizer.json, …                  of a model that reads the task in words
    dynamics.parquet                   the mechanism over time
    training.json                      configuration, history, learning rates
    work/                              checkpoints, until all is done
    .lock                              held by the process that trains
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchbench.common import UserError, atomic_write, parse_json
from patchbench.common.differences import differences
from patchbench.common.files import check_writable, explained
from patchbench.common.locks import LOCK, is_blank, locked

SCHEMA, VERSION = "patchbench/training", 1
FILE, WORK, RESULT, BEFORE = "training.json", "work", "result", "before"
OF_FINISHED = ("rate", "steps", "stopped", "grid", "history")
_MOST_DIFFERENCES = 5
_INSTEAD = "choose another --out, or remove the folder"


@dataclass(frozen=True, kw_only=True)
class TrainFolder:
    """An opened folder.

    Attributes:
        path: the folder.
        content: of its training.json.
        overwrite: whether a training that is there is given up.
    """

    path: Path
    content: dict[str, Any]
    overwrite: bool = False

    @classmethod
    def open(
        cls,
        path: str | Path,
        identity: Mapping[str, Any],
        *,
        overwrite: bool = False,
        keep: Sequence[str | None] = (),
    ) -> "TrainFolder":
        """Return a new folder, of which nothing is on disk yet, or one of this configuration.

        Args:
            path: the folder.
            identity: everything that the outcome depends on, ready for JSON but for tuples.
            overwrite: whether to give up a training that is there.
            keep: what training starts from, which must not be given up, where it is a path.

        Raises:
            UserError: it holds something else, or cannot be written.
        """
        path = Path(path)
        identity = json.loads(json.dumps(dict(identity)))  # lists for tuples, as in the file
        with explained(path):
            occupied = os.path.exists(path) and not (path.is_dir() and is_blank(path, path / FILE))
        if os.path.islink(path) and not os.path.exists(path):
            raise UserError(f"{path} is a link to nothing", "choose another --out")
        if occupied:
            content = _read(path)
            if not overwrite:
                different = differences(content["config"], identity)
                if different:
                    shown = ", ".join(different[:_MOST_DIFFERENCES])
                    more = len(different) - _MOST_DIFFERENCES
                    raise UserError(
                        f"{path} holds a training of another configuration ({shown}"
                        + (f", and {more} more" if more > 0 else "")
                        + ")",
                        "choose another --out or pass --overwrite",
                    )
                return cls(path=path, content=content)
        check_writable(path, overwrite=True, keep=[k for k in keep if k and os.path.exists(k)])
        content = {"schema": SCHEMA, "version": VERSION, "config": identity, "status": "new"}
        return cls(path=path, content=content, overwrite=overwrite)

    @contextmanager
    def held(self) -> Iterator["TrainFolder"]:
        """Yield the folder as it is now, on disk, without what `overwrite` gave up.

        Raises:
            UserError: another process is training there, or see `open`.
        """
        with locked(self.path, self.path):
            # Another process may have made or finished it since.
            folder = TrainFolder.open(self.path, self.content["config"], overwrite=self.overwrite)
            if folder.content["status"] == "new":
                with explained(self.path):
                    for item in _items(self.path):
                        linked = item.is_symlink()  # to a larger disk, say: what is there stays
                        shutil.rmtree(item) if item.is_dir() and not linked else item.unlink()
                folder.record(status="running")
            yield folder

    @property
    def finished(self) -> bool:
        """Whether everything is there."""
        return self.content["status"] == "finished"

    def work(self, rate: float) -> Path:
        """Return the folder of the run with one learning rate."""
        return self.path / WORK / f"lr-{rate!r}"  # in full: two rates must not share one

    def record(self, **facts: Any) -> None:
        """Add to training.json, in one step."""
        self.content.update(facts)
        with atomic_write(self.path / FILE) as temporary:
            text = json.dumps(self.content, indent=2, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")

    def tidy(self) -> None:
        """Remove what a process that was killed at its very end left of a finished training."""
        with suppress(UserError):  # another process is at it, or nobody may
            if any((self.path / name).exists() for name in (WORK, LOCK)):
                with self.held() as folder:
                    folder.clean()

    def clean(self) -> None:
        """Remove what only an unfinished training needs."""
        shutil.rmtree(self.path / WORK, ignore_errors=True)


def read_folder(path: Path) -> TrainFolder:
    """Return the folder of an earlier training.

    Raises:
        UserError: it is none.
    """
    return TrainFolder(path=path, content=_read(path))


def unfinished(model: str) -> list[str]:
    """Return a note where a model's folder is that of a training that has not ended; else []."""
    path = Path(model)
    if not os.path.isfile(path / FILE):
        return []
    with suppress(UserError):  # a damaged record does not keep the model from being used
        if not read_folder(path).finished:
            return [
                f"the training in {path} has not ended, and its own Result is missing: the same "
                "`patchbench train` command goes on with it"
            ]
    return []


def _items(path: Path) -> list[Path]:
    """Return what is in a folder; what tells that it is a training comes last, to be removed so."""
    items = (item for item in path.iterdir() if item.name != LOCK)
    return sorted(items, key=lambda item: item.name == FILE)


def _read(path: Path) -> dict[str, Any]:
    file = path / FILE
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} exists and is no training", "choose another --out") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", _INSTEAD) from None
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error})", _INSTEAD) from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{file} is no training", "choose another --out")
    if content.get("version") != VERSION or not {"config", "status"} <= content.keys():
        raise UserError(f"{file} is of another version of patchbench", "choose another --out")
    needed = OF_FINISHED if content["status"] == "finished" else ()
    if not isinstance(content["config"], dict) or not content.keys() >= {*needed}:
        raise UserError(f"{file} is damaged", _INSTEAD)
    return content
