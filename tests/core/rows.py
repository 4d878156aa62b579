"""Rows with known numbers, for the tests of what is computed from rows."""

from typing import Any

import numpy as np
import pyarrow as pa

from patchbench.effects import METRICS, ROW_SCHEMA
from patchbench.sites import Site

PROVENANCE: dict[str, Any] = {
    "model": {"name": "m", "num_parameters": 1, "dtype": "float32", "device": "cpu"},
    "task": {
        "name": "t",
        "seed": 0,
        "config": {},
        "floors": {"guess": 0.25, "either": 0.5},
        "floor": "guess",
    },
    "dataset": {"rows": 20, "sha256": "0"},
    "template": None,
    "notes": [],
}


def make_rows(
    effects: dict[str, float],
    *,
    n: int = 20,
    clean: float = 0.9,
    corrupted: float = 0.1,
    right: int = 18,
    direction: str = "denoise",
    twins: bool = True,
    control: str | None = None,
) -> pa.Table:
    """Return rows in which each site has just the Attrib that `effects` gives it."""
    base, source = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    wobble = np.linspace(-0.05, 0.05, n)  # examples differ, means do not
    rows = []
    for text, effect in effects.items():
        site = Site.parse(text)
        for example in range(n):
            values = {
                "base": base + wobble[example],
                "source": source - wobble[example],
                "patched": base + effect * (source - base) + wobble[-1 - example],
            }
            row = {f"{metric}_{run}": values[run] for metric in METRICS for run in values}
            if not twins:
                row |= {f"logit_diff_{run}": None for run in values}
            rows.append(
                row
                | {
                    "example": example,
                    "site": text,
                    "layer": site.layer,
                    "component": site.component,
                    "role": site.position.role,
                    "offset": site.position.offset,
                    "head": site.head,
                    "corruption": "key",
                    "direction": direction,
                    "control": control,
                    "kl_base": 1.0,
                    "kl_patched": 0.5,
                    "correct": example < right,
                    "correct_in_context": True,
                    "distance": 1 + example % 4,
                    "heuristic": example % 2 == 0,
                }
            )
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)
