"""The reference engine: every intervention is a pyvene intervention.

Use:

    engine = PyveneEngine()
    rows = engine.run(loaded, interventions, batch)
    engine.counters.forwards

Per batch, each run (clean, and each corruption) goes through the model once: its predictions and
all activations that any intervention takes from it are read in the same forward. Then there is one
forward for each intervention.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from patchbench.adapters.running import explained
from patchbench.engines.base import Batch, Counters
from patchbench.engines.heads import aligned
from patchbench.engines.rows import RowWriter
from patchbench.engines.safe_intervenable import (
    Budget,
    SafeIntervenable,
    collect_config,
    swap_config,
)
from patchbench.engines.scoring import ReadOut, halving, scoring
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

# (run, layer, component, position) → activations (B, 1, features)
_Cache = dict[tuple[str, int | None, str, Position], Tensor]


class PyveneEngine:
    """See `patchbench.engines.base.Engine`.

    Args:
        cache_bytes: most that the activations cached at a time may take. Interventions whose
            activations do not fit wait for another round, with one more forward per run.
    """

    name = "pyvene"

    def __init__(self, *, cache_bytes: int = 2**30) -> None:
        self.counters = Counters()
        self.cache_bytes = cache_bytes

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
        with scoring(loaded.model):
            job = _Job(loaded, batch, self.counters)
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

    def __init__(self, loaded: "LoadedModel", batch: Batch, counters: Counters) -> None:
        self.rows = RowWriter(batch)
        self._loaded, self._batch, self._counters = loaded, batch, counters
        self._device = torch.device(loaded.device)
        self._read_out = ReadOut(loaded.model, batch, self._device)
        self._wrapped: dict[tuple, SafeIntervenable] = {}

    def observe(self, interventions: Sequence[Intervention], budget: float) -> _Cache:
        """Run what the interventions compare and take from; return what fits the budget."""
        wanted: dict[str, dict[tuple[int | None, str], set[Position]]] = {"clean": {}}
        for item in interventions:
            for run in (item.base_run, item.source_run):
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
        if points:
            hook_map, model = self._loaded.hook_map, self._loaded.model
            places = {point: sorted(positions) for point, positions in points.items()}
            config = collect_config(model, [hook_map.point(*point) for point in places], budget)
            locations = [self._locations(positions) for positions in places.values()]
            wrapped = SafeIntervenable(config, model)
            with explained(self._loaded.name, inputs["input_ids"]):
                (_, collected), output = wrapped(inputs, unit_locations={"base": locations})
        else:
            places, collected = {}, []
            with explained(self._loaded.name, inputs["input_ids"]):
                output = self._loaded.model(**inputs)
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
        sites = intervention.sites
        wrapped = self._wrap(sites)
        sources = [
            aligned(
                cache[_key(intervention.donor_run, donor)],
                self._loaded.hook_map,
                donor=donor,
                site=site,
            )
            for donor, site in zip(intervention.donors, sites, strict=True)
        ]
        locations = [self._locations([site.position]) for site in sites]
        _, output = wrapped(
            self._inputs(intervention.base_run),
            unit_locations={"sources->base": (None, locations)},
            source_representations=dict(zip(wrapped.sorted_keys, sources, strict=True)),
        )
        self._count()
        self.rows.add(intervention, usable, self._read_out.logits(output))

    def _wrap(self, sites: Sequence[Site]) -> SafeIntervenable:
        """Return the wrapped model; sites that differ in position only share one."""
        key = tuple((site.layer, site.component, site.head) for site in sites)
        if key not in self._wrapped:
            model = self._loaded.model
            config = swap_config(self._loaded.hook_map, model, sites)
            self._wrapped[key] = SafeIntervenable(config, model)
        return self._wrapped[key]

    def _inputs(self, run: str) -> dict[str, Any]:
        tokens = torch.as_tensor(self._batch.tokens(run), device=self._device)
        return {"input_ids": tokens, **self._read_out.arguments}

    def _locations(self, positions: Sequence[Position]) -> list[list[int]]:
        """Return the positions of each example; one that it lacks is 0, and its row is dropped.

        The batch keeps its shape, so that a patched run differs from the unpatched one by the
        patch alone and not by rounding.
        """
        columns = [np.maximum(self._batch.locate(position), 0) for position in positions]
        return np.stack(columns, axis=1).tolist()

    def _count(self) -> None:
        self._counters.forwards += 1
        self._counters.forward_rows += len(self._batch)


def _key(run: str, site: Site) -> tuple[str, int | None, str, Position]:
    return run, site.layer, site.component, site.position


def _keys(intervention: Intervention) -> set[tuple[str, int | None, str, Position]]:
    """Return what an intervention needs from the cache."""
    return {_key(intervention.donor_run, site) for site in intervention.donors}
