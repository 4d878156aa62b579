"""The demo: every bundled model on the task that it was trained on.

Use:

    results = demo(n=256)
    results["ar-mamba"].attrib("L1.block_input@value")

The models recall about equally well and do it by different mechanisms.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError
from patchbench.common.files import fresh_directory
from patchbench.evaluation import evaluate

if TYPE_CHECKING:
    from patchbench.adapters.bundled import BundledModel
    from patchbench.partial import Partial
    from patchbench.results import Result
    from patchbench.tasks import Task

# The residual stream, and where a short convolution binds; the latter in models that have one.
COMPONENTS = ("block_input", "conv_output")
# A convolution of width 4 reaches the key from two tokens after its value.
POSITIONS = ("key", "value", "value+1", "value+2", "query")

# (models done, models in all)
Progress = Callable[[int, int], None]


def bundled_task(name: str, /, **overrides: Any) -> "Task":
    """Return the task that a bundled model was trained on.

    Args:
        name: of the model, as in "patchbench/ar-mamba".
        **overrides: other settings of the task's config.

    Raises:
        UserError: it is no bundled model, so that its task is not known.
    """
    from patchbench.adapters.bundled import find_bundled

    model = find_bundled(name)
    if model is None:
        raise UserError("--task is missing", "name one: `patchbench tasks` lists them")
    return _task(model, **overrides)


def demo(
    *, progress: Progress | None = None, partial: "Partial | None" = None, **settings: Any
) -> "dict[str, Result]":
    """Evaluate every bundled model on its own task.

    Args:
        progress: called before the first and after each model.
        partial: see `evaluate`; it gets a child for each model.
        **settings: of `evaluate`; `COMPONENTS`, where a model has them, and `POSITIONS` unless
            others are given.

    Returns:
        The Results by the models' short names, as in "ar-mamba".

    Raises:
        UserError: a setting does not exist or does not fit one of the models.
    """
    from patchbench.adapters import load_model
    from patchbench.adapters.bundled import bundled_models

    results: dict[str, Result] = {}
    models = bundled_models()
    for model in models:
        if progress is not None:
            progress(len(results), len(models))
        loaded = load_model(model.name, device="cpu")
        there = {component for _, component in loaded.hook_map.points}
        own: dict[str, Any] = {
            "components": [name for name in COMPONENTS if name in there],
            "positions": POSITIONS,
        }
        name = model.folder.name
        parts = None if partial is None else partial.child(name)
        results[name] = evaluate(loaded, _task(model), partial=parts, **{**own, **settings})
    return results


def save(
    results: "Mapping[str, Result]",
    directory: Path,
    *,
    overwrite: bool = False,
    report: bool = False,
) -> None:
    """Write one folder per Result below `directory`, all or none; see `Result.save`.

    Raises:
        UserError: it exists and `overwrite` is false, or it cannot be written.
    """
    with fresh_directory(directory, overwrite=overwrite) as temporary:
        for name, result in results.items():
            result.save(temporary / name, report=report)


def _task(model: "BundledModel", **overrides: Any) -> "Task":
    from patchbench.tasks import load_task

    task = model.task
    return load_task(task["name"], seed=task["seed"], **{**task["config"], **overrides})
