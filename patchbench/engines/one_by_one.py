"""What the plain engines share: one forward for each run, then one for each intervention.

Use:

    class MyEngine(OneByOneEngine):
        name = "mine"
        def _runner(self, loaded: LoadedModel) -> Runner: ...

Per batch, each run (clean, and each corruption) goes through the model once: its predictions and
all activations that any intervention takes from it are read in the same forward. Then there is one
forward for each intervention. An engine says only how to read values and how to replace them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.running import explained, scoring
from patchbench.engines.base import Batch, Counters
from patchbench.engines.heads import aligned
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import ReadOut, halving
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

_Key = tuple[str, int | None, str, Position]
# (run, layer, component, position) → activations (B, 1, features)
_Cache = dict[_Key, Tensor]


@dataclass
class Budget:
    """Bytes that collected activations may still take."""

    left: float

    def take(self, size: int) -> bool:
        """Whether `size` more bytes fit; if so they are taken."""
        fits = size <= self.left
        self.left -= size if fits else 0
        return fits


class Runner(Protocol):
    """Runs one model; both calls are one forward."""

    def collect(
        self,
        inputs: dict[str, Any],
        points: Sequence[HookPoint],
        locations: Sequence[np.ndarray],
        budget: Budget,
    ) -> tuple[list[Tensor], Any]:
        """Return the activations of each point, and the model's output.

        Args:
            inputs: arguments of the model.
            points: where to read, at least one.
            locations: (B, positions) for each point.
            budget: what the activations may take.

        Returns:
            (B, positions, features) for each point, an empty tensor where the budget is used up.
        """
        ...

    def swap(
        self,
        inputs: dict[str, Any],
        sites: Sequence[Site],
        locations: Sequence[np.ndarray],
        values: Sequence[Tensor],
    ) -> Any:
        """Return the output of the model with its activations at the sites replaced.

        Args:
            inputs: arguments of the model.
            sites: where to write.
            locations: (B, 1) for each site.
            values: (B, 1, features) for each site.
        """
        ...


class OneByOneEngine(ABC):
    """See `patchbench.engines.base.Engine`.

    Args:
        cache_bytes: most that the activations cached at a time may take. Interventions whose
            activations do not fit wait for another round, with one more forward per run.
    """

    name: ClassVar[str]

    def __init__(self, *, cache_bytes: int = 2**30) -> None:
        self.counters = Counters()
        self.cache_bytes = cache_bytes

    @abstractmethod
    def _runner(self, loaded: "LoadedModel") -> Runner: ...

    def _using(self, loaded: "LoadedModel") -> AbstractContextManager[Any]:
        """Return a context in which the model is run, and after which it is as before."""
        return nullcontext()

    def state(self, loaded: "LoadedModel") -> dict[str, Any]:
        """See `Engine.state`: there is nothing to settle."""
        return {}

    def restore(self, loaded: "LoadedModel", state: Mapping[str, Any]) -> None:
        """See `Engine.restore`."""
        del loaded, state

    def run(
        self, loaded: "LoadedModel", interventions: Sequence[Intervention], batch: Batch
    ) -> pa.Table:
        """See `Engine.run`; a batch that does not fit into memory is halved."""
        return halving(lambda part: self._run(loaded, interventions, part), batch, self.counters)

    def _run(
        self, loaded: "LoadedModel", interventions: Sequence[Intervention], batch: Batch
    ) -> pa.Table:
        usable = {intervention: batch.usable(intervention) for intervention in interventions}
        pending = [item for item in usable if usable[item].any()]
        with self._using(loaded), scoring(loaded.model):
            job = _Job(loaded, self._runner(loaded), batch, self.counters)
            while pending:
                cache = job.observe(pending, self.cache_bytes)
                ready = [item for item in pending if _keys(item) <= cache.keys()]
                if not ready:
                    ready = pending[:1]
                    cache = job.observe(ready, inf)
                for item in ready:
                    job.patch(item, usable[item], cache)
                done = set(ready)
                pending = [item for item in pending if item not in done]
        for intervention, mask in usable.items():
            self.counters.skip(intervention, int((~mask).sum()))
        return job.rows.table()


class _Job:
    """The runs of one model on one batch."""

    def __init__(
        self, loaded: "LoadedModel", runner: Runner, batch: Batch, counters: Counters
    ) -> None:
        self.rows = RowWriter(batch)
        self._loaded, self._runner = loaded, runner
        self._batch, self._counters = batch, counters
        self._device = torch.device(loaded.device)
        self._read_out = ReadOut(loaded.model, batch, self._device)

    def observe(self, interventions: Sequence[Intervention], budget: float) -> _Cache:
        """Run what the interventions compare and take from; return what fits the budget."""
        wanted: dict[str, dict[tuple[int | None, str], set[Position]]] = {"clean": {}}
        for item in interventions:
            for run in (item.base_run, item.source_run, item.donor_run):
                wanted.setdefault(run, {})
            for _, layer, component, position in _keys(item):
                wanted[item.donor_run].setdefault((layer, component), set()).add(position)
        left = Budget(budget)
        cache: _Cache = {}
        for run, points in wanted.items():
            if points or run not in self.rows.observed:
                cache |= self._observe(run, points, left)
        return cache

    def _observe(
        self, run: str, points: dict[tuple[int | None, str], set[Position]], budget: Budget
    ) -> _Cache:
        inputs = self._inputs(run)
        places = {point: sorted(positions) for point, positions in points.items()}
        with explained(self._loaded.name, inputs["input_ids"]):
            if places:
                collected, output = self._runner.collect(
                    inputs,
                    [self._loaded.hook_map.point(*point) for point in places],
                    [self._locations(positions) for positions in places.values()],
                    budget,
                )
            else:
                collected, output = [], self._loaded.model(**inputs)
        self._count()
        if run not in self.rows.observed:
            self.rows.observe(run, self._read_out.logits(output))
        return {
            (run, *point, position): found[:, number : number + 1]
            for (point, positions), found in zip(places.items(), collected, strict=True)
            if found.numel()
            for number, position in enumerate(positions)
        }

    def patch(self, intervention: Intervention, usable: np.ndarray, cache: _Cache) -> None:
        """Run one intervention and write its rows."""
        sites, hook_map = intervention.sites, self._loaded.hook_map
        values = [
            aligned(cache[_key(intervention.donor_run, donor)], hook_map, donor=donor, site=site)
            for donor, site in zip(intervention.donors, sites, strict=True)
        ]
        inputs = self._inputs(intervention.base_run)
        with explained(self._loaded.name, inputs["input_ids"]):
            output = self._runner.swap(
                inputs, sites, [self._locations([site.position]) for site in sites], values
            )
        self._count()
        self.rows.add(intervention, usable, self._read_out.logits(output))

    def _inputs(self, run: str) -> dict[str, Any]:
        tokens = torch.as_tensor(self._batch.tokens(run), device=self._device)
        return {"input_ids": tokens, **self._read_out.arguments}

    def _locations(self, positions: Sequence[Position]) -> np.ndarray:
        """Return (B, positions); a position that an example lacks is 0, and its row is dropped.

        The batch keeps its shape, so that a patched run differs from the unpatched one by the
        patch alone and not by rounding.
        """
        columns = [np.maximum(self._batch.locate(position), 0) for position in positions]
        return np.stack(columns, axis=1)

    def _count(self) -> None:
        self._counters.count(1, rows=len(self._batch))


def _key(run: str, site: Site) -> _Key:
    return run, site.layer, site.component, site.position


def _keys(intervention: Intervention) -> set[_Key]:
    """Return what an intervention needs from the cache."""
    return {_key(intervention.donor_run, site) for site in intervention.donors}
