"""The main job: a model and a task go in, a `Result` with an interval and controls comes out.

Use:

    result = evaluate("EleutherAI/pythia-70m", "ar", n=128, layers=[0, 3], positions=["value"])
    print(result.attrib("L3.block_input@value"))

Every example is run clean and corrupted; then, for each site, once more with one activation
exchanged. The rows of all that are the Result; everything reported is computed from them.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from patchbench import controls
from patchbench.engines import ENGINES
from patchbench.evaluation_config import EvaluateConfig
from patchbench.preparation import prepare
from patchbench.results import Result, collect_provenance
from patchbench.selfcheck import compare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task

Progress = Callable[[int, int], None]


def evaluate(
    model: "str | PreTrainedModel | LoadedModel",
    task: "str | Task",
    *,
    progress: Progress | None = None,
    command: str | None = None,
    **settings: Any,
) -> Result:
    """Measure where `model` stores the association that `task` asks for.

    Args:
        model: a hub id, folder, file, `PreTrainedModel`, or what `load_model` returned.
        task: a task's name, or what `load_task` returned.
        progress: called with (forward rows done, rows in all) after each batch; the first-order
            scores are counted by themselves, before the exact numbers.
        command: the command line, for the provenance.
        **settings: the fields of `EvaluateConfig`.

    Raises:
        UserError: something asked for does not exist or does not fit.
        ControlError: a hard control is off (see `patchbench.controls`).
    """
    from patchbench import attribution

    config = EvaluateConfig.of(settings)
    started = time.perf_counter()
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
    tables, done, total = [], 0, len(plan) * len(inputs.dataset)
    for batch in prepared.batches:
        tables.append(engine.run(loaded, plan, batch))
        if config.selfcheck and len(tables) == 1:
            agreement = compare(loaded, plan, batch, tables[0], engine=config.engine)
        done += len(plan) * len(batch.index)
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
        seconds=time.perf_counter() - started,
        engine=engine,
        command=command,
        notes=[*loaded.notes, *loaded.hook_map.notes, *inputs.notes],
        template=inputs.template,
    )
    provenance["engine"]["selfcheck"] = agreement and asdict(agreement)
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
