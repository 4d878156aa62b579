"""Interventions × examples as arrays: one *item* for each row that the engine owes.

Use:

    work = Work(interventions, usable, batch, hook_map)
    work.layer[item], work.first[item]            # where its forward may start
    work.wanted["clean"][point]                   # {slot: positions}, what a run must give
    work.swaps[point, donor]                      # what replaces what, for the items that patch it

An item's *document* is its row among all base runs, stacked: run · B + example.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from patchbench.adapters.hook_map import HookMap, HookPoint
from patchbench.common import UserError
from patchbench.engines.base import Batch
from patchbench.engines.heads import heads_of
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site

# Looking at these makes a mixer leave its fast path, for all rows of a forward.
SLOW = ("attn_weights", "ssm_write", "ssm_state")
# Features of these depend on how many tokens the call has: never cut a document there.
WHOLE = ("attn_weights",)


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """Replacements at one place, (n,) each.

    Attributes:
        item: which item it belongs to.
        position: token of the document that is replaced.
        slot: where the donor's activations are.
        example: whose they are.
        head: of the patched place; `heads` equal parts (1: the whole).
        donor_head: of the donor's place.
    """

    item: np.ndarray
    position: np.ndarray
    slot: np.ndarray
    example: np.ndarray
    head: np.ndarray
    heads: np.ndarray
    donor_head: np.ndarray
    donor_heads: np.ndarray


class Work:
    """What one batch of interventions comes to.

    Args:
        interventions: what to run, in the order of the rows.
        usable: for each, the examples that it is defined for.
        batch: the examples.
        hook_map: of the model.

    Attributes:
        number: (n,) which intervention.
        example: (n,) which example of the batch.
        layer: (n,) the first block whose output the patch may change.
        first: (n,) the smallest position that must run: a patched one, or the read-out.
        last: (n,) the largest patched position.
        kind: (n,) items of different kinds never share a forward.
        whole: (n,) whether the document must stay whole.
        document: (n,) see the module.
        base_runs: the runs that are patched.
        slow: per intervention the components of `SLOW`.
        wanted: run → place → slot → (B,) positions to read.
        slots: place → number of slots.
        swaps: (patched place, donor's place) → what is replaced.

    Raises:
        UserError: the model has no such site, or only in the middle of a module's code.
    """

    def __init__(
        self,
        interventions: Sequence[Intervention],
        usable: Mapping[Intervention, np.ndarray],
        batch: Batch,
        hook_map: HookMap,
    ) -> None:
        self._batch, self._hook_map = batch, hook_map
        self.base_runs = tuple(dict.fromkeys(item.base_run for item in interventions))
        self.wanted: dict[str, dict[HookPoint, dict[int, np.ndarray]]] = {}
        self.slots: dict[HookPoint, int] = {}
        self.slow: list[frozenset[str]] = []
        self._slot_of: dict[tuple[str, HookPoint, Position], int] = {}
        kinds: dict[frozenset[str], int] = {}
        parts: dict[str, list[np.ndarray]] = {
            name: []
            for name in ("number", "example", "layer", "first", "last", "kind", "whole", "document")
        }
        swaps: dict[tuple[HookPoint, HookPoint], list[dict[str, np.ndarray]]] = {}
        total = 0
        for number, intervention in enumerate(interventions):
            examples = np.flatnonzero(usable[intervention])
            count = len(examples)
            where = [batch.locate(site.position)[examples] for site in intervention.sites]
            components = {site.component for site in intervention.sites}
            slow = frozenset(components.intersection(SLOW))
            self.slow.append(slow)
            run = self.base_runs.index(intervention.base_run)
            columns = {
                "number": number,
                "example": examples,
                "layer": min(first_block(hook_map, site) for site in intervention.sites),
                "first": np.minimum(np.min(where, axis=0), batch.read_out[examples]),
                "last": np.max(where, axis=0),
                "kind": kinds.setdefault(slow, len(kinds)),
                "whole": bool(components.intersection(WHOLE)),
                "document": run * len(batch) + examples,
            }
            for name, values in columns.items():
                parts[name].append(_column(values, count))
            for site, donor, positions in zip(
                intervention.sites, intervention.donors, where, strict=True
            ):
                key, line = self._swap(intervention.donor_run, site, donor)
                line |= {
                    "item": np.arange(total, total + count),
                    "position": positions,
                    "example": examples,
                }
                swaps.setdefault(key, []).append(
                    {name: _column(values, count) for name, values in line.items()}
                )
            total += count
        for name, values in parts.items():
            setattr(self, name, np.concatenate(values))
        self.swaps = {
            key: Swaps(
                **{name: np.concatenate([line[name] for line in lines]) for name in lines[0]}
            )
            for key, lines in swaps.items()
        }

    number: np.ndarray
    example: np.ndarray
    layer: np.ndarray
    first: np.ndarray
    last: np.ndarray
    kind: np.ndarray
    whole: np.ndarray
    document: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def _swap(
        self, run: str, site: Site, donor: Site
    ) -> tuple[tuple[HookPoint, HookPoint], dict[str, int]]:
        line = {
            "heads": heads_of(self._hook_map, site),
            "head": site.head or 0,
            "donor_heads": heads_of(self._hook_map, donor),
            "donor_head": donor.head or 0,
        }
        point, origin = (
            hookable(self._hook_map.point(place.layer, place.component)) for place in (site, donor)
        )
        key = (run, origin, donor.position)
        if key not in self._slot_of:
            self._slot_of[key] = slot = self.slots.get(origin, 0)
            self.slots[origin] = slot + 1
            positions = np.maximum(self._batch.locate(donor.position), 0)
            self.wanted.setdefault(run, {}).setdefault(origin, {})[slot] = positions
        line["slot"] = self._slot_of[key]
        return (point, origin), line


def _column(values: np.ndarray | int, count: int) -> np.ndarray:
    # `np.broadcast_to` takes twenty times as long, which is felt.
    return values if isinstance(values, np.ndarray) else np.full(count, values)


def first_block(hook_map: HookMap, site: Site) -> int:
    """Return the first block that must run when `site` is patched: blocks before are unchanged.

    A block's output is patched behind the block, which need not run itself.
    """
    if site.layer is None:
        return 0
    point = hook_map.point(site.layer, site.component)
    behind = point.io == "output" and point.path == f"{hook_map.blocks}.{site.layer}"
    return site.layer + behind


def hookable(point: HookPoint) -> HookPoint:
    """Return `point`.

    Raises:
        UserError: no hook reaches it.
    """
    if point.source is not None:
        raise UserError(
            f"{point.component} is inside the forward of {point.path}, where no hook reaches",
            "use --engine nnsight",
        )
    return point
