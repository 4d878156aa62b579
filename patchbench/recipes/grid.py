"""From variants of architectures, widths and seeds to runs, with the settings of the presets.

Use:

    runs("ar", [Variant("mamba", options={"d_conv": 2})], Choice(scale="mini", seeds=(0, 1)))

At scale "mini" a run has the preset of its architecture (`patchbench.training.presets`), at scale
"paper" the paper's own widths and learning rates, of which dev chooses one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from patchbench.common import UserError, near_names
from patchbench.demo import COMPONENTS, POSITIONS
from patchbench.recipes.config import RunConfig
from patchbench.training.config import AUTO
from patchbench.training.presets import PRESETS, TrainPreset, find_preset, records

SCALES = ("mini", "paper")
SEEDS = (0, 1, 2)
WIDTHS: Mapping[str, tuple[int, ...]] = {"mini": (64,), "paper": (16, 32, 64, 128, 256)}
EVALUATION = {"components": COMPONENTS, "positions": POSITIONS}


@dataclass(frozen=True)
class Variant:
    """An architecture, and what differs from its preset.

    Attributes:
        arch: a preset of `patchbench.adapters`.
        layers: number of layers; the architecture's own when None.
        options: of the mixers or of the model.
        label: for the runs' names.
    """

    arch: str
    layers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


class Chosen(TypedDict, total=False):
    """The keywords of a recipe: the fields of `Choice`."""

    scale: str
    archs: Sequence[str] | None
    widths: Sequence[int] | None
    rates: Sequence[float] | None
    seeds: Sequence[int]
    training: Mapping[str, Any]
    overrides: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What whoever runs a recipe chooses.

    Attributes:
        scale: "mini" or "paper".
        archs: of the recipe's architectures, those to run; all when None.
        widths: of the residual stream; the scale's own when None.
        rates: learning rates; of several, dev chooses; the presets' own when None.
        seeds: of weights, data and task.
        training: further fields of `TrainConfig`.
        overrides: of the task's config.
    """

    scale: str = "mini"
    archs: Sequence[str] | None = None
    widths: Sequence[int] | None = None
    rates: Sequence[float] | None = None
    seeds: Sequence[int] = SEEDS
    training: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UserError(f"unknown scale {self.scale!r}", near_names(self.scale, SCALES))
        for name in ("lr", "lr_grid", "seed"):
            if name in self.training:
                raise UserError(f"{name} is not a setting of a single run", "give rates and seeds")


def runs(
    task: str,
    variants: Sequence[Variant],
    choice: Choice,
    *,
    overrides: Mapping[str, Any] | None = None,
    mini: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> list[RunConfig]:
    """Return the runs on one task: all variants and widths with the first seed, then the next.

    Args:
        task: "ar" or "atr", or a variant.
        variants: of architectures.
        choice: of the user.
        overrides: of the task's config, at both scales.
        mini: of the task's config, at scale "mini" alone.
        prefix: of the runs' names.

    Raises:
        UserError: an architecture that is not among the variants.
    """
    known = {variant.arch for variant in variants}
    for arch in choice.archs or ():
        if arch not in known:
            raise UserError(f"the recipe has no architecture {arch!r}", near_names(arch, known))
    changes = {
        **(overrides or {}),
        **((mini or {}) if choice.scale == "mini" else {}),
        **choice.overrides,
    }
    return [
        _run(task, variant, width, seed, choice, changes, prefix)
        for seed in choice.seeds
        for variant in variants
        if choice.archs is None or variant.arch in choice.archs
        for width in choice.widths or WIDTHS[choice.scale]
    ]


def _run(
    task: str,
    variant: Variant,
    width: int,
    seed: int,
    choice: Choice,
    overrides: Mapping[str, Any],
    prefix: str,
) -> RunConfig:
    own = _preset(task, variant.arch, choice.scale)
    model: dict[str, Any] = {"width": width, "options": dict(variant.options)}
    if variant.layers is not None:
        model["layers"] = variant.layers
    rates = [float(rate) for rate in choice.rates or ()]
    training = dict(choice.training)
    if rates:
        training |= {"lr": rates[0]} if len(rates) == 1 else {"lr": AUTO, "lr_grid": rates}
    preset = own.changed(model=model, settings=training, overrides=overrides)
    group = f"{prefix}{variant.label or variant.arch}-w{width}"
    return RunConfig(
        name=f"{group}-s{seed}",
        group=group,
        model={"arch": variant.arch, **preset.model},
        task=preset.task,
        overrides=preset.overrides,
        task_seed=seed,
        training={**preset.settings, "seed": seed},
        evaluation=EVALUATION,
        estimate=_seconds(preset, choice.scale, seed),
    )


def _preset(task: str, arch: str, scale: str) -> TrainPreset:
    """Return the preset of an architecture on a task.

    Where an architecture has none on ATR it takes its learning rate and its model from AR, and the
    rest from what all the others share on ATR.
    """
    family, _, variant = task.partition("/")
    by_arch = PRESETS[family, scale]
    if arch in by_arch:
        found = find_preset(scale, arch, family)
    else:
        of_ar, shared = find_preset(scale, arch, "ar"), by_arch["mamba"]
        found = replace(
            shared,
            arch=arch,
            model=of_ar.model,
            settings={**shared.settings, "lr": of_ar.settings["lr"]},
            solves=None,
        )
    # The family's own settings stay: they bound the documents' length.
    return replace(found, task=task) if variant else found


def _seconds(preset: TrainPreset, scale: str, seed: int) -> float | None:
    """Return the CPU seconds that a preset took with this seed, or on average with others."""
    family = preset.task.partition("/")[0]
    original = PRESETS[family, scale].get(preset.arch)
    if original is None or preset != original.changed(model={}, settings={}, overrides={}):
        return None
    key = family, scale, preset.arch
    took = {
        run["seed"]: float(run["cpu_seconds"])
        for run in records()
        if (run["family"], run["preset"], run["arch"]) == key
    }
    return took.get(seed, sum(took.values()) / len(took)) if took else None
