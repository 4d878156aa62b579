"""What a Result is read against: the same model untrained, and the pairs that training may ask.

Use:

    result = evaluate(model, "ar/held_out", held_out=True, untrained_twin=True)
    result.summary["held_out"]["accuracy"]              # see `patchbench.held_out`
    result.beside["dev"], result.beside["untrained"]    # Results themselves

An untrained twin has the config, the dtype and the places to patch, and fresh weights: an effect
that it shows as well comes from the architecture or from the measurement, not from learning.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from patchbench import held_out
from patchbench.evaluation_config import EvaluateConfig
from patchbench.result_file import DEV, UNTRAINED

if TYPE_CHECKING:
    from patchbench.adapters import LoadedModel
    from patchbench.partial import Partial
    from patchbench.planning import Plan
    from patchbench.results import Result
    from patchbench.tasks import Task

_ASKED = ("held_out", "untrained_twin")


def evaluate_beside(
    model: "str | LoadedModel",
    task: "str | Task",
    config: EvaluateConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    command: str | None = None,
    partial: "Partial | None" = None,
) -> "Result":
    """Return the Result with those that were asked for beside it; see `evaluation.evaluate`."""
    from patchbench.evaluation import evaluate

    loaded, task = _loaded(model, task)
    recorded = config.held_out and held_out.check(loaded, task, split=config.split)
    plain = {**asdict(config), **dict.fromkeys(_ASKED, False)}

    def run(which: "LoadedModel", parts: "Partial | None", **changes: Any) -> "Result":
        return evaluate(
            which, task, progress=progress, command=command, partial=parts, **{**plain, **changes}
        )

    def child(name: str) -> "Partial | None":
        return None if partial is None else partial.child(name)

    result = run(loaded, partial)
    asked = {name: getattr(config, name) for name in _ASKED}
    result = replace(result, config={**result.config, **asked})
    if config.untrained_twin:
        twin = run(untrained(loaded, config.seed), child(UNTRAINED))
        result = with_untrained(result, twin, config.seed)
    if config.held_out:
        dev = run(loaded, child(DEV), split=DEV)
        result = held_out.with_dev(result, dev, recorded=recorded)
    return result


def plan_beside(model: "str | LoadedModel", task: "str | Task", config: EvaluateConfig) -> "Plan":
    """Return what all of `evaluate_beside` would take; see `planning.plan`."""
    from patchbench.planning import plan

    loaded, task = _loaded(model, task)
    plain = {**asdict(config), **dict.fromkeys(_ASKED, False)}
    if config.held_out:
        held_out.check(loaded, task, split=config.split)
    main = plan(loaded, task, **plain)
    runs = {config.split: main}
    if config.untrained_twin:
        # As much again, with the weights twice.
        runs["the untrained twin"] = replace(main, peak_bytes=main.peak_bytes + main.weights_bytes)
    if config.held_out:
        runs[DEV] = plan(loaded, task, **{**plain, "split": DEV})
    every = list(runs.values())
    return replace(
        main,
        rows=sum(one.rows for one in every),
        forwards=sum(one.forwards for one in every),
        forward_rows=sum(one.forward_rows for one in every),
        tokens=sum(one.tokens for one in every),
        peak_bytes=max(one.peak_bytes for one in every),
        seconds=sum(one.seconds for one in every),
        notes=(*main.notes, f"rows, forwards and seconds are of {', '.join(runs)} together"),
    )


def _loaded(model: "str | LoadedModel", task: "str | Task") -> "tuple[LoadedModel, Task]":
    from patchbench.adapters import LoadedModel, load_model
    from patchbench.tasks import Task, load_task

    return (
        model if isinstance(model, LoadedModel) else load_model(model),
        task if isinstance(task, Task) else load_task(task),
    )


def untrained(loaded: "LoadedModel", seed: int) -> "LoadedModel":
    """Return a model of the same config, dtype and device with fresh weights.

    Args:
        loaded: stays as it is.
        seed: of the weights; the global generator is left alone.
    """
    import torch

    from patchbench.adapters import load_model

    model = loaded.model
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    dtypes = {name: weight.dtype for name, weight in model.named_parameters()}
    for name, weight in fresh.named_parameters():
        weight.data = weight.data.to(dtypes.get(name, model.dtype))
    # Any: `to` is declared as a wrapper.
    moved: Any = fresh
    # A map of one's own names places of the stock modules, which then must stay.
    own = loaded.hook_map if loaded.hook_map.origin == "user" else None
    twin = load_model(moved.to(model.device).eval(), dtype="auto", hook_map=own)
    return replace(
        twin,
        tokenizer=loaded.tokenizer,
        hook_map=loaded.hook_map,
        name=f"{loaded.name} (untrained)",
    )


def with_untrained(result: "Result", twin: "Result", seed: int) -> "Result":
    """Return the Result with its untrained twin beside it."""
    summary = {
        "seed": seed,
        "accuracy": twin.summary["accuracy"],
        "verdict": twin.summary["verdict"]["label"],
        "runs": [
            {
                name: run[name]
                for name in ("corruption", "direction", "p_clean", "gap", "reasons", "effects")
            }
            for run in twin.summary["runs"]
        ],
    }
    return replace(
        result,
        summary={**result.summary, UNTRAINED: summary},
        beside={**result.beside, UNTRAINED: twin},
    )
