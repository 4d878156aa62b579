"""Controls that every run carries: patches whose effect is known before the model is asked.

| control  | patch                                             | must equal            |
|----------|---------------------------------------------------|-----------------------|
| identity | a site receives its own activation                | the base run          |
| restore  | layer-0 `block_input` at every corrupted token    | the source run        |
| placebo  | `block_input` at the answer, after the read-out   | the base run          |

All three are *hard*: a deviation means that a hook fired at the wrong place, in the wrong row or
not at all, and every other number of the run would be wrong without a sign. `check` raises then.

Use:

    interventions += controls.interventions(hook_map, corruption="key", direction="denoise")
    table = controls.check(rows, dtype="float32")
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench.common import ControlError
from patchbench.interventions import Direction, Intervention
from patchbench.sites import Position, Site

if TYPE_CHECKING:
    from patchbench.adapters.hook_map import HookMap
    from patchbench.engines.base import Batch

# Largest |p_patched − p_expected| over rows; half-precision matmuls differ between batch shapes.
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
HALF_TOLERANCE = 2e-2

PARTNER = "partner"
EXPECTED = {"identity": "p_base", "restore": "p_source", "placebo": "p_base"}


@dataclass(frozen=True, kw_only=True)
class ControlCheck:
    """One control of one corruption and direction.

    Attributes:
        error: largest |p_patched − p_expected| over `n` rows.
    """

    control: str
    site: str
    corruption: str
    direction: str
    error: float
    tolerance: float
    n: int

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance; a NaN is not."""
        return bool(self.error <= self.tolerance)


def corrupted_positions(corruption: str) -> tuple[Position, ...]:
    """Return the positions at which `corruption` changes the tokens."""
    if corruption == "swap":
        return (Position("value"), Position(PARTNER))
    return (Position(corruption),)


def interventions(
    hook_map: "HookMap", *, corruption: str, direction: Direction
) -> list[Intervention]:
    """Return the three control interventions of one corruption and direction."""
    middle = hook_map.num_layers // 2
    measure = partial(Intervention, corruption=corruption, direction=direction)

    def sites(layer: int, positions: Iterable[Position]) -> tuple[Site, ...]:
        return tuple(Site(layer, "block_input", position) for position in positions)

    corrupted = corrupted_positions(corruption)
    return [
        measure(sites=sites(middle, corrupted[:1]), source="self", control="identity"),
        measure(sites=sites(0, corrupted), control="restore"),
        measure(sites=sites(middle, [Position("answer")]), control="placebo"),
    ]


def with_partner(batch: "Batch") -> "Batch":
    """Add the role `partner`: where the swap corruption put the clean answer (−1 without one)."""
    swapped = batch.corrupted.get("swap")
    if swapped is None or PARTNER in batch.positions:
        return batch
    differs = np.asarray(swapped != batch.clean)
    rows = np.arange(len(differs))
    differs[rows, np.asarray(batch.positions["value"])] = False
    partner = np.where(differs.any(axis=1), differs.argmax(axis=1), -1)
    return replace(batch, positions={**batch.positions, PARTNER: partner})


def check(rows: pa.Table, *, dtype: str) -> list[ControlCheck]:
    """Compare every control row with what it must equal.

    Raises:
        ControlError: a hard control is off by more than the tolerance, or has no rows at all.
    """
    tolerance = TOLERANCE.get(dtype, HALF_TOLERANCE)
    controls = rows.filter(pc.field("control").isin(list(EXPECTED)))
    keys = ["control", "site", "corruption", "direction"]
    found = []
    for group in controls.group_by(keys).aggregate([]).select(keys).to_pylist():
        part = controls.filter(reduce(and_, (pc.field(key) == group[key] for key in keys)))
        patched = part["p_patched"].to_numpy()
        expected = part[EXPECTED[group["control"]]].to_numpy()
        found.append(
            ControlCheck(
                **group,
                error=float(np.abs(patched - expected).max()),
                tolerance=tolerance,
                n=len(part),
            )
        )
    order = list(EXPECTED)
    found.sort(key=lambda c: (c.corruption, c.direction, order.index(c.control)))
    for item in found:
        if not item.passed:
            raise ControlError(
                f"control {item.control!r} at {item.site} ({item.corruption} corrupted, "
                f"{item.direction}) is off by {item.error:.2e} in probability, allowed "
                f"{item.tolerance:.0e}: the model's hooks are not where the HookMap says"
            )
    wanted = {(c, d) for c, d in zip(*_corruptions(rows), strict=True)}
    for corruption, direction in sorted(wanted):
        have = {c.control for c in found if (c.corruption, c.direction) == (corruption, direction)}
        if missing := set(EXPECTED) - have:
            raise ControlError(
                f"control {min(missing)!r} has no rows for {corruption} corrupted, {direction}"
            )
    return found


def _corruptions(rows: pa.Table) -> tuple[list[str], list[str]]:
    pairs = rows.group_by(["corruption", "direction"]).aggregate([])
    return pairs["corruption"].to_pylist(), pairs["direction"].to_pylist()
