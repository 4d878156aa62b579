"""What the runs of a training share: the model to start from, what it reads, how it is measured.

Use:

    job = Job(loaded, task, renderer, config, device="auto")
    before = job.before(folder, command)                  # a Result
    fit = job.fit(1e-3, folder, report, report_to=())
    job.write_model(fit.checkpoint, folder.path)          # what `load_model` takes
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError
from patchbench.evaluation import Progress, evaluate
from patchbench.evaluation_config import DEFAULT_POSITIONS, SYMBOLIC, EvaluateConfig
from patchbench.inputs import renderer_of
from patchbench.preparation import select_sites
from patchbench.results import Result
from patchbench.training import data
from patchbench.training.checkpoints import copy_weights, saving
from patchbench.training.config import TrainConfig
from patchbench.training.dynamics import FILE as DYNAMICS
from patchbench.training.dynamics import Dynamics
from patchbench.training.folder import BEFORE, TrainFolder
from patchbench.training.lora import add_lora, lora_targets, merge_lora
from patchbench.training.models import check_fit
from patchbench.training.processes import process_share

if TYPE_CHECKING:
    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task
    from patchbench.tasks.rendering import Renderer
    from patchbench.training.loop import Fit


class Job:
    """A training before its runs.

    Args:
        loaded: the model to start from, which is left as it is.
        task: what it learns.
        renderer: what writes the task in the model's words; None for the task's own token ids.
        config: how.
        device: "auto" or "cpu".
        name: of the trained model in its Result; its folder when None.
        measuring: called while a Result is made, as `evaluate`'s progress.
        evaluation: further settings of `evaluate` for the Results.

    Attributes:
        notes: what the user should know of the trained model.

    Raises:
        UserError: something asked for does not exist or does not fit.
    """

    def __init__(
        self,
        loaded: "LoadedModel",
        task: "Task",
        renderer: "Renderer | None",
        config: TrainConfig,
        device: str,
        *,
        name: str | None = None,
        measuring: Progress | None = None,
        evaluation: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._device, self._name, self._measuring = device, name, measuring
        self.notes = [f"before training: {note}" for note in loaded.notes]
        self._loaded, self._task, self._config, self._renderer = loaded, task, config, renderer
        own = {
            "n": config.test_n,
            "layers": config.patch_layers,
            "template": SYMBOLIC if renderer is None else renderer.template,
            "seed": config.seed,
        }
        self._evaluation = {**own, **evaluation}
        asked = EvaluateConfig.of(self._evaluation)
        if asked.sites is None:
            select_sites(loaded.hook_map, asked.components, asked.layers, DEFAULT_POSITIONS)
        if config.dynamics_distance:
            chosen = config.dynamics_components, config.patch_layers
            select_sites(loaded.hook_map, *chosen, DEFAULT_POSITIONS)
        self._targets: list[str] = []
        if config.lora is not None:
            self._targets = lora_targets(loaded.model, config.lora)
            self.notes.append(
                f"LoRA of rank {config.lora} on {len(self._targets)} linear maps, added to the "
                "weights at the end"
            )
        self._reads = renderer or task
        self._dev = data.held_out(self._reads, "dev", config.dev_n)
        longest = max(batch["input_ids"].shape[1] for batch in self._dev) + 1
        self._sources = []
        for changes, steps in config.stages:
            part = _changed(task, changes)
            reads = renderer and renderer_of(loaded, part, template=config.template)
            if config.data == "fixed":
                rows = data.dataset_rows(reads or part, "train", config.train_n)
                longest = max(longest, int(rows.lengths.max()) + 1)
                self._sources.append((data.fixed(rows, config.seed), steps))
            else:
                longest = max(longest, part.max_length)
                self._sources.append((data.fresh(reads or part), steps))
        if renderer is None:
            self.notes += check_fit(loaded, task, longest)

    def fit(
        self,
        rate: float,
        folder: TrainFolder,
        report: Callable[[int, int, dict[str, float]], None],
        report_to: Sequence[str],
    ) -> "Fit":
        """Train a copy of the model with one learning rate."""
        from patchbench.training.loop import run_fit

        config, place = self._config, folder.work(rate)
        network = copy.deepcopy(self._loaded.model)
        trained: Any = network
        if config.lora is not None:
            trained = add_lora(network, self._targets, rank=config.lora, seed=config.seed)
        dynamics = None
        if config.dynamics_distance:
            dynamics = Dynamics(
                network,
                self._reads,
                n=config.dynamics_n,
                components=config.dynamics_components,
                layers=config.patch_layers,
                path=place / DYNAMICS,
            )
        return run_fit(
            trained,
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
            dev=self._dev,
            config=config,
            folder=place,
            device=self._device,
            dynamics=dynamics,
            progress=report,
            report_to=report_to,
        )

    def before(self, folder: TrainFolder, command: str | None) -> Result:
        """Return the Result of the model as it is, from the folder if it is there already."""
        from patchbench.adapters.placing import device_of

        if (known := read_before(folder)) is not None:
            return known
        model: Any = self._loaded.model
        place = device_of(self._device)
        if model.device.type != place.type:
            model = copy.deepcopy(model).to(place)
        result = self._evaluate(replace(self._loaded, model=model), command)
        result.save(folder.path / BEFORE)
        return result

    def after(self, folder: TrainFolder, command: str | None) -> Result:
        """Return the Result of the model that `write_model` left in the folder."""
        from patchbench.adapters import load_model

        loaded = load_model(folder.path, device=self._device)
        if self._name is not None:
            loaded = replace(loaded, name=self._name)
        result = self._evaluate(loaded, command)
        result.provenance["notes"] += self.notes
        return result

    def _evaluate(self, loaded: "LoadedModel", command: str | None) -> Result:
        further = {"progress": self._measuring, "command": command}
        return evaluate(loaded, self._task, **further, **self._evaluation)

    def write_model(self, checkpoint: Path, folder: Path) -> None:
        """Write the model of a checkpoint, and its tokenizer if it reads the task in words.

        Raises:
            OSError: it cannot be written.
        """
        if self._config.lora is None:
            copy_weights(checkpoint, folder)
        else:
            merged = merge_lora(self._loaded.model, checkpoint)
            with saving():
                merged.save_pretrained(folder)
        if self._renderer is not None and self._loaded.tokenizer is not None:
            with saving():
                self._loaded.tokenizer.save_pretrained(folder)


def read_before(folder: TrainFolder) -> Result | None:
    """Return the Result of the weights that a training started from, if there is one."""
    return Result.load(folder.path / BEFORE) if (folder.path / BEFORE).is_dir() else None


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
