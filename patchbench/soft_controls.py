"""Controls whose effect should be near 0, shown beside the effects that should not.

| control         | patch                                                              |
|-----------------|--------------------------------------------------------------------|
| wrong position  | the residual stream at a random other pair's value                 |
| shuffled source | the value, and the read-out, each from another example's run       |
| random site     | the residual stream at a random token that has no role             |

All are at `block_input` of the middle layer. None is exact: what restores the answer without the
right content at the right place is a fact about the model, and no verdict is given against it.
There is no shuffled source in the direction `noise`: what belongs to another example removes the
answer wherever the right content is needed, which is no sign of a fault.

Use:

    batches = prepare(batches)                   # adds the positions and the shuffled runs
    plan += interventions(hook_map, corruption="key", direction="denoise")
    effects(rows, "key", "denoise", seed=0, resamples=2000)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench.effects import columns
from patchbench.interventions import CLEAN, Direction, Intervention, shuffled
from patchbench.sites import Position, Site
from patchbench.statistics import ratio_of_means

if TYPE_CHECKING:
    from patchbench.adapters.hook_map import HookMap
    from patchbench.engines.base import Batch

NAMES = ("wrong position", "shuffled source", "random site")
OTHER, RANDOM = "other_value", "random"
_SHUFFLED = "shuffled_{}"
_TAKEN = (Position("value"), Position("answer", -1))


def interventions(
    hook_map: "HookMap", *, corruption: str, direction: Direction
) -> list[Intervention]:
    """Return the interventions of one corruption and direction."""
    layer = hook_map.num_layers // 2

    def measure(control: str, position: Position, **more: Any) -> Intervention:
        return Intervention(
            sites=(Site(layer, "block_input", position),),
            corruption=corruption,
            direction=direction,
            control=control,
            **more,
        )

    taken = _TAKEN if direction == "denoise" else ()
    return [
        measure("wrong position", Position(OTHER)),
        *(from_another(measure("shuffled source", position)) for position in taken),
        measure("random site", Position(RANDOM)),
    ]


def from_another(intervention: Intervention) -> Intervention:
    """Return the intervention with the activations of another example, at its own positions."""
    donors = tuple(
        replace(site, position=Position(_SHUFFLED.format(site.position.role), site.position.offset))
        for site in intervention.donors
    )
    return replace(intervention, source="shuffled", source_sites=donors)


def prepare(batches: Sequence["Batch"]) -> list["Batch"]:
    """Return the batches with what the interventions need, however the examples are batched.

    The other example is the one before among those of equal length; one alone has none.
    """
    prepared = {}
    for length in {batch.length for batch in batches}:
        equal = [number for number, batch in enumerate(batches) if batch.length == length]
        for number, before in zip(equal, [equal[-1], *equal[:-1]], strict=True):
            alone = sum(len(batches[other]) for other in equal) == 1
            prepared[number] = _with_places(batches[number], batches[before], alone=alone)
    return [prepared[number] for number in range(len(batches))]


def _with_places(batch: "Batch", before: "Batch", *, alone: bool) -> "Batch":
    """Return a batch with its places; the first example's other one is the last of `before`."""

    def of_other(mine: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        return np.concatenate([earlier[-1:], mine[:-1]])

    positions = dict(batch.positions)
    for role, index in batch.positions.items():
        others = of_other(index, before.positions[role])
        positions[_SHUFFLED.format(role)] = np.full(1, -1) if alone else others
    runs = {
        shuffled(run): of_other(batch.tokens(run), before.tokens(run))
        for run in (CLEAN, *batch.corrupted)
    }
    same = np.all([tokens == batch.clean for tokens in batch.corrupted.values()], axis=0)
    # What may be drawn: behind the first token, before the query, the same in all runs, no role.
    free = same & (np.arange(batch.length) < positions["query"][:, None])
    free[:, 0] = False
    for role in batch.positions.values():
        has = np.flatnonzero(role >= 0)
        free[has, role[has]] = False
    among = (batch.clean[:, :, None] == batch.candidates[:, None]).any(-1)
    others = free & among & (batch.clean != batch.answer[:, None])
    # Each example's own draw: what an example gets depends on nothing else.
    scores = np.stack(
        [np.random.default_rng(row).random(batch.length) for row in batch.index.tolist()]
    )
    positions[OTHER], positions[RANDOM] = _draw(others, scores), _draw(free, scores)
    return replace(batch, positions=positions, corrupted={**batch.corrupted, **runs})


def _draw(allowed: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the allowed position of each row with the highest score, −1 without one."""
    scores = np.where(allowed, scores, -1.0)
    return np.where(allowed.any(axis=1), scores.argmax(axis=1), -1)


def effects(
    rows: pa.Table, corruption: str, direction: str, *, seed: int, resamples: int
) -> list[dict[str, Any]]:
    """Return Attrib of the controls of one corruption and direction, ready for JSON."""
    chosen = rows.filter(
        pc.field("control").isin(list(NAMES))
        & (pc.field("corruption") == corruption)
        & (pc.field("direction") == direction)
    )
    found = []
    for control in NAMES:
        part = chosen.filter(pc.field("control") == control)
        if not len(part):
            continue
        names, numerator, denominator = columns(part)
        estimates = ratio_of_means(
            numerator, denominator, rng=np.random.default_rng(seed), resamples=resamples
        )
        found += [
            {"control": control, "site": name, "attrib": estimate.to_json()}
            for name, estimate in zip(names, estimates, strict=True)
        ]
    return found


def carrying(run_controls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of `effects` that carry more than half for sure."""
    return [item for item in run_controls if (item["attrib"]["low"] or 0.0) > 0.5]
