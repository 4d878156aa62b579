"""How a model is trained: the settings, checked, and what is derived from them.

Use:

    config = TrainConfig.of({"steps": 2000, "lr": 3e-3, "data": "fresh", "stop_at": 0.99})
    config.total_steps, config.log_every, config.rates
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from patchbench.adapters.settings import LISTED, check_types, fits
from patchbench.common import UserError, near_names
from patchbench.evaluation_config import TEMPLATE_NAMES

SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
DATA = ("fixed", "fresh")
PRECISIONS = ("float32", "bfloat16")
AUTO = "auto"
# What does not fit into memory, or what the Result would refuse when all is trained.
_MOST = {
    "steps": 1_000_000_000,
    "batch_size": 100_000,
    "train_n": 10_000_000,
    "dev_n": 100_000,
    "test_n": 100_000,
    "dynamics_n": 10_000,  # each row goes through the model once per site, many times in a run
    "seed": 2**32 - 1,  # the largest that numpy takes
}
# Evaluations and mechanism measurements in a run, where their distance is not given.
_EVALUATIONS, _MEASUREMENTS = 40, 20


def shown_rate(rate: float) -> str:
    """Return a learning rate in short, in full where another rate would look alike."""
    short = f"{rate:g}"
    return short if float(short) == rate else repr(rate)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run; the defaults are the paper's (arXiv 2505.15105).

    Attributes:
        steps: optimiser steps; or `epochs`.
        epochs: passes over a fixed training set.
        batch_size: examples per step, all of one length.
        lr: the largest learning rate; "auto" trains with each of `lr_grid` and keeps the model
            with the lowest dev loss.
        warmup: linear warm-up, as a share of the steps below 1, else in steps.
        schedule: "constant", "linear" or "cosine" (both down to 0) after the warm-up.
        data: "fixed": the first `train_n` rows of train, in another order each epoch; "fresh": new
            rows in every step. Both depend on nothing but the seeds.
        train_n: rows of the fixed set.
        curriculum: easier tasks to begin with, as in ("num_pairs=2:1500", "num_pairs=4:2000"):
            other values in the task's config, and for how many of the steps.
        dev_n: rows of dev, on which training is watched, stopped, and its rate chosen.
        test_n: rows of test, for the final Result.
        stop_at: dev accuracy at which training stops.
        log_every: steps between logged losses and dev evaluations; a fortieth of all when None.
        checkpoint_every: steps between checkpoints; `log_every` when None.
        dynamics_every: steps between measurements of the mechanism; 0 for none; about a twentieth
            of all when None. At each, and at each checkpoint, losses are logged as well.
        dynamics_n: dev rows that they use.
        dynamics_components: components that they patch, in all layers.
        clip: largest norm of the gradient; 0 for any.
        weight_decay: of AdamW, not on norms and biases.
        precision: "float32", or "bfloat16" for automatic mixed precision.
        template: how a model with a tokenizer gets the task in words, as of `EvaluateConfig`.
        lora: rank of changes that are trained in place of the weights; None trains the weights.
        patch_layers: that the Results and the dynamics patch; None for all.
        seed: of the initial weights and of the data's order. The task has its own.
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 32
    lr: float | str = 1e-3
    lr_grid: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2)
    warmup: float = 0.1
    schedule: str = "cosine"
    data: str = "fixed"
    train_n: int = 100_032
    curriculum: tuple[str, ...] = ()
    dev_n: int = 512
    test_n: int = 1024
    stop_at: float | None = None
    log_every: int | None = None
    checkpoint_every: int | None = None
    dynamics_every: int | None = None
    dynamics_n: int = 64
    dynamics_components: tuple[str, ...] = ("block_input",)
    clip: float = 1.0
    weight_decay: float = 0.0
    precision: str = "float32"
    template: str = "auto"
    lora: int | None = None
    patch_layers: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_types("", TrainConfig, vars(self))
        for name, kind in (
            ("lr_grid", float), ("curriculum", str), ("dynamics_components", str),
            ("patch_layers", int),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name == "patch_layers":
                continue
            if not isinstance(value, tuple) or not all(fits(item, kind) for item in value):
                raise UserError(f"{name} is {value!r}", f"give a list of {LISTED[kind]}")
        for name, least in (
            ("steps", 1), ("batch_size", 1), ("train_n", 1), ("dev_n", 1), ("test_n", 1),
            ("log_every", 1), ("checkpoint_every", 1), ("dynamics_every", 0), ("dynamics_n", 2),
            ("lora", 1), ("seed", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None:
                continue
            if value < least:
                raise UserError(f"{name}={value!r}", f"an integer of at least {least} is needed")
            if value > _MOST.get(name, value):
                raise UserError(f"{name}={value}", f"at most {_MOST[name]:,} are possible")
        for name in ("warmup", "clip", "weight_decay"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}", "a number of at least 0 is needed")
        for name, known in (
            ("schedule", SCHEDULES), ("data", DATA), ("precision", PRECISIONS),
            ("template", TEMPLATE_NAMES),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise UserError(
                    f"unknown {name} {getattr(self, name)!r}",
                    near_names(str(getattr(self, name)), known),
                )
        if self.stop_at is not None and not 0 < self.stop_at <= 1:
            raise UserError(f"stop_at={self.stop_at}", "an accuracy above 0 and up to 1 is needed")
        if self.data == "fixed" and self.batch_size > self.train_n:
            raise UserError(
                f"batch_size={self.batch_size} is more than train_n={self.train_n}",
                "take smaller batches, or more rows",
            )
        self._check_rates()
        self._check_length()
        if self.dynamics_distance and not self.dynamics_components:
            raise UserError("dynamics_components names none", "name one, or take dynamics_every=0")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "TrainConfig":
        """Build from keywords, any sequence for a tuple; an unknown name is a `UserError`."""
        known = {field.name for field in fields(cls)}
        for name in settings:
            if name not in known:
                raise UserError(f"unknown setting {name!r} of train", near_names(name, known))
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list | range) else value
            for name, value in settings.items()
        }
        return cls(**values)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of a run that is not stopped."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, int(self.epochs * self.train_n) // self.batch_size)

    @property
    def warmup_steps(self) -> int:
        """Optimiser steps of the warm-up."""
        return int(self.warmup * self.total_steps if self.warmup < 1 else self.warmup)

    @property
    def stages(self) -> list[tuple[dict[str, str], int]]:
        """What changes in the task's config, and for how many steps; the task itself comes last."""
        easier = [_stage(text) for text in self.curriculum]
        return [*easier, ({}, self.total_steps - sum(steps for _, steps in easier))]

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates to train with."""
        return self.lr_grid if self.lr == AUTO else (float(self.lr),)

    @property
    def log_distance(self) -> int:
        """Steps between evaluations."""
        return self.log_every or max(1, self.total_steps // _EVALUATIONS)

    @property
    def checkpoint_distance(self) -> int:
        """Steps between checkpoints."""
        return self.checkpoint_every or self.log_distance

    @property
    def dynamics_distance(self) -> int:
        """Steps between measurements of the mechanism; 0 for none."""
        if self.dynamics_every is not None:
            return self.dynamics_every
        return self.log_distance * max(1, self.total_steps // (self.log_distance * _MEASUREMENTS))

    def _check_rates(self) -> None:
        if isinstance(self.lr, str) and self.lr != AUTO:
            raise UserError(f"lr={self.lr!r}", "a number or auto is needed")
        if not self.lr_grid or len(set(self.lr_grid)) != len(self.lr_grid):
            raise UserError(f"lr_grid={list(self.lr_grid)}", "different rates are needed")
        for rate in (*self.lr_grid, *self.rates):
            if not 0 < rate < inf:
                raise UserError(f"learning rate {rate}", "a number above 0 is needed")

    def _check_length(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise UserError(
                "the length of the training is not clear", "give either steps or epochs"
            )
        if self.epochs is not None:
            if not 0 < self.epochs < inf:
                raise UserError(f"epochs={self.epochs}", "a number above 0 is needed")
            if self.data == "fresh":
                raise UserError("fresh data have no epochs", "give steps, or use fixed data")
            if self.epochs * self.train_n > _MOST["steps"] * self.batch_size:
                raise UserError(
                    f"epochs={self.epochs}", f"at most {_MOST['steps']:,} steps are possible"
                )
        if self.stages[-1][1] < 1:
            raise UserError(
                f"curriculum {list(self.curriculum)} leaves no step of {self.total_steps}",
                "give more --steps",
            )
        if self.warmup_steps and self.warmup_steps >= self.total_steps:
            raise UserError(
                f"warmup={self.warmup:g} leaves no step of {self.total_steps} at the full rate",
                "give a shorter --warmup (below 1 it is a share of the steps), or more --steps",
            )


def _stage(text: str) -> tuple[dict[str, str], int]:
    """Parse "NAME=VALUE:STEPS", or several "NAME=VALUE" by comma."""
    changes, colon, steps = text.rpartition(":")
    pairs = [pair.partition("=") for pair in changes.split(",")]
    if not colon or not steps.isdecimal() or int(steps) < 1 or not all(eq for _, eq, _ in pairs):
        raise UserError(
            f"curriculum {text!r} is not NAME=VALUE:STEPS", "for example num_pairs=2:1500"
        )
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if len(found) < len(pairs):
        raise UserError(f"curriculum {text!r} sets a name twice", "set each name once")
    if found.keys() & {"name", "seed"}:
        raise UserError(f"curriculum {text!r}", "a stage changes the task's settings alone")
    return found, int(steps)
