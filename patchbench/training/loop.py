"""One training run on transformers' `Trainer`, with one learning rate, in one folder.

Use:

    fit = run_fit(model, rate=1e-3, batches=batches, dev=dev, config=config, folder=folder)
    fit.history[-1]["dev_accuracy"], fit.diverged

The last checkpoint in the folder is the outcome. A run that was killed goes on from its last
complete one and ends, on a CPU, with the weights that it would have had. The loss is computed on
the predictions of the answers alone. Between evaluations a step does nothing but the step.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.trainer_utils import SchedulerType

from patchbench.adapters.checkpoints import quiet_transformers
from patchbench.common import UserError
from patchbench.common.files import explained
from patchbench.common.processes import is_main_process
from patchbench.common.random_state import random_state_kept
from patchbench.training.checkpoints import CHECKPOINTS, last_checkpoint, saving, step_of
from patchbench.training.config import SCHEDULES, TrainConfig
from patchbench.training.data import TensorBatch, first
from patchbench.training.processes import from_main
from patchbench.training.watcher import Diverged, Progress, Watcher, logged, solved

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.training.dynamics import Dynamics


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The outcome of a run.

    Attributes:
        rate: its learning rate.
        steps: optimiser steps taken.
        stopped: why it ended before its last step, or None.
        diverged: where the loss became NaN, or None.
        history: what was logged, by step.
        checkpoint: the last one; None when it diverged before the first.
    """

    rate: float
    steps: int
    stopped: str | None
    diverged: str | None
    history: list[dict[str, float]]
    checkpoint: Path | None

    @property
    def dev_loss(self) -> float:
        """The last dev loss; infinite after divergence."""
        return math.inf if self.diverged else self.history[-1]["dev_loss"]


def run_fit(
    model: "PreTrainedModel",
    *,
    rate: float,
    batches: Dataset[TensorBatch],
    dev: Sequence[TensorBatch],
    config: TrainConfig,
    folder: Path,
    device: str = "auto",
    dynamics: "Dynamics | None" = None,
    progress: Progress | None = None,
    report_to: Sequence[str] = (),
) -> Fit:
    """Train `model` in place, or go on with what `folder` holds, or return what it ended with.

    Args:
        model: with its initial weights.
        rate: learning rate.
        batches: training data.
        dev: what it is watched on.
        config: the other settings.
        folder: of this run.
        device: "auto" or "cpu".
        dynamics: measures the mechanism.
        progress: called a few times a second.
        report_to: loggers of transformers, as in "wandb".
    """
    checkpoint = from_main(lambda: last_checkpoint(folder))
    if dynamics is not None:
        step = step_of(checkpoint) if checkpoint else 0
        dynamics.go_on(step, every=config.dynamics_distance)
    if checkpoint is not None and (fit := _ended(checkpoint, rate, config)) is not None:
        return fit
    if is_main_process():
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
    with random_state_kept(), quiet_transformers():
        watcher = Watcher(config, rate, dev, dynamics, progress)
        arguments = _arguments(config, rate, folder / CHECKPOINTS, device, report_to)
        trainer = AnswerTrainer(model, arguments, batches, watcher)
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Diverged as error:
            return Fit(
                rate=rate,
                steps=trainer.state.global_step,
                stopped=None,
                diverged=str(error),
                history=logged(trainer.state),
                checkpoint=from_main(lambda: last_checkpoint(folder)),
            )
    checkpoint = from_main(lambda: last_checkpoint(folder))
    fit = None if checkpoint is None else _ended(checkpoint, rate, config)
    assert fit is not None  # the last step makes a checkpoint
    return fit


class AnswerTrainer(Trainer):
    """`Trainer` whose batches are ready and whose loss is the answers'."""

    def __init__(
        self,
        model: "PreTrainedModel",
        arguments: TrainingArguments,
        batches: Dataset[TensorBatch],
        watcher: "Watcher",
    ) -> None:
        super().__init__(model=model, args=arguments, train_dataset=batches, callbacks=[watcher])
        self.remove_callback(PrinterCallback)
        # The loss is a mean over the batch already.
        self.model_accepts_loss_kwargs = False
        # A model with LoRA around it passes everything on.
        inner = getattr(model, "get_base_model", lambda: model)()
        accepts = inspect.signature(inner.forward).parameters
        known = {"logits_to_keep": 1, "use_cache": False}
        self._keywords = {name: value for name, value in known.items() if name in accepts}
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._clip = watcher.config.clip
        self._watcher = watcher
        watcher.trainer = self

    def get_train_dataloader(self) -> DataLoader:
        """Return the batches in order; each process has its share of every batch."""
        return DataLoader(
            cast(Dataset[TensorBatch], self.train_dataset),
            batch_size=1,
            collate_fn=first,
            # Its own, or else it would draw from the global one.
            generator=torch.Generator(),
        )

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Go forward and back and clip the gradient.

        The general step looks for installed packages and walks through all modules several times,
        which costs a tiny model a quarter of its step.
        """
        if not model.training:
            model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: TensorBatch,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean negative log-likelihood of the answers."""
        logits = self.predict_answers(model, inputs["input_ids"])
        loss = F.cross_entropy(logits, inputs["answer"])
        self._watcher.add(loss, logits, inputs["answer"])
        return (loss, {"logits": logits}) if return_outputs else loss

    def predict_answers(self, model: nn.Module, input_ids: Tensor) -> Tensor:
        """Return the logits after the last token: (batch, vocabulary) in float32."""
        return model(input_ids=input_ids, **self._keywords).logits[:, -1].float()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with explained(Path(str(self.args.output_dir))), saving():
            super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, *arguments: Any, **further: Any) -> None:
        with _readable(arguments[0]):
            super()._load_from_checkpoint(*arguments, **further)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _readable(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _readable(checkpoint):
            super()._load_rng_state(checkpoint)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # Nobody logs it; the general method computes it in every step.
        return grad_norm

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count nothing: an estimate would cost a walk through all parameters in every step."""
        return 0


def _arguments(
    config: TrainConfig, rate: float, folder: Path, device: str, report_to: Sequence[str]
) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=config.total_steps,
        per_device_train_batch_size=1,  # one ready batch
        learning_rate=rate,
        lr_scheduler_type=SchedulerType(SCHEDULES[config.schedule]),
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=0,  # the step clips
        bf16=config.precision == "bfloat16",
        seed=config.seed,
        save_strategy="no",  # the watcher asks
        save_total_limit=2,  # while the newer one is being written, the older is whole
        logging_strategy="no",
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=list(report_to) or "none",
        use_cpu=device == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    # Several devices in one process would split each batch by threads; torchrun does it well.
    _ = arguments.device
    arguments._n_gpu = min(arguments._n_gpu, 1)
    return arguments


def _ended(checkpoint: Path, rate: float, config: TrainConfig) -> Fit | None:
    """Return the outcome of the run if it ended with `checkpoint`."""
    with _readable(checkpoint):
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        history = logged(state)
        is_solved = solved(history[-1], config)
    stopped = None
    if is_solved:
        accuracy = history[-1]["dev_accuracy"]
        stopped = (
            f"dev accuracy {accuracy:.3f} reached {config.stop_at} at step {state.global_step}"
        )
    elif state.global_step < config.total_steps:
        return None
    return Fit(
        rate=rate,
        steps=state.global_step,
        stopped=stopped,
        diverged=None,
        history=history,
        checkpoint=checkpoint,
    )


@contextmanager
def _readable(checkpoint: Path | str | None) -> Iterator[None]:
    """Turn what the libraries say of a checkpoint into a `UserError`.

    Its seal fits, so that no crash left it: somebody made or changed it. Pickles that hold more
    than tensors are refused by PyTorch.
    """
    try:
        yield
    except Exception as error:  # of PyTorch, safetensors or transformers, by version
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{checkpoint} cannot be gone on with ({type(error).__name__}: {reason})",
            "it is not what a training left: remove it to go on from the one before",
        ) from error
