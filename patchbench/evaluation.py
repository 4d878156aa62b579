"""The main job: a model and a task go in, a `Result` with an interval and controls comes out.

Use:

    result = evaluate("EleutherAI/pythia-70m", "ar", n=128, layers=[0, 3], positions=["value"])
    print(result.attrib("L3.block_input@value"))

Every example is run clean and corrupted; then, for each site, once more with one activation
exchanged. The rows of all that are the Result; everything reported is computed from them.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from patchbench import __version__, controls
from patchbench.engines import ENGINES
from patchbench.engines.base import Counters
from patchbench.evaluation_config import EvaluateConfig
from patchbench.interventions import Intervention
from patchbench.partial import Partial
from patchbench.preparation import Prepared, parts, prepare
from patchbench.provenance import fingerprint, package_versions, weights_digest
from patchbench.results import Result, collect_provenance
from patchbench.selfcheck import compare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task

# Settings of what is made of the rows, or of a look at them.
_AFTERWARDS = ("resamples", "selfcheck")

Progress = Callable[[int, int], None]


def evaluate(
    model: "str | PreTrainedModel | LoadedModel",
    task: "str | Task",
    *,
    progress: Progress | None = None,
    command: str | None = None,
    partial: Partial | None = None,
    **settings: Any,
) -> Result:
    """Measure where `model` stores the association that `task` asks for.

    Args:
        model: a hub id, folder, file, `PreTrainedModel`, or what `load_model` returned.
        task: a task's name, or what `load_task` returned.
        progress: called with (forward rows done, rows in all) after each batch; the first-order
            scores are counted by themselves, before the exact numbers, and so are the Results that
            stand beside this one.
        command: the command line, for the provenance.
        partial: keeps the parts that are finished, and gives back those that were.
        **settings: the fields of `EvaluateConfig`.

    Raises:
        UserError: something asked for does not exist or does not fit.
        ControlError: a hard control is off (see `patchbench.controls`).
    """
    from transformers import PreTrainedModel

    from patchbench import attribution
    from patchbench.adapters import load_model
    from patchbench.adapters.ops import dispatch
    from patchbench.adapters.twins import put_back
    from patchbench.beside import evaluate_beside

    config = EvaluateConfig.of(settings)
    if isinstance(model, PreTrainedModel):
        with put_back(model):
            further: dict[str, Any] = {"progress": progress, "command": command, **settings}
            return evaluate(load_model(model), task, partial=partial, **further)
    if config.held_out or config.untrained_twin:
        return evaluate_beside(
            model, task, config, progress=progress, command=command, partial=partial
        )
    started = time.perf_counter()
    dispatch.reset()
    prepared = prepare(model, task, config)
    loaded, inputs, plan = prepared.loaded, prepared.inputs, prepared.plan
    engine, agreement = ENGINES[config.engine](), None
    estimates = None
    if config.method == "attribution":
        estimates, plan = attribution.prefilter(
            loaded,
            plan,
            prepared.batches,
            count=config.prefilter,
            ig_steps=config.ig_steps,
            counters=engine.counters,
            progress=progress,
        )
    chunks = parts(prepared.batches, plan)
    before, notes = 0.0, []
    if partial is not None:
        partial.open(_identity(prepared, plan))
        if partial.states:
            last = partial.states[-1]
            engine.restore(loaded, last["engine"])
            engine.counters, before = Counters(**last["counters"]), last["seconds"]
            notes = [f"resumed: {len(partial.states)} of {len(chunks)} parts were there"]
    tables, done, total = [], 0, len(plan) * len(inputs.dataset)
    finished = 0 if partial is None else len(partial.states)
    for number, (batch, part) in enumerate(chunks):
        if partial is not None and number < finished:
            tables.append(partial.table(number))
        else:
            tables.append(engine.run(loaded, part, batch))
            if partial is not None:
                state = {
                    "engine": engine.state(loaded),
                    "counters": asdict(engine.counters),
                    "seconds": before + time.perf_counter() - started,
                }
                partial.add(tables[-1], state)
        if config.selfcheck and len(tables) == len(chunks) // len(prepared.batches):
            first = pa.concat_tables(tables)
            agreement = compare(loaded, plan, prepared.batches[0], first, engine=config.engine)
        done += len(part) * len(batch)
        if progress is not None:
            progress(done, total)
    rows = pa.concat_tables(tables).sort_by(
        [("corruption", "ascending"), ("direction", "ascending"), ("site", "ascending")]
    )
    checks = controls.check(rows, dtype=loaded.dtype)
    provenance = collect_provenance(
        loaded=loaded,
        task=prepared.task,
        dataset=inputs.dataset,
        seconds=before + time.perf_counter() - started,
        engine=engine,
        command=command,
        notes=[*loaded.notes, *loaded.hook_map.notes, *inputs.notes, *notes],
        template=inputs.template,
    )
    provenance["engine"]["selfcheck"] = agreement and asdict(agreement)
    provenance["engine"]["ops"] = dispatch.used()
    result = Result.from_rows(
        rows,
        config={**asdict(config), **prepared.grid},
        provenance=provenance,
        controls=[{**asdict(c), "passed": c.passed} for c in checks],
    )
    if estimates is not None:
        result.summary["attribution"] = attribution.summarise(
            estimates,
            result.summary["runs"],
            ig_steps=config.ig_steps,
            seed=config.seed,
            resamples=config.resamples,
        )
    return result


def _identity(prepared: Prepared, plan: Sequence[Intervention]) -> dict[str, Any]:
    """Return everything that the rows depend on."""
    import torch

    loaded, task = prepared.loaded, prepared.task
    settings = {**asdict(prepared.config), **prepared.grid}
    for name in _AFTERWARDS:
        del settings[name]
    labels = "\n".join(f"{i.control} {i.corruption} {i.direction} {i.label}" for i in plan)
    return {
        "patchbench": __version__,
        "packages": package_versions(),
        "settings": settings,
        "model": loaded.name,
        "weights": weights_digest(loaded.model),
        "dtype": str(loaded.dtype),
        "device": str(loaded.device),
        "threads": torch.get_num_threads(),
        "task": {"name": task.name, "seed": task.seed, "config": asdict(task.config)},
        "dataset": fingerprint(prepared.inputs.dataset),
        "interventions": hashlib.sha256(labels.encode()).hexdigest()[:16],
    }
