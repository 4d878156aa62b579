"""What the parts of an evaluation cost on this machine as it is now, tried on a small scale.

Use:

    costs = Costs(prepared)
    costs.native(forwards)                    # seconds of the native engine's forwards
    costs.one_by_one(plan)                    # seconds of a plain engine
    costs.selfcheck(plan) + costs.result(plan)
    costs.peak()                              # bytes of one forward of a batch

Nothing is taken from a table: each part is done by the code that does it in an evaluation, with
less of it, and what that took is multiplied. What only the first time takes (an import) counts
once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from patchbench.adapters.running import scoring
from patchbench.engines import ENGINES
from patchbench.engines.base import Batch
from patchbench.engines.native.forecast import Forward
from patchbench.engines.native.places import watching
from patchbench.engines.native.work import SLOW
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import ReadOut
from patchbench.interventions import CLEAN, Intervention
from patchbench.live_memory import LiveBytes
from patchbench.preparation import Prepared, parts
from patchbench.provenance import collect_provenance
from patchbench.results import Result
from patchbench.selfcheck import EXAMPLES, INTERVENTIONS, REFERENCE

# Seconds of repeating something quick.
LONG_ENOUGH = 0.3
# Seconds after which something is not tried a second time.
_TOO_LONG = 2.0
# Interventions of a kind that are tried with a plain engine.
_TRIED = 2
# Sites with which a Result is tried.
_SITES = 64


class Costs:
    """See the module.

    Args:
        prepared: the evaluation.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._loaded = prepared, prepared.loaded
        self._batch = prepared.batches[0]

    def native(self, forwards: Sequence[Forward]) -> float:
        """Return the seconds of the native engine's forwards."""
        if not forwards:
            return 0.0
        costs = _ForwardCosts(self._prepared, {name for item in forwards for name in item.slow})
        return sum(map(costs.seconds, forwards))

    def one_by_one(self, plan: Sequence[Intervention]) -> float:
        """Return the seconds of a plain engine."""
        engine, total = ENGINES[self._prepared.config.engine](), 0.0
        forwards = self.forwards(plan)
        for kind in {forward.slow for forward in forwards}:
            batch, some = self._some([item for item in plan if self._kind(item) == kind])
            tokens = sum(forward.tokens for forward in forwards if forward.slow == kind)
            tried = sum(forward.tokens for forward in self._of_batch(some, batch))
            total += _times(
                lambda s=some, b=batch: engine.run(self._loaded, s, b), tokens / max(tried, 1)
            )
        return total

    def selfcheck(self, plan: Sequence[Intervention]) -> float:
        """Return the seconds of running part of the first batch with the reference."""
        batch, some = self._some(plan)
        few, engine = batch.select(slice(0, EXAMPLES)), ENGINES[REFERENCE]()
        tried = len(self._of_batch(some, batch))
        wanted = tried - len(some) + min(INTERVENTIONS, len(plan))
        return _times(lambda: engine.run(self._loaded, some, few), wanted / max(tried, 1))

    def result(self, plan: Sequence[Intervention]) -> float:
        """Return the seconds from the logits of a plan to a Result, if the model solves the task.

        Below the gate it takes less.
        """
        pairs: dict[tuple[str, str, bool], list[Intervention]] = {}
        for item in plan:
            key = item.corruption, item.direction, item.control is None
            pairs.setdefault(key, []).append(item)
        some = [item for items in pairs.values() for item in items[:_SITES]]
        return _times(lambda: self._made_up(some), len(plan) / len(some))

    def peak(self) -> int:
        """Return the bytes of tensors that one forward of a batch makes."""
        with scoring(self._loaded.model), LiveBytes() as live:
            _forward(self._prepared, 1, self._batch.length)
        return live.peak * len(self._batch)

    def donors(self, plan: Sequence[Intervention]) -> int:
        """Return the bytes of the activations that the plain engines keep of a batch."""
        hook_map = self._loaded.hook_map
        places = {
            (item.donor_run, site.position, hook_map.point(site.layer, site.component))
            for item in plan
            for site in item.donors
        }
        sizes: dict[Any, int] = {}
        readers = {
            point: lambda hidden, point=point: sizes.__setitem__(point, hidden[0, 0].nbytes)
            for _, _, point in places
            if point.source is None
        }
        with scoring(self._loaded.model), watching(self._loaded, readers):
            _forward(self._prepared, 1, self._batch.length)
        return sum(len(self._batch) * sizes.get(point, 0) for _, _, point in places)

    def forwards(self, plan: Sequence[Intervention]) -> list[Forward]:
        """Return the forwards of a plain engine, whose cache is taken to be large enough."""
        given = parts(self._prepared.batches, plan)
        return [one for batch, some in given for one in self._of_batch(some, batch)]

    def _of_batch(self, plan: Sequence[Intervention], batch: Batch) -> list[Forward]:
        blocks = self._loaded.hook_map.num_layers
        pending = [item for item in plan if batch.usable(item).any()]
        runs = {CLEAN}.union(*((i.base_run, i.source_run, i.donor_run) for i in pending))
        kinds = [frozenset()] * len(runs) + [self._kind(item) for item in pending]
        return [
            Forward(rows=len(batch), length=batch.length, blocks=blocks, slow=kind)
            for kind in kinds
        ]

    def _kind(self, item: Intervention) -> frozenset[str]:
        """Return what makes an intervention's forward dearer than others."""
        points = self._loaded.hook_map.points
        sites = (*item.sites, *item.donors)
        found = {site.component for site in sites}.intersection(SLOW)
        sources = (points[site.layer, site.component].source for site in sites)
        return frozenset(found | {source for source in sources if source is not None})

    def _some(self, items: Sequence[Intervention]) -> tuple[Batch, list[Intervention]]:
        """Return a batch and a few of the interventions that it has, if any batch does."""
        for batch in self._prepared.batches:
            if some := [item for item in items if batch.usable(item).any()][:_TRIED]:
                return batch, some
        return self._batch, []

    def _made_up(self, plan: Sequence[Intervention]) -> Result:
        """Return a Result of made-up logits: every site restores about half of the answer."""
        prepared, tables = self._prepared, []
        rng = np.random.default_rng(0)
        for batch in prepared.batches:
            writer, rows = RowWriter(batch), np.arange(len(batch))
            size = 1 + max(int(batch.candidates.max(initial=0)), int(batch.answer.max()))
            size = max(size, 1 + max(int(c.max()) for c in batch.counterfactual.values()))
            answers = np.zeros((len(batch), size), np.float32)
            answers[rows, batch.answer] = np.log(size) + rng.normal(3, 0.3, len(batch))
            clean = torch.as_tensor(answers)
            for run in (CLEAN, *batch.corrupted):
                writer.observe(run, clean if run == CLEAN else clean / 9)
            known: dict[tuple[str, str], Any] = {}
            for item in plan:
                key = item.corruption, item.source_run
                if key not in known:
                    known[key] = writer.patched(*key, rows, clean / 2)
                writer.add_values(item, batch.usable(item), known[key])
            tables.append(writer.table())
        return Result.from_rows(
            pa.concat_tables(tables),
            config={**asdict(prepared.config), **prepared.grid},
            provenance=collect_provenance(
                loaded=self._loaded,
                task=prepared.task,
                dataset=prepared.inputs.dataset,
                seconds=0.0,
                template=prepared.inputs.template,
            ),
        )


class _ForwardCosts:
    """What forwards of the native engine cost, measured on the first batch.

    A forward costs something for itself, for each position that it goes through (a scan takes them
    in turn), for each token, and for each prediction that is measured.

    Args:
        prepared: the evaluation.
        slow: components that make a mixer leave its fast path.
    """

    def __init__(self, prepared: Prepared, slow: set[str]) -> None:
        batch, loaded = prepared.batches[0], prepared.loaded
        self._blocks = loaded.hook_map.num_layers
        rows, length = len(batch), batch.length
        half = max(1, length // 2)
        with scoring(loaded.model):
            logits = _forward(prepared, 1, length)

            def seconds(count: int, tokens: int, component: str | None = None) -> float:
                return _mean(lambda: _forward(prepared, count, tokens, component))

            one, short, whole = seconds(1, length), seconds(1, half), seconds(rows, length)
            if rows == 1:
                rows, whole = 2, 2 * one - seconds(1, 1)
            self._token = max(whole - one, 0.0) / (rows - 1) / length
            self._position = max((one - short) / max(length - half, 1) - self._token, 0.0)
            self._call = max(one - (self._position + self._token) * length, 0.0)
            self._slow = {
                name: max(seconds(len(batch), length, name) - whole, 0.0) / (len(batch) * length)
                for name in slow
            }
            self._row = _measuring(prepared, logits) / len(batch)

    def seconds(self, forward: Forward) -> float:
        """Return the estimated seconds of a forward."""
        share = (forward.blocks + 1) / (self._blocks + 1)
        seconds = self._call + self._position * forward.length + self._token * forward.tokens
        slow = sum(self._slow[name] for name in forward.slow) * forward.tokens
        return share * seconds + slow + (self._row * forward.rows if forward.patched else 0.0)


def _forward(prepared: Prepared, rows: int, length: int, component: str | None = None) -> Tensor:
    """Return predictions at the end of the first documents' first tokens (rows, vocabulary)."""
    loaded, batch = prepared.loaded, prepared.batches[0]
    tokens = torch.as_tensor(batch.clean[:rows, :length], device=loaded.device)
    where = torch.as_tensor(np.minimum(batch.read_out[:rows], length - 1), device=loaded.device)
    read_out = ReadOut.at(loaded.model, where, length)
    layer = next((layer for layer, name in loaded.hook_map.points if name == component), None)
    readers = {}
    if component is not None:
        readers = {loaded.hook_map.point(layer, component): lambda hidden: hidden.clone()}
    with watching(loaded, readers):
        return read_out.logits(loaded.model(input_ids=tokens, **read_out.arguments))


def _measuring(prepared: Prepared, logits: Tensor) -> float:
    """Return the seconds that the head and the metrics take for a batch of predictions."""
    batch, model = prepared.batches[0], prepared.loaded.model
    every = logits.expand(len(batch), -1).contiguous()
    corruption = next(iter(batch.counterfactual))
    writer = RowWriter(batch)
    writer.observe(CLEAN, every)
    examples = np.arange(len(batch))
    seconds = _mean(lambda: writer.patched(corruption, CLEAN, examples, every))
    head = model.get_output_embeddings()
    if isinstance(head, torch.nn.Linear):
        hidden = head.weight[: len(batch)].contiguous()
        seconds += _mean(lambda: head(hidden))
    return seconds


def _times(action: Callable[[], Any], times: float) -> float:
    """Return the seconds of doing something that often, at least once.

    What the first time takes more than the others counts once.
    """
    first = _once(action)
    if times <= 1:
        return first
    return first + (times - 1) * (first if first > _TOO_LONG else _mean(action))


def _mean(action: Callable[[], Any]) -> float:
    """Return the mean seconds of an action, over as many as take `LONG_ENOUGH`.

    The mean and not the least: other work on the machine slows an evaluation down as well.
    """
    calls, total = 0, 0.0
    while calls == 0 or total < LONG_ENOUGH:
        total += _once(action)
        calls += 1
    return total / calls


def _once(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
