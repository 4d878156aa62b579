"""Which items share a forward, and how many.

A forward has a fixed cost (Python, kernel launches, reading the weights) and a cost per token that
runs through its blocks. Items are grouped by the block and the token at which they resume; a group
starts where its earliest item does, so merging wastes tokens and splitting wastes forwards. Both
costs are measured as the work goes on.

Use:

    cuts = choose_cuts(work.first, end=37, overhead=100)
    for chunk in plan(work, items, ...): ...
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from patchbench.engines.native.forward import Chunk
from patchbench.engines.native.work import Work

# Until it was measured: what a forward costs, in tokens.
OVERHEAD = 64.0


def choose_cuts(first: np.ndarray, end: int, overhead: float) -> np.ndarray:
    """Return where documents are cut so that forwards and wasted tokens cost least together.

    Args:
        first: (n,) smallest patched positions.
        end: length of the documents.
        overhead: tokens that one more cut costs.

    Returns:
        Ascending cuts; an item starts at the last one at or before its first position.
    """
    positions, counts = np.unique(first, return_counts=True)
    size = len(positions)
    best, came = np.full(size + 1, np.inf), np.zeros(size + 1, int)
    best[0] = 0.0
    total = np.concatenate([[0], np.cumsum(counts)])
    for stop in range(1, size + 1):
        starts = np.arange(stop)
        costs = best[starts] + overhead + (total[stop] - total[starts]) * (end - positions[starts])
        came[stop] = int(np.argmin(costs))
        best[stop] = costs[came[stop]]
    cuts, stop = [], size
    while stop:
        stop = came[stop]
        cuts.append(positions[stop])
    return np.array(cuts[::-1], int)


@dataclass(kw_only=True)
class Grouping:
    """How items are put into forwards.

    Attributes:
        cuts: where documents may be cut; only 0 if they are not.
        layers: where forwards may resume, ascending; only 0 if they do not.
        repeat: whether several interventions share a forward.
    """

    cuts: np.ndarray
    layers: np.ndarray
    repeat: bool


def cut_of(work: Work, items: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return where each item's document is cut."""
    cut = cuts[np.searchsorted(cuts, work.first[items], side="right") - 1]
    return np.where(work.whole[items], 0, cut)


def plan(
    work: Work, items: np.ndarray, length: int, ends: np.ndarray, how: Grouping
) -> Iterator[Chunk]:
    """Yield groups of items that can share forwards, of any size.

    Args:
        work: what there is.
        items: which of it to do.
        length: tokens of the documents.
        ends: per item the token behind the last that matters.
        how: see `Grouping`.
    """
    layer = how.layers[np.searchsorted(how.layers, work.layer[items], side="right") - 1]
    cut = cut_of(work, items, how.cuts)
    end = np.where(work.whole[items], length, ends[items])
    keys = [work.number[items]]
    if how.repeat:
        keys = [cut, layer, work.whole[items], work.kind[items]]
    order = np.lexsort(keys)
    changes = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    for part in np.split(order, np.flatnonzero(changes) + 1):
        yield Chunk(
            items=items[part],
            layer=int(layer[part].min()),
            cut=int(cut[part].min()),
            end=int(end[part].max()),
        )


@dataclass(kw_only=True)
class Tuner:
    """Finds the number of tokens per forward that runs fastest, by trying.

    The sizes that are tried come in a fixed order, and the largest is taken unless a smaller one is
    clearly faster: rounding depends on the size, and equal runs are to give equal rows.

    Attributes:
        largest: most tokens that a forward may have.
        chosen: size of all further forwards; None while sizes are tried.
        speeds: size → tokens × blocks a second, as far as it was tried.
    """

    largest: int
    chosen: int | None = None
    speeds: dict[int, list[float]] = field(default_factory=dict)

    LADDER = (1, 4)
    TRIES = 2
    CLEARLY = 1.5

    @property
    def tokens(self) -> int:
        """Tokens that the next forward should have."""
        if self.chosen is not None:
            return self.chosen
        return next(s for s in self._sizes() if len(self.speeds.get(s, ())) < self.TRIES)

    def note(self, size: int, tokens: int, blocks: int, seconds: float) -> None:
        """Take the measurement of a forward that was to have `size` tokens and had `tokens`."""
        if self.chosen is not None or 2 * tokens < size:
            return
        self.speeds.setdefault(size, []).append(tokens * blocks / max(seconds, 1e-9))
        sizes = self._sizes()
        if all(len(self.speeds.get(s, ())) >= self.TRIES for s in sizes):
            best = {s: max(self.speeds[s]) for s in sizes}
            fastest = max(sizes, key=best.__getitem__)
            clearly = best[fastest] > self.CLEARLY * best[self.largest]
            self.chosen = fastest if clearly else self.largest

    def halve(self) -> None:
        """Allow half as many tokens only."""
        self.largest = max(1, self.largest // 2)
        self.chosen = None
        self.speeds.clear()

    def state(self) -> dict[str, Any]:
        """Return where it stands, ready for JSON."""
        speeds = [[size, values] for size, values in self.speeds.items()]
        return {"largest": self.largest, "chosen": self.chosen, "speeds": speeds}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Tuner":
        """Return one that stands where `state` was taken."""
        speeds = {size: list(values) for size, values in state["speeds"]}
        return cls(largest=state["largest"], chosen=state["chosen"], speeds=speeds)

    def _sizes(self) -> list[int]:
        return list(dict.fromkeys(max(1, self.largest // step) for step in self.LADDER))


def seconds_worked(device: str) -> float:
    """Return the seconds that a device has worked, as far as that can be told, from any start."""
    kind = torch.device(device).type
    if kind == "cpu":
        return time.process_time()  # another process on the machine does not count
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
