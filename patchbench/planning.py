"""What an evaluation would take, without the sweep: forwards, tokens, memory, seconds.

Use:

    forecast = plan("EleutherAI/pythia-70m", "ar", n=256, positions="all")
    forecast.forwards, forecast.seconds

Forwards are counted by the code that would run them. Seconds come from a few forwards of the first
batch on the real model: a cost per forward, one per token and block, and one per prediction. Memory
is what tensors take: the weights, one forward at its peak, and what is kept of unpatched runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from patchbench import attribution
from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.running import scoring
from patchbench.engines.base import Batch
from patchbench.engines.native.engine import NativeEngine
from patchbench.engines.native.forecast import Forecast, Forward
from patchbench.engines.native.places import watching
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import ReadOut
from patchbench.evaluation_config import EvaluateConfig
from patchbench.interventions import Intervention
from patchbench.live_memory import LiveBytes
from patchbench.preparation import Prepared, prepare
from patchbench.selfcheck import EXAMPLES, INTERVENTIONS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task

# A backward costs about two forwards.
BACKWARD = 2.0
# Seconds of repeating something quick.
LONG_ENOUGH = 0.5


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
        seconds: of wall time, on this machine as it is now, loading not counted.
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
    preparing = time.perf_counter() - started
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
    forwards: list[Forward] = []
    cache = 0
    if config.engine == "native":
        forecast = Forecast(NativeEngine(), loaded)
        for batch in batches:
            forwards += forecast.batch(exact, batch)
        cache = forecast.kept
    else:
        for batch in batches:
            forwards += _one_by_one(exact, batch, loaded.hook_map.num_layers)
    cost = _Cost(prepared, {name for item in forwards for name in item.slow})
    seconds = preparing + sum(cost.seconds(item) for item in forwards)
    if config.engine != "native":
        cache = cost.donors(exact, batches[0])
    if config.selfcheck and config.engine != "pyvene":
        small = Forward(
            rows=min(EXAMPLES, len(batches[0])),
            length=batches[0].length,
            blocks=loaded.hook_map.num_layers,
            patched=True,
        )
        seconds += (2 + min(INTERVENTIONS, len(exact))) * cost.seconds(small)
    if config.method == "attribution":
        each = attribution.forwards(measured, config.ig_steps)
        for batch in batches:
            whole = [_whole(batch, loaded.hook_map.num_layers)] * each
            seconds += (1 + BACKWARD) * sum(cost.seconds(item) for item in whole)
            forwards += whole
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
        peak_bytes=weights + cache + cost.peak,
        seconds=seconds,
        notes=(*loaded.notes, *prepared.inputs.notes, *notes),
    )


def _whole(batch: Batch, blocks: int, *, patched: bool = False) -> Forward:
    return Forward(rows=len(batch), length=batch.length, blocks=blocks, patched=patched)


def _one_by_one(plan: Sequence[Intervention], batch: Batch, blocks: int) -> list[Forward]:
    """Return the forwards of the plain engines, whose cache is taken to be large enough."""
    pending = [item for item in plan if batch.usable(item).any()]
    runs = {"clean"}.union(*((i.base_run, i.source_run, i.donor_run) for i in pending))
    unpatched = [_whole(batch, blocks)] * len(runs)
    return unpatched + [_whole(batch, blocks, patched=True)] * len(pending)


class _Cost:
    """What forwards cost on this model and machine, measured on the first batch.

    Attributes:
        peak: bytes of tensors that one forward of a batch makes.
    """

    def __init__(self, prepared: Prepared, slow: set[str]) -> None:
        self._loaded, self._batch = prepared.loaded, prepared.batches[0]
        self._blocks = self._loaded.hook_map.num_layers
        with scoring(self._loaded.model):
            rows, length = len(self._batch), self._batch.length
            with LiveBytes() as live:
                logits = self._forward(1)
            one = _seconds(lambda: self._forward(1))
            self.peak = live.peak * rows
            whole = _seconds(lambda: self._forward(rows)) if rows > 1 else one
            self._token = max(whole - one, 0.0) / max(rows - 1, 1) / length
            self._call = max(one - self._token * length, 0.0)
            self._slow = {
                name: max(_seconds(lambda n=name: self._forward(rows, n)) - whole, 0.0)
                / (rows * length)
                for name in slow
            }
            self._row = self._measuring(logits) / rows

    def seconds(self, forward: Forward) -> float:
        """Return the estimated seconds of a forward."""
        share = (forward.blocks + 1) / (self._blocks + 1)
        seconds = share * (self._call + self._token * forward.tokens)
        seconds += sum(self._slow[name] for name in forward.slow) * forward.tokens
        return seconds + (self._row * forward.rows if forward.patched else 0.0)

    def donors(self, plan: Sequence[Intervention], batch: Batch) -> int:
        """Return the bytes of the activations that the plain engines keep."""
        places = {(i.donor_run, s) for i in plan for s in i.donors}
        points = {
            self._loaded.hook_map.point(site.layer, site.component): None for _, site in places
        }
        sizes: dict[HookPoint, int] = {}

        def reader(point: HookPoint) -> Callable[[torch.Tensor], None]:
            return lambda hidden: sizes.__setitem__(point, hidden[0, 0].nbytes)

        reachable = {point: reader(point) for point in points if point.source is None}
        with scoring(self._loaded.model), watching(self._loaded, reachable):
            self._forward(1)
        return sum(
            len(batch) * sizes.get(self._loaded.hook_map.point(site.layer, site.component), 0)
            for _, site in places
        )

    def _forward(self, rows: int, component: str | None = None) -> torch.Tensor:
        loaded, batch = self._loaded, self._batch
        tokens = torch.as_tensor(batch.clean[:rows], device=loaded.device)
        where = torch.as_tensor(batch.read_out[:rows], device=loaded.device)
        read_out = ReadOut.at(loaded.model, where, batch.length)
        layer = next((layer for layer, name in loaded.hook_map.points if name == component), None)
        readers = {}
        if component is not None:
            readers = {loaded.hook_map.point(layer, component): lambda hidden: hidden.clone()}
        with watching(loaded, readers):
            return read_out.logits(loaded.model(input_ids=tokens, **read_out.arguments))

    def _measuring(self, logits: torch.Tensor) -> float:
        """Return the seconds that the head and the metrics take for a batch of predictions."""
        batch = self._batch
        every = logits.expand(len(batch), -1).contiguous()
        corruption = next(iter(batch.corrupted))
        writer = RowWriter(batch)
        writer.observe("clean", every)
        examples = np.arange(len(batch))
        writer.patched(corruption, "clean", examples, every)
        head = self._loaded.model.get_output_embeddings()
        seconds = _seconds(lambda: writer.patched(corruption, "clean", examples, every))
        if isinstance(head, torch.nn.Linear):
            hidden = head.weight[: len(batch)].contiguous()
            seconds += _seconds(lambda: head(hidden))
        return seconds


def _seconds(action: Callable[[], Any]) -> float:
    """Return the mean wall time of a call, over as many as take `LONG_ENOUGH`.

    The mean and not the least: other work on the machine slows the run down as well.
    """
    calls, started = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - started < LONG_ENOUGH:
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        calls += 1
    return (time.perf_counter() - started) / calls
