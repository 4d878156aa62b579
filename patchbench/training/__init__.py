"""Training: from an architecture and a task to a checkpoint with its Result and its history.

Use:

    trained = train(ModelSpec(arch="delta_net"), "ar/mini", out="runs/d", steps=2000, lr=3e-3)
    trained.result.attrib("L1.block_input@query")
    trained.history[-1]["dev_accuracy"]
    pb.load_model(trained.path)

    train(ModelSpec(init_from="EleutherAI/pythia-70m"), "ar", out="runs/p", steps=200, lora=8)

A model with a tokenizer reads the task in words, as in an evaluation, and has a Result before too.
The same call again goes on where a killed one was, and returns at once what a finished one left.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError
from patchbench.common.files import added_to
from patchbench.common.processes import is_main_process
from patchbench.inputs import renderer_of
from patchbench.provenance import weights_digest
from patchbench.results import Result
from patchbench.training.config import TrainConfig
from patchbench.training.dynamics import FILE as DYNAMICS
from patchbench.training.folder import BEFORE, OF_FINISHED, RESULT, TrainFolder
from patchbench.training.job import Job, read_before
from patchbench.training.loggers import ready_loggers
from patchbench.training.lora import check_peft
from patchbench.training.models import ModelSpec, check_readable, without_tokenizer
from patchbench.training.processes import (
    from_main,
    join_processes,
    wait_for_everyone,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel
    from patchbench.evaluation import Progress as Measuring
    from patchbench.tasks import Task
    from patchbench.tasks.rendering import Renderer
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
        before: the same evaluation of the weights that it started from; None for fresh ones.
        rate: the learning rate.
        steps: optimiser steps taken.
        stopped: why it ended before the last step, or None.
        grid: one line per learning rate that was tried.
        history: what was logged, by step.
    """

    path: Path
    result: Result
    before: Result | None
    rate: float
    steps: int
    stopped: str | None
    grid: list[dict[str, Any]]
    history: list[dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """Return what came out of it, ready for JSON; without the rows and the history."""
        return {
            "rate": self.rate,
            "steps": self.steps,
            "stopped": self.stopped,
            "grid": self.grid,
            "before": self.before and self.before.summary,
            "result": self.result.summary,
        }

    @classmethod
    def load(cls, path: str | Path) -> "Trained":
        """Read the folder of a finished training."""
        from patchbench.training.folder import read_folder

        folder = read_folder(Path(path))
        if not folder.finished:
            raise UserError(f"{path} is not finished", "give the same training command again")
        before = [BEFORE] if folder.content["config"].get("before") else []
        for pattern in ("config.json", "model*.safetensors", RESULT, *before):
            if not any(folder.path.glob(pattern)):
                raise UserError(
                    f"{path} is damaged: {pattern} is missing", "train again with --overwrite"
                )
        return cls(
            path=folder.path,
            result=Result.load(folder.path / RESULT),
            before=read_before(folder),
            **{name: folder.content[name] for name in OF_FINISHED},
        )


def train(
    model: "ModelSpec | LoadedModel | PreTrainedModel",
    task: "str | Task",
    *,
    out: str | Path,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    measuring: "Measuring | None" = None,
    command: str | None = None,
    report_to: Sequence[str] = (),
    name: str | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train a model on a task, evaluate it on test, and leave both in a folder.

    Args:
        model: what to build or load, or a model, which is left as it is.
        task: a task's name, or what `load_task` returned.
        out: the folder.
        overwrite: whether to remove another training that is there.
        device: "auto" or "cpu".
        progress: called a few times a second while it trains.
        measuring: as `evaluate`'s progress, while the Results are made.
        command: the command line, for the provenance.
        report_to: loggers of transformers, as in "wandb"; or "all" that are installed.
        name: of the model in its Result; `out` when None.
        evaluation: further settings of `evaluate` for the Result, as in components.
        **settings: the fields of `TrainConfig`.

    Raises:
        UserError: something asked for does not exist or does not fit, `out` holds something else,
            or the loss became NaN; the last good checkpoint is kept then.
    """
    from transformers import PreTrainedModel

    from patchbench.tasks import load_task

    config = TrainConfig.of(settings)
    started = time.perf_counter()
    if device not in ("auto", "cpu"):
        raise UserError(f"device {device!r}", "training takes auto or cpu")
    if config.lora is not None:
        if isinstance(model, ModelSpec) and model.init_from is None:
            raise UserError("--lora changes pretrained weights", "give --init-from, or drop --lora")
        check_peft()
    task = load_task(task, seed=config.seed) if isinstance(task, str) else task
    if isinstance(model, PreTrainedModel):
        loaded, pretrained = without_tokenizer(model), False
    elif isinstance(model, ModelSpec):
        loaded, pretrained = model.load(task, config.seed), model.init_from is not None
    else:
        loaded, pretrained = model, True
    check_readable(loaded.model)
    if pretrained and config.dynamics_every is None:
        config = replace(config, dynamics_every=0)  # hours of a model with many layers
    renderer = renderer_of(loaded, task, template=config.template)
    identity = _identity(loaded, task, renderer, config)
    if evaluation:
        identity["evaluation"] = dict(evaluation)
    if pretrained:
        identity["before"] = True
    start = [loaded.model.name_or_path]
    if isinstance(model, ModelSpec):
        start = [model.init_from, model.tokenizer]
    join_processes(device)
    opened = from_main(lambda: TrainFolder.open(out, identity, overwrite=overwrite, keep=start))
    if opened.finished:
        if is_main_process():
            opened.tidy()
        return Trained.load(opened.path)

    report_to = ready_loggers(report_to)
    job = Job(
        loaded,
        task,
        renderer,
        config,
        device,
        name=name,
        measuring=measuring,
        evaluation=evaluation or {},
    )
    with ExitStack() as held:
        folder = from_main(lambda: held.enter_context(opened.held()))
        if folder.finished:
            return Trained.load(folder.path)
        before = from_main(lambda: job.before(folder, command)) if pretrained else None
        fits = []
        for rate in config.rates:

            def report(done: int, total: int, known: dict[str, float], rate: float = rate) -> None:
                if progress is not None:
                    progress(rate, done, total, known)

            fits.append(job.fit(rate, folder, report, report_to))
        best = min(fits, key=lambda fit: fit.dev_loss)
        if best.diverged:
            raise UserError(best.diverged, _remedy(best))
        return _finish(folder, best, fits, job, before, command, started)


def _finish(
    folder: TrainFolder,
    best: "Fit",
    fits: list["Fit"],
    job: Job,
    before: Result | None,
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
        with added_to(folder.path) as new:
            job.write_model(best.checkpoint, new)
            if written.exists():
                shutil.copyfile(written, new / DYNAMICS)
    wait_for_everyone()
    result = job.after(folder, command)
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
    return Trained(path=folder.path, result=result, before=before, history=best.history, **facts)


def _identity(
    loaded: "LoadedModel", task: "Task", renderer: "Renderer | None", config: TrainConfig
) -> dict[str, Any]:
    """Return everything that the outcome depends on."""
    identity = {
        "model": loaded.model.config.to_diff_dict(),
        "initial_weights": weights_digest(loaded.model),
        "task": {"name": task.name, "seed": task.seed, "config": asdict(task.config)},
        "training": asdict(config),
    }
    return identity if renderer is None else {**identity, "words": renderer.fingerprint()}


def _remedy(fit: "Fit") -> str:
    kept = f"; the last good checkpoint is {fit.checkpoint}" if fit.checkpoint else ""
    return f"lower --lr or --clip, or lengthen --warmup{kept}"
