"""What a recipe returns: runs, each a model, a task, a training and an evaluation, all frozen.

Use:

    run = RunConfig(name="mamba-s0", group="mamba", model={"arch": "mamba"}, task="ar/tiny",
                    training={"steps": 100, "seed": 0})
    sweep = SweepConfig(recipe="mine", runs=(run,))
    sweep.only("mamba-*").runs, RunConfig.from_json(run.to_json()) == run

What a run holds is held as JSON gives it back, so that a run that was read from a file, or went to
another machine, equals the one that was made here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.tasks import Task
    from patchbench.training import ModelSpec, TrainConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a folder, on any system
_LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training and its evaluation.

    Attributes:
        name: of its folder.
        group: the experiment that it is one seed of.
        model: fields of `ModelSpec`.
        task: its name.
        overrides: of the task's config.
        task_seed: seed of the task; the training has its own.
        training: fields of `TrainConfig`.
        evaluation: fields of `EvaluateConfig` for the Result on test; of the components those that
            the model has.
        estimate: CPU seconds that the run is known to take; None where nobody has run it.
    """

    name: str
    group: str
    model: Mapping[str, Any]
    task: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    task_seed: int = 0
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    estimate: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise UserError(f"run {self.name!r}", "a name of letters, digits and -_. is needed")
        for name in ("model", "overrides", "training", "evaluation"):
            object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name))))

    def spec(self) -> "ModelSpec":
        """Return the model to build.

        Raises:
            UserError: there is none like that.
        """
        from patchbench.training import ModelSpec

        return ModelSpec(**self.model)

    def train_config(self) -> "TrainConfig":
        """Return the training's settings.

        Raises:
            UserError: one does not exist, or cannot be.
        """
        from patchbench.training import TrainConfig

        return TrainConfig.of(self.training)

    def load_task(self) -> "Task":
        """Return the task.

        Raises:
            UserError: there is none like that.
        """
        from patchbench.tasks import load_task

        return load_task(self.task, seed=self.task_seed, **self.overrides)

    def check(self) -> None:
        """Raise `UserError` for what cannot be, before hours are spent on other runs."""
        from patchbench.evaluation_config import EvaluateConfig

        self.spec().build(self.load_task(), seed=0)
        self.train_config()
        EvaluateConfig.of(self.evaluation)

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RunConfig":
        """Undo `to_json`."""
        return cls(**content)


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Runs that belong together.

    Attributes:
        recipe: what made them.
        runs: in the order in which they begin.
    """

    recipe: str
    runs: tuple[RunConfig, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError(f"{self.recipe} has no runs", "name an architecture and a seed")
        names = [run.name for run in self.runs]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{self.recipe} has two runs {name!r}", "name each once")

    def only(self, pattern: str) -> "SweepConfig":
        """Return the runs whose name fits a glob.

        Raises:
            UserError: none does.
        """
        chosen = tuple(run for run in self.runs if fnmatchcase(run.name, pattern))
        if not chosen:
            shown = ", ".join(run.name for run in self.runs[:3])
            raise UserError(f"{pattern!r} fits no run of {self.recipe}", f"they are named {shown}…")
        return replace(self, runs=chosen)

    def groups(self) -> dict[str, list[RunConfig]]:
        """Return the runs by what they are seeds of."""
        found: dict[str, list[RunConfig]] = {}
        for run in self.runs:
            found.setdefault(run.group, []).append(run)
        return found
