"""Which forwards a batch's work comes to: decided here, whether they are run or only counted.

Use:

    schedule = Schedule(work, batch, layers={3}, cuts=np.array([0, 9]))
    for group in schedule.groups(items, tricks):
        left = group.items
        while len(left):
            piece = schedule.piece(group, left, tuner, tricks)      # one forward
            left = left[len(piece.items):]
"""

from collections.abc import Iterator, Sequence, Set

import numpy as np

from patchbench.engines.base import Batch
from patchbench.engines.native.batching import Grouping, Tuner, choose_cuts, cut_of, plan
from patchbench.engines.native.forward import Chunk
from patchbench.engines.native.selfcheck import sample
from patchbench.engines.native.work import Work
from patchbench.interventions import Intervention

# Tokens of a patched forward, at most, for each of an unpatched one: without logits at every token
# they take less memory.
WIDER = 2
# Documents of a patched forward, at most, for each that would fit in at full length: with more of
# them their logits, and what is measured of them, outgrow an unpatched forward with all its logits.
SHORTER = 2


class Schedule:
    """The forwards of one batch's work.

    Args:
        work: what there is.
        batch: the examples.
        layers: where forwards may resume, beside 0.
        cuts: where documents may be cut, ascending.
    """

    def __init__(self, work: Work, batch: Batch, *, layers: Set[int], cuts: np.ndarray) -> None:
        self._work, self._length = work, batch.length
        self._layers = np.array([0, *sorted(layers)])
        self._cuts = cuts
        self._ends = np.maximum(batch.read_out[work.example], work.last) + 1

    def groups(self, items: np.ndarray, tricks: Set[str]) -> Iterator[Chunk]:
        """Yield items that may share forwards with these tricks, of any number."""
        how = Grouping(
            cuts=self._cuts if "position" in tricks else np.zeros(1, int),
            layers=self._layers if "layer" in tricks else np.zeros(1, int),
            repeat="repeat" in tricks,
        )
        whole = np.full(len(self._work), self._length)
        ends = self._ends if "position" in tricks else whole
        return plan(self._work, items, self._length, ends, how)

    def piece(self, group: Chunk, left: np.ndarray, tuner: Tuner, tricks: Set[str]) -> Chunk:
        """Return the next forward of a group, of which the items `left` are still to be run."""
        size = tuner.tokens
        whole = size // self._length
        most = max(1, min(size // (group.end - group.cut), SHORTER * whole))
        if "repeat" not in tricks:
            most = len(left)
        # Equal parts, rather than a small rest.
        count = -(-len(left) // -(-len(left) // most))
        return Chunk(items=left[:count], layer=group.layer, cut=group.cut, end=group.end)


def cuts_of(work: Work, length: int, overhead: float) -> np.ndarray:
    """Return where documents are cut, if a forward costs as much as `overhead` tokens."""
    groups = len(np.unique(np.stack([work.layer, work.kind]), axis=1).T)
    return choose_cuts(work.first, length, overhead * groups)


def documents_at(work: Work, cuts: np.ndarray) -> dict[int, np.ndarray]:
    """Return cut → the documents of which a run starts there, ascending."""
    cut = cut_of(work, np.arange(len(work)), cuts)
    return {int(c): np.unique(work.document[cut == c]) for c in np.unique(cut)}


def sampled(work: Work, interventions: Sequence[Intervention]) -> np.ndarray:
    """Return the items on which the tricks are checked."""
    return sample(work, [tuple(s.component for s in item.sites) for item in interventions])
