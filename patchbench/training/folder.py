"""The folder of a training: which configuration it belongs to, and how far it has come.

Use:

    folder = TrainFolder.open(out, identity, overwrite=False)   # refuses another configuration
    folder.work(1e-3)                                           # of the run with that rate
    folder.begin()
    folder.record(status="finished", steps=2000)

    config.json, model.safetensors     the model, as `patchbench evaluate --model` takes it
    result/                            the Result on test
    dynamics.parquet                   the mechanism over time
    training.json                      configuration, history, learning rates
    work/                              checkpoints, until all is done
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchbench.common import UserError, atomic_write
from patchbench.common.differences import differences
from patchbench.common.files import check_writable

SCHEMA, VERSION = "patchbench/training", 1
FILE, WORK, RESULT = "training.json", "work", "result"
_MOST_DIFFERENCES = 5


@dataclass(frozen=True, kw_only=True)
class TrainFolder:
    """An opened folder.

    Attributes:
        path: the folder.
        content: of its training.json.
    """

    path: Path
    content: dict[str, Any]

    @classmethod
    def open(
        cls, path: str | Path, identity: Mapping[str, Any], *, overwrite: bool = False
    ) -> "TrainFolder":
        """Return a new folder, of which nothing is on disk yet, or one of this configuration.

        Args:
            path: the folder.
            identity: everything that the outcome depends on, ready for JSON but for tuples.
            overwrite: whether to give up a training that is there.

        Raises:
            UserError: it holds something else, or cannot be written.
        """
        path = Path(path)
        identity = json.loads(json.dumps(dict(identity)))
        if os.path.exists(path) and (not path.is_dir() or any(path.iterdir())):
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
        check_writable(path, overwrite=True)
        content = {"schema": SCHEMA, "version": VERSION, "config": identity, "status": "new"}
        return cls(path=path, content=content)

    def begin(self) -> None:
        """Make a new folder on disk, in place of what `overwrite` gave up."""
        if self.content["status"] == "new":
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
            self.record(status="running")

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

    def clean(self) -> None:
        """Remove what only an unfinished training needs."""
        shutil.rmtree(self.path / WORK, ignore_errors=True)


def read_folder(path: Path) -> TrainFolder:
    """Return the folder of an earlier training.

    Raises:
        UserError: it is none.
    """
    return TrainFolder(path=path, content=_read(path))


def _read(path: Path) -> dict[str, Any]:
    file = path / FILE
    if not file.is_file():
        raise UserError(f"{path} exists and is no training", "choose another --out")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is damaged", str(error)) from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{file} is no training", "choose another --out")
    if content.get("version") != VERSION or not {"config", "status"} <= content.keys():
        raise UserError(f"{file} is of another version of patchbench", "choose another --out")
    return content
