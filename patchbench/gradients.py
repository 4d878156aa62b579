"""The gradient of p(answer) by activations, and what it says that exchanging them would do.

Use:

    with scoring(model), frozen(model):
        table = Pair(loaded, batch, interventions, Counters()).run(ig_steps=0)

The model runs as it is, with zeros added at the places in question: the gradient by those zeros is
the gradient by the activations, at all places at once and with every path from each place on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import Function
from patchbench.adapters.running import explained
from patchbench.common import UserError
from patchbench.effects import ROW_SCHEMA
from patchbench.engines.base import Batch, Counters
from patchbench.engines.heads import aligned, head_part
from patchbench.engines.native.places import watching
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import ReadOut
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

REMEDY = "use --method exact"
# What `attribs` reads.
_COLUMNS = (
    "site",
    "corruption",
    "direction",
    "control",
    "example",
    "p_base",
    "p_source",
    "p_patched",
)
SCHEMA = pa.schema([ROW_SCHEMA.field(name) for name in _COLUMNS])

_Place = tuple[HookPoint, Position]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let no parameter require a gradient meanwhile: only activations are differentiated by."""
    thawed = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in thawed:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in thawed:
            parameter.requires_grad_(True)


class Pair:
    """Interventions at one site each, on one batch, that share a base and a source run.

    Args:
        loaded: the model, scoring and frozen.
        batch: the examples.
        items: the interventions.
        counters: counts the forwards.
    """

    def __init__(
        self,
        loaded: "LoadedModel",
        batch: Batch,
        items: Sequence[Intervention],
        counters: Counters,
    ) -> None:
        self._loaded, self._batch, self._items = loaded, batch, items
        self._counters = counters
        self._device = torch.device(loaded.device)
        self._read_out = ReadOut(loaded.model, batch, self._device)
        self._rows = RowWriter(batch)

    def run(self, ig_steps: int) -> pa.Table:
        """Return the rows of all interventions; see `attribution.first_order`.

        Raises:
            UserError: p(answer) cannot be differentiated by a place, or not to a finite number.
        """
        first = self._items[0]
        source: dict[_Place, Tensor] = {}
        base: dict[_Place, Tensor] = {}
        slopes: dict[HookPoint, Tensor] = {}
        donors = self._grouped([item.donors[0] for item in self._items])
        p_source = self._p(
            first.source_run,
            {point: self._reader(point, at, source) for point, at in donors.items()},
        )
        sites = self._grouped([item.sites[0] for item in self._items])
        adders = {point: self._adder(point, at, base, slopes) for point, at in sites.items()}
        with torch.enable_grad():
            p_base = self._p(first.base_run, adders)
        gradients = self._gradients(p_base, slopes)
        before = p_base.detach().numpy()
        tables = []
        for item in self._items:
            site, donor = item.sites[0], item.donors[0]
            given = aligned(
                source[self._place(donor)], self._loaded.hook_map, donor=donor, site=site
            )
            start = base[self._place(site)]
            part = head_part(self._loaded.hook_map, site, start.shape[-1])
            change = torch.zeros_like(start)
            change[:, part] = (given - start)[:, part]
            if ig_steps:
                gradient = self._integrated(item, start, change, ig_steps)
            else:
                point, position = self._place(site)
                gradient = gradients[point][:, sites[point].index(position)]
            effect = (change.cpu().double() * gradient).sum(-1).numpy()
            usable = self._batch.usable(item)
            if not np.isfinite(effect[usable]).all():
                raise UserError(
                    f"the gradient of p(answer) at {item.label} is NaN or infinite", REMEDY
                )
            numbers = (self._batch.index, before, p_source.numpy(), before + effect)
            texts = (item.label, item.corruption, item.direction, item.control)
            columns = [pa.array([text] * int(usable.sum()), pa.string()) for text in texts]
            columns += [pa.array(column[usable]) for column in numbers]
            tables.append(pa.Table.from_arrays(columns, schema=SCHEMA))
        return pa.concat_tables(tables)

    def _integrated(self, item: Intervention, start: Tensor, change: Tensor, steps: int) -> Tensor:
        """Return the mean gradient (B, features) on the way from `start` to `start + change`."""
        point, position = self._place(item.sites[0])
        total = torch.zeros(start.shape, dtype=torch.float64)
        for step in range(steps):
            value = (start + (step + 0.5) / steps * change).requires_grad_()

            def put(hidden: Tensor, value: Tensor = value) -> Tensor:
                return hidden.index_put(self._indices([position], hidden), value[:, None])

            with torch.enable_grad():
                p = self._p(item.base_run, {point: put})
            total += self._gradients(p, {point: value})[point]
        return total / steps

    def _gradients(self, p: Tensor, by: Mapping[HookPoint, Tensor]) -> dict[HookPoint, Tensor]:
        """Return the gradient of each example's p, (B,), by what the places were given."""
        # Examples do not touch each other: the gradient of their sum is each example's own.
        found = (
            torch.autograd.grad(p, list(by.values()), torch.ones_like(p), allow_unused=True)
            if p.requires_grad
            else [None] * len(by)
        )
        gradients = {}
        for point, gradient in zip(by, found, strict=True):
            if gradient is None:
                raise UserError(
                    f"{self._loaded.name}: no gradient of p(answer) reaches {point.path}", REMEDY
                )
            gradients[point] = gradient.cpu().double()
        return gradients

    def _p(self, run: str, functions: Mapping[HookPoint, Function]) -> Tensor:
        """Return p(answer) of a run with the functions at their places: (B,) float64 on the CPU."""
        tokens = torch.as_tensor(self._batch.tokens(run), device=self._device)
        with watching(self._loaded, functions), explained(self._loaded.name, tokens):
            output = self._loaded.model(input_ids=tokens, **self._read_out.arguments)
        logits = self._read_out.logits(output)
        self._counters.count(1, rows=len(tokens))
        self._rows.observe(run, logits.detach())  # refuses what is not finite
        log_p = logits.float().cpu().double().log_softmax(-1)
        return log_p[torch.arange(len(log_p)), torch.as_tensor(self._batch.answer)].exp()

    def _reader(
        self, point: HookPoint, positions: Sequence[Position], into: dict[_Place, Tensor]
    ) -> Function:
        def read(hidden: Tensor) -> None:
            found = hidden[self._indices(positions, hidden)].detach()  # B positions features
            into.update({(point, at): found[:, i] for i, at in enumerate(positions)})

        return read

    def _adder(
        self,
        point: HookPoint,
        positions: Sequence[Position],
        into: dict[_Place, Tensor],
        slopes: dict[HookPoint, Tensor],
    ) -> Function:
        """Return what reads a place and adds zeros to it, by which p can be differentiated.

        The activations themselves stay in the graph, so that the paths through later places count.
        """
        read = self._reader(point, positions, into)

        def add(hidden: Tensor) -> Tensor:
            read(hidden)
            where = self._indices(positions, hidden)
            zeros = torch.zeros_like(hidden[where]).requires_grad_()
            slopes[point] = zeros
            return hidden.index_put(where, zeros, accumulate=True)

        return add

    def _indices(self, positions: Sequence[Position], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what picks (B, positions) of `hidden`; 0 where an example lacks one."""
        where = np.stack([np.maximum(self._batch.locate(at), 0) for at in positions], axis=1)
        rows = torch.arange(len(where), device=hidden.device)[:, None]
        return rows, torch.as_tensor(where, device=hidden.device)

    def _grouped(self, sites: Sequence[Site]) -> dict[HookPoint, list[Position]]:
        grouped: dict[HookPoint, list[Position]] = {}
        for point, position in dict.fromkeys(map(self._place, sites)):
            grouped.setdefault(point, []).append(position)
        return grouped

    def _place(self, site: Site) -> _Place:
        return self._loaded.hook_map.point(site.layer, site.component), site.position
