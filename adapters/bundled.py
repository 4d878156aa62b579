"""The small trained models that come with the package, by name: `patchbench/ar-mamba`.

Use:

    for model in bundled_models(): print(model.name, model.task)
    load_model("patchbench/ar-mamba")

Each is the folder of a training, below `weights/`: config.json, model.safetensors, its Result, and
training.json with the command and the configuration. `examples/train_presets.py` makes them.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from patchbench.common import UserError, near_names

PREFIX = "patchbench/"
WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True, kw_only=True)
class BundledModel:
    """One of them.

    Attributes:
        name: as `load_model` takes it.
        folder: where it is.
        task: name, seed and config of the task that it was trained on.
        command: that trained it.
    """

    name: str
    folder: Path
    task: dict[str, Any]
    command: str | None


@cache
def bundled_models() -> tuple[BundledModel, ...]:
    """Return every bundled model, by name."""
    found = []
    for file in sorted(WEIGHTS.glob("*/training.json")):
        training = json.loads(file.read_text(encoding="utf-8"))
        found.append(
            BundledModel(
                name=PREFIX + file.parent.name,
                folder=file.parent,
                task=training["config"]["task"],
                command=training["command"],
            )
        )
    return tuple(found)


def find_bundled(name: str) -> BundledModel | None:
    """Return the bundled model of that name; None for a name that stands for something else.

    Raises:
        UserError: the name is one of ours, and there is none.
    """
    if not name.startswith(PREFIX):
        return None
    by_name = {model.name: model for model in bundled_models()}
    if name not in by_name:
        raise UserError(f"no model {name!r} comes with patchbench", near_names(name, by_name))
    return by_name[name]
