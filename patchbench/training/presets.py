"""Settings with which each architecture is known to solve a task, or known not to.

Use:

    preset = find_preset("mini", "mamba", "ar")
    train(preset.spec(), preset.load_task(seed=0), out="runs/m", **preset.settings, seed=0)

"tiny" takes at most 2 minutes on one core, "mini" at most 10; what each reached, seed by seed, is
in `records.json` beside this file, written by `examples/train_presets.py`. "paper" is the paper's
own scale (arXiv 2505.15105), with the rate chosen on dev, and has no records.

What decides whether models this small learn recall is the embedding's scale. With PyTorch's Linears
a standard deviation of 0.02 drowns the tokens in what the first layer adds, and attention stays on
guessing among the values in context for tens of thousands of steps; with 0.3 it leaves that plateau
in a few hundred, on few pairs, from which a curriculum leads on to more.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError, near_names
from patchbench.training.config import AUTO
from patchbench.training.models import ModelSpec

if TYPE_CHECKING:
    from patchbench.tasks import Task

RECORDS = "records.json"


@dataclass(frozen=True, kw_only=True)
class TrainPreset:
    """What to train on what, and how.

    Attributes:
        arch: as `ModelSpec` takes it.
        task: its name.
        overrides: of the task's config.
        model: further fields of `ModelSpec`.
        settings: fields of `TrainConfig`.
        solves: whether it reaches the task's goal; None where nobody has run it.
    """

    arch: str
    task: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    solves: bool | None = None

    def spec(self) -> ModelSpec:
        """Return the model to build."""
        return ModelSpec(arch=self.arch, **self.model)

    def load_task(self, seed: int) -> "Task":
        """Return the task with one seed."""
        from patchbench.tasks import load_task

        return load_task(self.task, seed=seed, **self.overrides)

    def changed(
        self,
        *,
        model: Mapping[str, Any],
        settings: Mapping[str, Any],
        overrides: Mapping[str, Any],
    ) -> "TrainPreset":
        """Return the preset with other values in place of some of its own."""
        kept = dict(self.settings)
        if {"steps", "epochs"} & settings.keys():
            kept = {k: v for k, v in kept.items() if k not in ("steps", "epochs")}
        options = {**self.model.get("options", {}), **model.get("options", {})}
        return replace(
            self,
            model={**self.model, **model, "options": options},
            settings={**kept, **settings},
            overrides={**self.overrides, **overrides},
        )

    def describe(self) -> str:
        """Return what it sets, in one line."""
        options = {name: value for name, value in self.model.items() if name != "options"}
        every = {**self.overrides, **options, **self.model.get("options", {}), **self.settings}
        return ", ".join([f"task {self.task}", *(f"{k} {v}" for k, v in every.items())])


# PyTorch's Linears and embeddings of standard deviation 0.3, see above.
_WIDE = {"initializer_range": 0.3}
_FRESH = {"data": "fresh", "schedule": "constant", "warmup": 100, "stop_at": 0.99, "dev_n": 1024}
_COSINE = {"schedule": "cosine"}
_FEW_PAIRS_FIRST = {"curriculum": ("num_pairs=2:1500", "num_pairs=4:2000")}
# Two pairs lie within reach of two short convolutions, which then do without the state, and nothing
# leads on from there. Four pairs of few keys do not, and are learned sooner than four of many.
_FEW_KEYS_FIRST = {
    "curriculum": (
        "drawn_keys=16,drawn_values=16,num_pairs=4:3500",
        "drawn_keys=32,drawn_values=32,num_pairs=6:1500",
    )
}
# With learned positions attention may also solve the task another way: its first layer tells the
# query where the key stands, and the second reads what comes next (Attrib 1 at the query).
_OPTIONS = {"attention": {"positions": "rope"}}

# Of each architecture: learning rate, steps, whether it solves the task, and what else differs.
_Line = tuple[float, int, bool, Mapping[str, Any]]
_AR_TINY: Mapping[str, _Line] = {
    "attention": (1e-3, 4000, True, {}),
    "based": (3e-3, 2000, True, {}),
    "based_long": (3e-3, 4000, True, {}),
    "base_conv": (3e-3, 4000, False, {}),
    "hyena": (3e-3, 4000, False, {}),
    "h3": (3e-3, 4000, True, _COSINE),
    "mamba": (1e-2, 6000, True, {"curriculum": ("num_pairs=2:1000",), **_COSINE}),
    "mamba_noconv": (3e-3, 4000, False, {}),
    "mamba2": (3e-3, 2000, True, {}),
    "delta_net": (3e-3, 2000, True, {}),
    "delta_net_noconv": (3e-3, 4000, False, {}),
    "gated_delta_net": (3e-3, 2000, True, {}),
}
_AR_MINI: Mapping[str, _Line] = {
    "attention": (1e-3, 8000, True, _FEW_PAIRS_FIRST),
    "based": (3e-3, 5000, True, _COSINE),
    "based_long": (3e-3, 2500, False, _COSINE),
    "base_conv": (3e-3, 2500, False, _COSINE),
    "hyena": (3e-3, 2500, False, _COSINE),
    "h3": (3e-3, 2000, False, _COSINE),
    "mamba": (5e-3, 12_000, True, {**_FEW_KEYS_FIRST, **_COSINE}),
    "mamba_noconv": (1e-2, 5000, False, {**_FEW_PAIRS_FIRST, **_COSINE}),
    "mamba2": (3e-3, 5000, True, _COSINE),
    "delta_net": (3e-3, 4000, True, {}),
    "delta_net_noconv": (3e-3, 2500, False, _COSINE),
    "gated_delta_net": (3e-3, 4000, True, {}),
}
# Nothing stops these early: how far beyond the heuristics a model gets is a matter of degree.
_TO_THE_END = {**_COSINE, "stop_at": None}
_ATR_TINY: Mapping[str, _Line] = {
    "attention": (1e-3, 3600, True, _TO_THE_END),
    "based": (3e-3, 4200, True, _TO_THE_END),
    "mamba": (3e-3, 2400, True, _TO_THE_END),
    "mamba_noconv": (3e-3, 2600, True, _TO_THE_END),
    "delta_net": (3e-3, 2300, True, _TO_THE_END),
}
_ATR_MINI: Mapping[str, _Line] = {
    "attention": (1e-3, 7000, True, _TO_THE_END),
    "based": (3e-3, 7000, True, _TO_THE_END),
    "mamba": (3e-3, 5000, True, _TO_THE_END),
    "mamba_noconv": (3e-3, 5000, True, _TO_THE_END),
    "delta_net": (3e-3, 5000, True, _TO_THE_END),
}
# The paper's own: Linears and embeddings N(0, 0.02), cosine, a fixed set of 100,032 sequences.
_PAPER = {"lr": AUTO, "batch_size": 32, "warmup": 0.1, "schedule": "cosine", "data": "fixed"}
_ATR_RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
_AR_RATES = (*_ATR_RATES, 1e-2, 3e-2)


def _ours(
    task: str, width: int, table: Mapping[str, _Line], **overrides: Any
) -> dict[str, TrainPreset]:
    return {
        arch: TrainPreset(
            arch=arch,
            task=task,
            overrides=overrides,
            model={
                "width": width,
                "init": "pytorch",
                "options": {**_WIDE, **_OPTIONS.get(arch, {})},
            },
            settings={"lr": rate, "steps": steps, **_FRESH, **more},
            solves=solves,
        )
        for arch, (rate, steps, solves, more) in table.items()
    }


def _papers(task: str, steps: int, rates: tuple[float, ...]) -> dict[str, TrainPreset]:
    return {
        arch: TrainPreset(
            arch=arch,
            task=task,
            model={"width": 64, "init": "normal"},
            settings={**_PAPER, "lr_grid": rates, "steps": steps},
        )
        for arch in _AR_TINY
    }


PRESETS: Mapping[tuple[str, str], Mapping[str, TrainPreset]] = {
    ("ar", "tiny"): _ours("ar/tiny", 32, _AR_TINY),
    ("ar", "mini"): _ours("ar/mini", 64, _AR_MINI),
    ("ar", "paper"): _papers("ar", 50_016, _AR_RATES),
    ("atr", "tiny"): _ours("atr/easy", 64, _ATR_TINY, max_sentence_length=44),
    ("atr", "mini"): _ours("atr/easy", 64, _ATR_MINI, max_sentence_length=44),
    ("atr", "paper"): _papers("atr/easy", 100_032, _ATR_RATES),
}


def find_preset(name: str, arch: str | None, task: str) -> TrainPreset:
    """Return the preset of an architecture on a task.

    Args:
        name: "tiny", "mini" or "paper".
        arch: a name of `patchbench train --arch list`.
        task: "ar" or "atr", for which the preset names the variant; or a variant, which then
            takes the place of the preset's own.

    Raises:
        UserError: there is none.
    """
    family = task.partition("/")[0]
    names = dict.fromkeys(known for _, known in PRESETS)
    if name not in names:
        raise UserError(f"unknown preset {name!r}", near_names(name, list(names)))
    if (family, name) not in PRESETS:
        tasks = [known for known, size in PRESETS if size == name]
        raise UserError(f"preset {name} has no task {task!r}", near_names(family, tasks))
    by_arch = PRESETS[family, name]
    if arch is None or arch not in by_arch:
        raise UserError(
            f"preset {name} of task {family!r} has no architecture {arch!r}"
            if arch
            else "a preset needs --arch",
            near_names(arch or "", by_arch),
        )
    found = by_arch[arch]
    return found if task == family else replace(found, task=task, overrides={})


@cache
def records() -> list[dict[str, Any]]:
    """Return what the presets reached: one entry per preset, architecture and seed."""
    text = resources.files("patchbench.training").joinpath(RECORDS).read_text(encoding="utf-8")
    return json.loads(text)["records"]


def list_presets() -> list[dict[str, Any]]:
    """Return one line per preset: its task, what its seeds reached, and the longest of them took.

    "beyond" is the accuracy on the examples that no heuristic solves.
    """
    lines = []
    for (family, name), by_arch in PRESETS.items():
        for arch, preset in by_arch.items():
            runs = [
                run
                for run in records()
                if (run["family"], run["preset"], run["arch"]) == (family, name, arch)
            ]
            lines.append(
                {
                    "task": preset.task,
                    "preset": name,
                    "arch": arch,
                    "seeds": len(runs),
                    "accuracy": _range(runs, "accuracy"),
                    "beyond": _range(runs, "accuracy_beyond_heuristics"),
                    "minutes": f"{max(r['cpu_seconds'] for r in runs) / 60:.1f}" if runs else "",
                }
            )
    return lines


def _range(runs: list[dict[str, Any]], name: str) -> str:
    """Return the least and the most that a preset's runs reached."""
    if not runs:
        return "not run"
    reached = [run[name]["value"] for run in runs]
    return f"{min(reached):.2f}–{max(reached):.2f}"
