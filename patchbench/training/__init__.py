"""Training: from an architecture and a task to a checkpoint with its Result and its history.

Use:

    trained = train(ModelSpec(arch="delta_net"), "ar/mini", out="runs/d", steps=2000, lr=3e-3)
    trained.result.attrib("L1.block_input@query")
    trained.history[-1]["dev_accuracy"]
    pb.load_model(trained.path)

The same call again goes on where a killed one was, and returns at once what a finished one left.
"""

import copy
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError
from patchbench.common.files import explained
from patchbench.evaluation import evaluate
from patchbench.evaluation_config import DEFAULT_POSITIONS, SYMBOLIC, EvaluateConfig
from patchbench.preparation import select_sites
from patchbench.provenance import weights_digest
from patchbench.results import Result
from patchbench.training import data
from patchbench.training.checkpoints import copy_weights
from patchbench.training.config import TrainConfig
from patchbench.training.dynamics import FILE as DYNAMICS
from patchbench.training.dynamics import Dynamics
from patchbench.training.folder import OF_FINISHED, RESULT, TrainFolder
from patchbench.training.loggers import ready_loggers
from patchbench.training.models import ModelSpec, check_fit
from patchbench.training.processes import (
    from_main,
    is_main_process,
    join_processes,
    process_share,
    wait_for_everyone,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.tasks import Task
    from patchbench.training.loop import Fit

__all__ = ["ModelSpec", "TrainConfig", "Trained", "train"]

# (learning rate, steps done, steps in all, what is known)
Progress = Callable[[float, int, int, dict[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training left behind.

    Attributes:
        path: the folder; `load_model` takes it.
        result: the evaluation on test, with the training in `result.provenance["training"]`.
        rate: the learning rate.
        steps: optimiser steps taken.
        stopped: why it ended before the last step, or None.
        grid: one line per learning rate that was tried.
        history: what was logged, by step.
    """

    path: Path
    result: Result
    rate: float
    steps: int
    stopped: str | None
    grid: list[dict[str, Any]]
    history: list[dict[str, float]]

    @classmethod
    def load(cls, path: str | Path) -> "Trained":
        """Read the folder of a finished training."""
        from patchbench.training.folder import read_folder

        folder = read_folder(Path(path))
        if not folder.finished:
            raise UserError(f"{path} is not finished", "give the same training command again")
        for pattern in ("config.json", "model*.safetensors", RESULT):
            if not any(folder.path.glob(pattern)):
                raise UserError(
                    f"{path} is damaged: {pattern} is missing", "train again with --overwrite"
                )
        return cls(
            path=folder.path,
            result=Result.load(folder.path / RESULT),
            **{name: folder.content[name] for name in OF_FINISHED},
        )


def train(
    model: "ModelSpec | PreTrainedModel",
    task: "str | Task",
    *,
    out: str | Path,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    command: str | None = None,
    report_to: Sequence[str] = (),
    name: str | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train a model on a task, evaluate it on test, and leave both in a folder.

    Args:
        model: what to build, or a model, which is left as it is.
        task: a task's name, or what `load_task` returned.
        out: the folder.
        overwrite: whether to remove another training that is there.
        device: "auto" or "cpu".
        progress: called a few times a second.
        command: the command line, for the provenance.
        report_to: loggers of transformers, as in "wandb"; or "all" that are installed.
        name: of the model in its Result; `out` when None.
        evaluation: further settings of `evaluate` for the Result, as in components.
        **settings: the fields of `TrainConfig`.

    Raises:
        UserError: something asked for does not exist or does not fit, `out` holds something else,
            or the loss became NaN; the last good checkpoint is kept then.
    """
    from patchbench.tasks import load_task

    config = TrainConfig.of(settings)
    started = time.perf_counter()
    if device not in ("auto", "cpu"):
        raise UserError(f"device {device!r}", "training takes auto or cpu")
    task = load_task(task, seed=config.seed) if isinstance(task, str) else task
    network = model.build(task, config.seed) if isinstance(model, ModelSpec) else model
    identity = _identity(network, task, config)
    if evaluation:
        identity["evaluation"] = dict(evaluation)
    start = model.init_from if isinstance(model, ModelSpec) else model.name_or_path
    join_processes(device)
    opened = from_main(lambda: TrainFolder.open(out, identity, overwrite=overwrite, keep=start))
    if opened.finished:
        return Trained.load(opened.path)

    report_to = ready_loggers(report_to)
    training = _Training(network, task, config, device, name, evaluation or {})
    with ExitStack() as held:
        folder = from_main(lambda: held.enter_context(opened.held()))
        if folder.finished:
            return Trained.load(folder.path)
        fits = []
        for rate in config.rates:

            def report(done: int, total: int, known: dict[str, float], rate: float = rate) -> None:
                if progress is not None:
                    progress(rate, done, total, known)

            fits.append(training.fit(rate, folder, report, report_to))
        best = min(fits, key=lambda fit: fit.dev_loss)
        if best.diverged:
            raise UserError(best.diverged, _remedy(best))
        return _finish(folder, best, fits, training, command, started)


class _Training:
    """What the runs with different learning rates share."""

    def __init__(
        self,
        model: "PreTrainedModel",
        task: "Task",
        config: TrainConfig,
        device: str,
        name: str | None,
        evaluation: Mapping[str, Any],
    ) -> None:
        from patchbench.adapters import hook_map_for

        self.model, self.task, self.config, self.device = model, task, config, device
        self.dev = data.held_out(task, "dev", config.dev_n)
        longest = max(batch["input_ids"].shape[1] for batch in self.dev) + 1
        self._sources = []
        for changes, steps in config.stages:
            part = _changed(task, changes)
            if config.data == "fixed":
                rows = data.dataset_rows(part, "train", config.train_n)
                longest = max(longest, int(rows.lengths.max()) + 1)
                self._sources.append((data.fixed(rows, config.seed), steps))
            else:
                longest = max(longest, part.max_length)
                self._sources.append((data.fresh(part), steps))
        self.notes = check_fit(model, task, longest)
        hook_map = hook_map_for(model)
        if config.dynamics_distance:
            select_sites(hook_map, config.dynamics_components, None, DEFAULT_POSITIONS)
        own = {"n": config.test_n, "template": SYMBOLIC, "seed": config.seed}
        self._name, self._evaluation = name, {**own, **evaluation}
        asked = EvaluateConfig.of(self._evaluation)
        if asked.sites is None:
            select_sites(hook_map, asked.components, asked.layers, DEFAULT_POSITIONS)

    def evaluate(self, folder: Path, command: str | None) -> Result:
        """Return the Result on test of the model in a folder."""
        from patchbench.adapters import load_model

        loaded = load_model(folder, device=self.device)
        if self._name is not None:
            loaded = replace(loaded, name=self._name)
        result = evaluate(loaded, self.task, command=command, **self._evaluation)
        result.provenance["notes"] += self.notes
        return result

    def fit(
        self,
        rate: float,
        folder: TrainFolder,
        report: Callable[[int, int, dict[str, float]], None],
        report_to: Sequence[str],
    ) -> "Fit":
        """Train a copy of the model with one learning rate."""
        from patchbench.training.loop import run_fit

        config, place = self.config, folder.work(rate)
        network = copy.deepcopy(self.model)
        dynamics = None
        if config.dynamics_distance:
            dynamics = Dynamics(
                network,
                self.task,
                n=config.dynamics_n,
                components=config.dynamics_components,
                path=place / DYNAMICS,
            )
        return run_fit(
            network,
            rate=rate,
            batches=data.Stages(
                [
                    data.Batches(
                        source,
                        batch_size=config.batch_size,
                        count=steps,
                        share=process_share(config.batch_size),
                    )
                    for source, steps in self._sources
                ]
            ),
            dev=self.dev,
            config=config,
            folder=place,
            device=self.device,
            dynamics=dynamics,
            progress=report,
            report_to=report_to,
        )


def _changed(task: "Task", changes: Mapping[str, str]) -> "Task":
    """Return the task of a stage of the curriculum."""
    from patchbench.tasks import load_task

    if not changes:
        return task
    part = load_task(task.name, seed=task.seed, **{**asdict(task.config), **changes})
    if part.symbols != task.symbols:
        raise UserError(
            f"curriculum {dict(changes)} changes the vocabulary of task {task.name!r}",
            "change what leaves the tokens as they are, such as num_pairs",
        )
    return part


def _finish(
    folder: TrainFolder,
    best: "Fit",
    fits: list["Fit"],
    training: _Training,
    command: str | None,
    started: float,
) -> Trained:
    """Put the best model into the folder, evaluate it, and remove what is no longer needed."""
    assert best.checkpoint is not None
    main = is_main_process()
    grid = [
        {
            "rate": fit.rate,
            "dev_loss": None if fit.diverged else fit.dev_loss,
            "dev_accuracy": None if fit.diverged else fit.history[-1]["dev_accuracy"],
            "steps": fit.steps,
            "diverged": fit.diverged,
        }
        for fit in fits
    ]
    facts = {"rate": best.rate, "steps": best.steps, "stopped": best.stopped, "grid": grid}
    written = folder.work(best.rate) / DYNAMICS
    if main:
        copy_weights(best.checkpoint, folder.path)
        if written.exists():
            with explained(folder.path):
                shutil.copyfile(written, folder.path / DYNAMICS)
    wait_for_everyone()
    result = training.evaluate(folder.path, command)
    provenance = {**result.provenance, "training": {**folder.content["config"], **facts}}
    result = replace(result, provenance=provenance)
    wait_for_everyone()
    if main:
        result.save(folder.path / RESULT, overwrite=True)
        folder.record(
            status="finished",
            **facts,
            history=best.history,
            command=command,
            seconds=round(time.perf_counter() - started, 3),
        )
        folder.clean()
    wait_for_everyone()
    return Trained(path=folder.path, result=result, history=best.history, **facts)


def _identity(model: "PreTrainedModel", task: "Task", config: TrainConfig) -> dict[str, Any]:
    """Return everything that the outcome depends on."""
    return {
        "model": model.config.to_diff_dict(),
        "initial_weights": weights_digest(model),
        "task": {"name": task.name, "seed": task.seed, "config": asdict(task.config)},
        "training": asdict(config),
    }


def _remedy(fit: "Fit") -> str:
    kept = f"; the last good checkpoint is {fit.checkpoint}" if fit.checkpoint else ""
    return f"lower --lr or --clip, or lengthen --warmup{kept}"
