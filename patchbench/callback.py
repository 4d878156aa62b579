"""The mechanism during somebody's training: accuracy, Attrib and verdict, every so many steps.

Use, with transformers' Trainer (what is measured goes to the Trainer's own loggers):

    Trainer(model, args, …, callbacks=[MechanisticCallback("ar", every=1000)])

or in a loop of one's own:

    watch = MechanisticCallback("ar", every=1000, max_seconds=600)
    for step, batch in enumerate(batches, 1):
        ...
        scalars = watch(model, step)       # {} but for every 1000th step

The training ends, bit for bit, as it would without: modes, gradients, random states and the modules
themselves are as before when a measurement is over.
"""

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from patchbench.common import UserError
from patchbench.common.errors import ControlError
from patchbench.common.random_state import random_state_kept
from patchbench.evaluation import evaluate
from patchbench.evaluation_config import EvaluateConfig
from patchbench.preparation import prepare
from patchbench.tracking_content import scalars

if TYPE_CHECKING:
    from torch import nn

    from patchbench.adapters import HookMap
    from patchbench.results import Result
    from patchbench.tasks import Task

PREFIX = "mechanism/"
# Fewer than of an evaluation that stands alone: a curve has many points.
_DEFAULTS: Mapping[str, Any] = {"n": 64, "split": "dev", "resamples": 500}


class MechanisticCallback(TrainerCallback):
    """Measures the model that is being trained.

    Attributes:
        results: step → the Result of each measurement.
        spent: seconds that all measurements took.

    Args:
        task: a task's name, or what `load_task` returned.
        every: steps between measurements.
        max_seconds: of all measurements together. None begins that would, by the last one's time,
            go beyond; one under way is given up after the batch in which it does.
        tokenizer: for a task in words; by default the Trainer's, if it has one.
        hook_map: where the model's components are, where neither table nor inspection knows.
        **settings: further settings of `evaluate`, as in components, layers, positions, n.

    Raises:
        UserError: a setting that cannot be.
    """

    def __init__(
        self,
        task: "str | Task",
        *,
        every: int,
        max_seconds: float | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        hook_map: "HookMap | None" = None,
        **settings: Any,
    ) -> None:
        from patchbench.tasks import load_task

        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UserError(f"every={every!r}", "an integer of at least 1 is needed")
        if max_seconds is not None and not max_seconds > 0:
            raise UserError(f"max_seconds={max_seconds!r}", "a number above 0 is needed")
        self._task = load_task(task) if isinstance(task, str) else task
        self._settings = {**_DEFAULTS, **settings}
        EvaluateConfig.of(self._settings)
        self._every, self._max_seconds = every, max_seconds
        self._tokenizer, self._hook_map = tokenizer, hook_map
        self._last, self._over = 0.0, False
        self.results: dict[int, Result] = {}
        self.spent = 0.0

    def __call__(self, model: PreTrainedModel, step: int) -> dict[str, float | str]:
        """Measure if it is time, and return the scalars by name.

        Args:
            model: as it is trained.
            step: optimiser steps so far.
        """
        if step < 1 or step % self._every or self._over:
            return {}
        if self._max_seconds is not None and self.spent + self._last >= self._max_seconds:
            return self._stop(step)
        started = time.monotonic()
        try:
            result = self._measure(model, started)
        except _TimeIsUpError:
            self.spent += time.monotonic() - started
            return self._stop(step)
        except (UserError, ControlError) as error:  # the training is worth more than a point of it
            self.spent += time.monotonic() - started
            warnings.warn(f"nothing is measured at step {step}: {error}", stacklevel=2)
            return {}
        self._last = time.monotonic() - started
        self.spent += self._last
        self.results[step] = result
        return {PREFIX + name: value for name, value in scalars(result).items()}

    def _measure(self, model: PreTrainedModel, started: float) -> "Result":
        limit = None if self._max_seconds is None else self._max_seconds - self.spent

        def stop_in_time(done: int, total: int) -> None:
            if limit is not None and done < total and time.monotonic() - started > limit:
                raise _TimeIsUpError

        # The engine agrees with the reference on the first measurement, and is trusted later.
        settings = {"selfcheck": not self.results, **self._settings}
        with _left_as_it_is(model):
            return evaluate(self._load(model), self._task, progress=stop_in_time, **settings)

    def _load(self, model: PreTrainedModel) -> Any:
        from patchbench.adapters import load_model

        return load_model(model, dtype="auto", tokenizer=self._tokenizer, hook_map=self._hook_map)

    def _stop(self, step: int) -> dict[str, float | str]:
        self._over = True
        warnings.warn(
            f"{self.spent:.1f} of {self._max_seconds} seconds are spent: nothing is measured from "
            f"step {step} on",
            stacklevel=3,
        )
        return {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check, before the first step, that everything that is asked for can be measured.

        Raises:
            UserError: it cannot.
        """
        self._trainer = _trainer_that_calls(self)
        words = kwargs.get("processing_class")
        if self._tokenizer is None and isinstance(words, PreTrainedTokenizerBase):
            self._tokenizer = words
        if state.is_world_process_zero:
            model: PreTrainedModel = kwargs["model"]
            with _left_as_it_is(model):
                prepare(self._load(model), self._task, EvaluateConfig.of(self._settings))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure and log if it is time."""
        if not state.is_world_process_zero:
            return
        found = self(kwargs["model"], state.global_step)
        if found:
            # A line in the log counts as the one that was due: the loss is still to be logged.
            due = control.should_log
            self._trainer.log(found)  # pyright: ignore[reportArgumentType]
            control.should_log = due


class _TimeIsUpError(Exception):
    """A measurement took longer than it may."""


@contextmanager
def _left_as_it_is(model: "nn.Module") -> Iterator[None]:
    """Give a model's modules, modes, gradients and all random states back."""
    from patchbench.adapters.twins import put_back

    modes = {module: module.training for module in model.modules()}
    parameters = {p: (p.requires_grad, p.grad) for p in model.parameters()}
    for parameter in parameters:
        parameter.grad = None  # a backward would add to what is there
    try:
        with random_state_kept(), put_back(model):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for parameter, (wanted, gradient) in parameters.items():
            parameter.requires_grad_(wanted)
            parameter.grad = gradient


def _trainer_that_calls(callback: TrainerCallback) -> Trainer:
    """Return the Trainer in whose training this is run.

    A callback is told everything but its Trainer, which alone can log: it is looked for among the
    functions that are being run.
    """
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back
    raise UserError("no Trainer calls this callback", "pass it in Trainer's callbacks")
