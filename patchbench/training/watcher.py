"""What is done between the steps of a run: look, log, measure, stop, keep checkpoints.

Use:

    watcher = Watcher(config, rate, dev, dynamics=None, progress=None)
    AnswerTrainer(model, arguments, batches, watcher)      # see patchbench.training.loop
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState

from patchbench.training.checkpoints import seal
from patchbench.training.config import TrainConfig, shown_rate
from patchbench.training.data import TensorBatch

if TYPE_CHECKING:
    from patchbench.training.dynamics import Dynamics
    from patchbench.training.loop import AnswerTrainer

# (steps done, steps in all, what is known: loss, accuracy, dev_loss, dev_accuracy)
Progress = Callable[[int, int, dict[str, float]], None]

_SECONDS_BETWEEN_REPORTS = 0.2


class Diverged(RuntimeError):
    """The loss is no longer a finite number."""


def logged(state: TrainerState) -> list[dict[str, float]]:
    """Return what a watcher logged, by step."""
    return [
        {name: value for name, value in line.items() if name != "epoch"}
        for line in state.log_history
        if "dev_loss" in line
    ]


def solved(record: dict[str, float], config: TrainConfig) -> bool:
    """Return whether a logged step is good enough to stop at."""
    return config.stop_at is not None and record["dev_accuracy"] >= config.stop_at


class Watcher(TrainerCallback):
    """Logs, evaluates on dev, measures the mechanism, stops and asks for checkpoints."""

    trainer: "AnswerTrainer"

    def __init__(
        self,
        config: TrainConfig,
        rate: float,
        dev: Sequence[TensorBatch],
        dynamics: "Dynamics | None",
        progress: Progress | None,
    ) -> None:
        self.config, self._rate, self._dev = config, rate, dev
        self._dynamics, self._progress = dynamics, progress
        distances = (config.log_distance, config.checkpoint_distance, config.dynamics_distance)
        self._distances = {distance for distance in distances if distance}
        self._losses: list[Tensor] = []
        self._hits: list[Tensor] = []
        self._known: dict[str, float] = {}
        self._reported = 0.0

    def add(self, loss: Tensor, logits: Tensor, answer: Tensor) -> None:
        """Take one step's loss; on a CPU, where looking costs nothing, refuse NaN at once.

        Several processes look together later: one that left alone would be waited for.
        """
        loss = loss.detach()
        self._losses.append(loss)
        self._hits.append((logits.detach().argmax(-1) == answer).float().mean())
        alone = loss.device.type == "cpu" and self.trainer.args.world_size == 1
        if alone and not math.isfinite(loss.item()):
            self._diverge(self.trainer.state.global_step + 1, "training")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show what a resumed run had reached; take the optimiser out of accelerate's wrapper.

        The wrapper searches for an installed package in every step, which costs a tiny model a
        fifth of it. All that it adds is for scaled gradients, which float32 and bfloat16 have not.
        """
        optimizer = self.trainer.optimizer
        if isinstance(optimizer, AcceleratedOptimizer) and optimizer.scaler is None:
            self.trainer.optimizer = optimizer.optimizer
        self._known = next(iter(logged(state)[-1:]), {})
        model = self.trainer.model
        assert model is not None
        model.train()  # reading a checkpoint of LoRA leaves it in eval mode

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Evaluate, log, stop and ask for a checkpoint when it is time."""
        step = state.global_step
        last = step == state.max_steps
        if last or any(step % distance == 0 for distance in self._distances):
            self._pause(step, last, state, control)
        now = time.monotonic()
        if self._progress is not None and (last or now - self._reported > _SECONDS_BETWEEN_REPORTS):
            self._reported = now
            self._progress(step, state.max_steps, self._now())

    def _pause(self, step: int, last: bool, state: TrainerState, control: TrainerControl) -> None:
        """Do what is done every so often."""
        config = self.config
        record = self._look(step)
        ends = last or solved(record, config)
        distance = config.dynamics_distance
        due = distance and (step % distance == 0 or ends)
        if self._dynamics is not None and due and state.is_world_process_zero:
            effects = self._dynamics.measure(step, record)
            record |= {f"attrib/{site}": value for site, value in effects.items()}
        self._known = record
        self.trainer.log(dict(record))
        if step % config.checkpoint_distance == 0 or ends:
            control.should_save = True
        control.should_training_stop |= ends

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark the checkpoint that was just written."""
        if state.is_world_process_zero:
            seal(Path(cast(str, args.output_dir)) / f"checkpoint-{state.global_step}")

    def _now(self) -> dict[str, float]:
        """Return the newest of everything that is known."""
        if not self._losses:
            return self._known
        window = {"loss": self._losses[-1].item(), "accuracy": self._hits[-1].item()}
        return {**self._known, **window}

    def _look(self, step: int) -> dict[str, float]:
        """Return losses and accuracies: of training since the last look, and of dev now."""
        losses, hits = self._gathered(self._losses), self._gathered(self._hits)
        bad = torch.nonzero(~losses.isfinite().all(0))
        if len(bad):
            self._diverge(step - losses.shape[1] + int(bad[0]) + 1, "training")
        dev_loss, dev_accuracy = self._evaluate()
        if not math.isfinite(dev_loss):
            self._diverge(step, "dev")
        record = {
            "loss": losses.double().mean().item(),
            "accuracy": hits.double().mean().item(),
            "dev_loss": dev_loss,
            "dev_accuracy": dev_accuracy,
            "learning_rate": self.trainer._get_learning_rate(),
        }
        self._losses.clear()
        self._hits.clear()
        return record

    def _gathered(self, values: list[Tensor]) -> Tensor:
        """Return what every process has of each step: (processes, steps)."""
        return cast(Tensor, self.trainer.accelerator.gather(torch.stack(values)[None]))

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, float]:
        model, device = self.trainer.model, self.trainer.args.device
        assert model is not None
        model.eval()
        loss = hits = rows = 0
        for batch in self._dev:
            answer = batch["answer"].to(device)
            logits = self.trainer.predict_answers(model, batch["input_ids"].to(device))
            loss += F.cross_entropy(logits, answer, reduction="sum").double().item()
            hits += (logits.argmax(-1) == answer).sum().item()
            rows += len(answer)
        model.train()
        return loss / rows, hits / rows

    def _diverge(self, step: int, what: str) -> None:
        rate = shown_rate(self._rate)
        raise Diverged(f"the {what} loss is NaN at step {step} with learning rate {rate}")
