"""Accuracy and effects on parts of the examples: what no heuristic solves, and by distance.

On associative treecall two blind heuristics ("copy the token after the query", "copy the last
token") are right on half of the examples, so a mean over all of them says little about recall.

Use:

    for stratum in strata(examples):
        stratum.name, stratum.mask
    part = stratum.rows(rows)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from patchbench.statistics import Estimate, wilson

BEYOND = "no heuristic"


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """Some of the examples.

    Attributes:
        name: "no heuristic", "distance 1", "distance 2–3", …
        examples: their numbers, as in the `example` column.
    """

    name: str
    examples: np.ndarray

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows of its examples."""
        return rows.filter(pa.array(np.isin(rows["example"].to_numpy(), self.examples)))


def strata(examples: pa.Table) -> list[Stratum]:
    """Return the strata of examples (one row each), without those that are all of them or none."""
    number = examples["example"].to_numpy()
    masks = {BEYOND: ~examples["heuristic"].to_numpy()}
    low = distance_bins(examples["distance"].to_numpy())
    for start in np.unique(low):
        masks[f"distance {span(start)}"] = low == start
    return [
        Stratum(name=name, examples=number[mask])
        for name, mask in masks.items()
        if 0 < mask.sum() < len(number)
    ]


def accuracies(examples: pa.Table) -> list[dict[str, Any]]:
    """Return both accuracies of each stratum, ready for JSON."""
    found = []
    for stratum in strata(examples):
        part = stratum.rows(examples)
        found.append(
            {
                "stratum": stratum.name,
                "n": len(part),
                "accuracy": share(part["correct"].to_numpy()).to_json(),
                "accuracy_in_context": share(part["correct_in_context"].to_numpy()).to_json(),
            }
        )
    return found


def distance_bins(distance: np.ndarray) -> np.ndarray:
    """Return the smallest distance of each one's bin: 1, 2–3, 4–7, 8–15 and so on."""
    return 2 ** np.floor(np.log2(np.maximum(distance, 1))).astype(int)


def span(start: int) -> str:
    """Return the bin that begins at `start` in words."""
    return str(start) if start == 1 else f"{start}–{2 * start - 1}"


def share(hits: np.ndarray) -> Estimate:
    """Return the share of true values, with Wilson's interval."""
    return wilson(int(hits.sum()), len(hits))
