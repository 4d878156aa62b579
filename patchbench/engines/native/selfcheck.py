"""Each trick against the plain path, on the model and the documents at hand.

The plain path is one forward per intervention over whole documents with nothing left out. A trick
that moves a prediction by more than rounding is switched off for that model, and a note says so.

Use:

    items = sample(work)
    kept, notes = check(compute, items, tricks)        # compute(items, tricks) → logits
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from patchbench.common import UserError
from patchbench.engines.native.work import Work

# In the order in which they build on each other.
TRICKS = ("repeat", "layer", "position")
WORDS = {
    "repeat": "several interventions in one forward",
    "layer": "resuming at the patched layer",
    "position": "resuming at the patched position",
}
# Largest change of a logit that is rounding, relative to the largest logit.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
HALF_TOLERANCE = 3e-2
# Examples of each sampled intervention.
EXAMPLES = 2

Compute = Callable[[np.ndarray, frozenset[str]], Tensor]


def sample(work: Work, places: list[tuple[str, ...]]) -> np.ndarray:
    """Return items of a few interventions: every component, and the extremes of layer and position.

    Args:
        work: what there is.
        places: per intervention the components that it patches.
    """
    first = np.full(len(places), np.iinfo(np.int64).max)
    layer = np.zeros(len(places), int)
    np.minimum.at(first, work.number, work.first)
    layer[work.number] = work.layer
    present = np.unique(work.number)
    groups: dict[tuple[str, ...], list[int]] = {}
    for number in present[np.lexsort((first[present], layer[present]))]:
        groups.setdefault(places[number], []).append(int(number))
    chosen = {present[index] for values in (first, layer) for index in _extremes(values[present])}
    for turn, members in enumerate(groups.values()):
        # Each component at another depth and position.
        chosen.add(members[(turn * 7 + len(members) // 2) % len(members)])
    items = []
    for number in sorted(chosen):
        mine = np.flatnonzero(work.number == number)
        items += list(np.unique(mine[np.linspace(0, len(mine) - 1, EXAMPLES).astype(int)]))
    return np.array(items)


def _extremes(values: np.ndarray) -> tuple[int, int]:
    return int(np.argmin(values)), int(np.argmax(values))


def difference(found: Tensor, truth: Tensor, dtype: str) -> str | None:
    """Say how far predictions are from the true ones, if by more than rounding."""
    allowed = TOLERANCE.get(dtype, HALF_TOLERANCE) * max(1.0, float(truth.abs().max()))
    moved = float((found.float() - truth.float()).abs().max())
    return None if moved <= allowed else f"moves a logit by {moved:.2g}"


def check(
    compute: Compute, items: np.ndarray, tricks: frozenset[str], dtype: str
) -> tuple[frozenset[str], list[str]]:
    """Return the tricks that leave the predictions as they are, and notes about the others."""
    truth = compute(items, frozenset())
    kept: frozenset[str] = frozenset()
    notes = []
    for trick in TRICKS:
        if trick not in tricks:
            continue
        try:
            problem = difference(compute(items, kept | {trick}), truth, dtype)
        except torch.OutOfMemoryError:
            raise
        except (UserError, RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            problem = f"fails ({type(error).__name__}: {error})"
        if problem is None:
            kept |= {trick}
        else:
            notes.append(f"native: {WORDS[trick]} {problem} on this model and is switched off")
    return kept, notes
