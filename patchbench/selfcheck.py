"""The engine of a run against the reference engine, on part of its first batch.

Use:

    agreement = compare(loaded, plan, batch, rows, engine="native")
    agreement.difference                      # raises ControlError above the tolerance

The rows that are compared are those that the run reports; only the reference is computed anew, for
a few examples and for interventions spread over the plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from patchbench.common import ControlError, UserError
from patchbench.engines import ENGINES, Batch
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters import LoadedModel

REFERENCE = "pyvene"
# Largest difference of a row, relative where a value is larger than 1.
TOLERANCE = {"float32": 1e-5, "float64": 1e-8}
HALF_TOLERANCE = 5e-2
EXAMPLES, INTERVENTIONS = 4, 24
_COLUMNS = ("p_patched", "logp_patched", "logit_patched", "p_base", "p_source", "kl_patched")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far an engine is from the reference.

    Attributes:
        difference: largest |a − b| / max(1, |b|) over rows and metrics.
        rows: compared.
    """

    engine: str
    reference: str
    difference: float
    tolerance: float
    rows: int


def compare(
    loaded: "LoadedModel",
    plan: Sequence[Intervention],
    batch: Batch,
    rows: pa.Table,
    *,
    engine: str,
) -> Agreement | None:
    """Return how well `rows`, which `engine` gave for `batch`, agree with the reference.

    Returns:
        None where there is nothing that the reference can compute as well.

    Raises:
        ControlError: they differ by more than the tolerance.
    """
    points = loaded.hook_map.points
    reachable = [
        item
        for item in plan
        if all(
            points[site.layer, site.component].source is None
            for site in (*item.sites, *item.donors)
        )
    ]
    if engine == REFERENCE or not reachable:
        return None
    spread = np.unique(np.linspace(0, len(reachable) - 1, INTERVENTIONS).astype(int))
    chosen = [reachable[index] for index in spread]
    reference = ENGINES[REFERENCE]().run(loaded, chosen, batch.select(slice(0, EXAMPLES)))
    found = {_key(row): row for row in rows.to_pylist()}
    tolerance = TOLERANCE.get(loaded.dtype, HALF_TOLERANCE)
    worst, where = 0.0, ""
    for row in reference.to_pylist():
        if _key(row) not in found:
            raise ControlError(f"engine {engine!r} has no row for {row['site']}")
        other = found[_key(row)]
        for column in _COLUMNS:
            distance = abs(other[column] - row[column]) / max(1.0, abs(row[column]))
            if not distance <= worst:
                worst, where = distance, f"{column} at {row['site']}"
    if not worst <= tolerance:
        raise ControlError(
            f"engine {engine!r} differs from {REFERENCE!r} by {worst:.2e} ({where}), allowed "
            f"{tolerance:.0e}: use --engine {REFERENCE}"
        )
    return Agreement(
        engine=engine,
        reference=REFERENCE,
        difference=worst,
        tolerance=tolerance,
        rows=len(reference),
    )


def refuse_unreachable(loaded: "LoadedModel", plan: Sequence[Intervention], engine: str) -> None:
    """Raise `UserError` for a place inside a forward, unless the engine reaches there."""
    for item in plan:
        for site in (*item.sites, *item.donors):
            point = loaded.hook_map.point(site.layer, site.component)
            if point.source is not None and engine != "nnsight":
                raise UserError(
                    f"{site} is inside the forward of {point.path}, where no hook reaches",
                    "use --engine nnsight",
                )


def _key(row: dict) -> tuple:
    return tuple(row[name] for name in ("example", "site", "corruption", "direction", "control"))
