"""Tasks as `datasets` builders: rows are generated once and then read from the cache.

The cache folder is named by a digest of everything the bytes depend on. (By itself `datasets`
names it by the module and a version, so that two tasks, or two states of the code, share one.)
Several processes may build the same rows: `datasets` locks, and moves the finished folder.

Use:

    builder = TaskBuilder(task=task, split="test", rows=256, **cache_names(task, "test", 256))
    builder.download_and_prepare()
"""

import hashlib
import inspect
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import datasets
import pyarrow as pa
from datasets.exceptions import DatasetGenerationError

from patchbench.common import UserError
from patchbench.tasks.base import GENERATOR_VERSION, Counts, Task
from patchbench.tasks.example import features

if TYPE_CHECKING:
    from datasets import Dataset

_THIS_PROCESS = uuid.uuid4().hex


@dataclass
class TaskBuilderConfig(datasets.BuilderConfig):
    """Which rows to build."""

    task: Task | None = None
    split: str = "test"
    rows: int = 1


class TaskBuilder(datasets.ArrowBasedBuilder):
    """Builds one split of one task."""

    VERSION = datasets.Version(GENERATOR_VERSION)
    BUILDER_CONFIG_CLASS = TaskBuilderConfig
    config: TaskBuilderConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=features())

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name=self.config.split)]

    def _generate_tables(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
    ) -> Iterator[tuple[int, pa.Table]]:
        task, missing = cast(Task, self.config.task), self.config.rows
        total = Counts()
        for index, (examples, counts) in enumerate(task.chunks(self.config.split)):
            total = total + counts
            table = examples.to_arrow()[:missing]
            missing -= len(table)
            if len(table):
                yield index, table
            if not missing:
                break
        # The only field of the info that is ours, and it is stored beside the rows.
        self.info.description = json.dumps(
            {"task": task.name, "seed": task.seed, "split": self.config.split, **asdict(total)}
        )


def build(task: Task, split: str, rows: int) -> "Dataset":
    """Return the first `rows` rows of a split.

    Raises:
        UserError: the cache folder cannot be written.
    """
    names = cache_names(task, split, rows)
    try:
        with quietly():
            builder = TaskBuilder(task=task, split=split, rows=rows, **cast(dict[str, Any], names))
            builder.download_and_prepare()
            return cast("Dataset", builder.as_dataset(split=split))
    except (OSError, DatasetGenerationError) as error:
        # `datasets` wraps what a task raised, in words that say nothing of the cause.
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        if not isinstance(cause, OSError):
            raise (cause or error) from None
        raise UserError(
            f"the cache of datasets cannot be written ({cause})",
            "set HF_DATASETS_CACHE to a folder that can, with room",
        ) from error


def cache_names(task: Task, split: str, rows: int) -> dict[str, str]:
    """Return the arguments that name the cache folder, different for different bytes."""
    arguments = {
        "version": GENERATOR_VERSION,
        "code": _foreign_code(type(task)),
        "family": f"{type(task).__module__}:{type(task).__qualname__}",
        "config": asdict(task.config),
        "seed": task.seed,
        "split": split,
        "rows": rows,
    }
    text = json.dumps(arguments, sort_keys=True, default=str)
    family, _, variant = task.name.partition("/")
    return {
        "dataset_name": f"patchbench_{family}",
        "config_name": f"{variant or 'default'}-{split}",
        "config_id": f"{variant or 'default'}-{split}",
        "hash": hashlib.sha256(text.encode()).hexdigest()[:24],
    }


def _foreign_code(task: type[Task]) -> list[str]:
    """Return digests of the files of another package's task, which has no version of ours.

    An edit of such a file then makes new rows; what it imports is not looked at.
    """
    digests = []
    for cls in task.__mro__:
        if cls.__module__.split(".")[0] in ("patchbench", "abc", "builtins"):
            continue
        try:
            digests.append(hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest())
        except (OSError, TypeError):  # typed into an interpreter: nothing to recognise it by
            digests.append(_THIS_PROCESS)
    return digests


def read_counts(dataset: "Dataset") -> Counts:
    """Return what became of the candidates of a dataset that `build` returned."""
    stored = json.loads(dataset.info.description)
    return Counts(**{name: stored[name] for name in ("drawn", "rejected", "dropped")})


@contextmanager
def quietly() -> Iterator[None]:
    """Keep `datasets` from drawing a progress bar for what takes a second."""
    shown = not datasets.are_progress_bars_disabled()
    if shown:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
