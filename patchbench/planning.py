"""What an evaluation would take, without the sweep: forwards, tokens, memory, seconds.

Use:

    forecast = plan("EleutherAI/pythia-70m", "ar", n=256, positions="all")
    forecast.forwards, forecast.seconds

Forwards are counted by the code that would run them. Seconds come from doing a little of everything
on the real model (see `patchbench.costs`). Memory is what tensors take: the weights, one forward at
its peak, and what is kept of unpatched runs.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbench import attribution
from patchbench.costs import Costs
from patchbench.engines import ENGINES
from patchbench.engines.native.engine import NativeEngine
from patchbench.engines.native.forecast import Forecast, Forward
from patchbench.evaluation_config import EvaluateConfig
from patchbench.interventions import Intervention
from patchbench.preparation import parts, prepare
from patchbench.selfcheck import REFERENCE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task

# A backward costs about two forwards.
BACKWARD = 2.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an evaluation would take.

    Attributes:
        sites: that are measured, by name; several patched together are one.
        interventions: of all corruptions and directions, the controls included.
        rows: examples × interventions that would be written.
        forwards: calls of the model, as the Result's provenance counts them.
        forward_rows: documents in them.
        tokens: in them.
        weights_bytes: of the model.
        cache_bytes: kept of unpatched runs at a time; keys and values or states not counted.
        peak_bytes: the weights, the cache, and one unpatched forward of a batch.
        seconds: of wall time, on this machine as it is now, with the libraries that are still to be
            imported, without loading the model.
        notes: what the user should know.
    """

    model: str
    task: str
    engine: str
    examples: int
    sites: tuple[str, ...]
    interventions: int
    rows: int
    forwards: int
    forward_rows: int
    tokens: int
    weights_bytes: int
    cache_bytes: int
    peak_bytes: int
    seconds: float
    notes: tuple[str, ...]


def plan(model: "str | PreTrainedModel | LoadedModel", task: "str | Task", **settings: Any) -> Plan:
    """Return what `evaluate` with the same arguments would take; the sweep is not run.

    Raises:
        UserError: something asked for does not exist or does not fit.
    """
    from transformers import PreTrainedModel

    from patchbench.adapters import load_model
    from patchbench.adapters.twins import put_back
    from patchbench.beside import plan_beside

    config = EvaluateConfig.of(settings)
    if isinstance(model, PreTrainedModel):
        with put_back(model):
            return plan(load_model(model), task, **settings)
    if config.held_out or config.untrained_twin:
        return plan_beside(model, task, config)
    started = time.perf_counter()
    prepared = prepare(model, task, config)
    checked = config.selfcheck and config.engine != REFERENCE
    for name in (config.engine, *([REFERENCE] if checked else [])):
        ENGINES[name]()  # which loads its library
    seconds = time.perf_counter() - started
    loaded, batches, every = prepared.loaded, prepared.batches, prepared.plan
    measured = [item for item in every if item.control is None]
    exact, notes = every, []
    if config.method == "attribution":
        chosen: list[Intervention] = []
        for pair in {(item.corruption, item.direction): None for item in measured}:
            mine = [i for i in measured if (i.corruption, i.direction) == pair]
            chosen += mine[: config.prefilter]
        exact = [item for item in every if item.control is not None or item in set(chosen)]
        notes.append("which sites attribution runs exactly is not known yet: the first are taken")
    costs = Costs(prepared)
    if config.engine == "native":
        forecast = Forecast(NativeEngine(), loaded)
        forwards = [
            one for batch, some in parts(batches, exact) for one in forecast.batch(some, batch)
        ]
        cache = forecast.kept
        seconds += costs.native(forwards)
    else:
        forwards = costs.forwards(exact)
        cache = costs.donors(exact)
        seconds += costs.one_by_one(exact)
    if config.method == "attribution":
        each = attribution.forwards(measured, config.ig_steps)
        blocks = loaded.hook_map.num_layers
        whole = [
            Forward(rows=len(batch), length=batch.length, blocks=blocks)
            for batch in batches
            for _ in range(each)
        ]
        seconds += (1 + BACKWARD) * costs.native(whole)
        forwards += whole
    if checked:
        seconds += costs.selfcheck(exact)
    seconds += costs.result(exact)
    weights = sum(tensor.nbytes for tensor in loaded.model.state_dict().values())
    return Plan(
        model=loaded.name,
        task=prepared.task.name,
        engine=config.engine,
        examples=len(prepared.inputs.dataset),
        sites=tuple(dict.fromkeys(item.label for item in measured)),
        interventions=len(every),
        rows=sum(int(batch.usable(item).sum()) for batch in batches for item in exact),
        forwards=len(forwards),
        forward_rows=sum(item.rows for item in forwards),
        tokens=sum(item.tokens for item in forwards),
        weights_bytes=weights,
        cache_bytes=cache,
        peak_bytes=weights + cache + costs.peak(),
        seconds=seconds,
        notes=(*loaded.notes, *prepared.inputs.notes, *notes),
    )
