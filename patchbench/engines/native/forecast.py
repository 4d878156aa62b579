"""What the native engine would run, without running it: its forwards, one by one.

Use:

    forecast = Forecast(engine, loaded)
    for forward in forecast.batch(interventions, batch): forward.tokens, forward.blocks
    forecast.kept                                     # most bytes that would be kept at a time

The same code as in a run decides which forwards there are. What a run may find out on its way (that
a trick is wrong on the model, that smaller forwards are faster, that memory is short) is not known
beforehand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patchbench.adapters.running import scoring
from patchbench.engines.base import Batch
from patchbench.engines.native.batching import OVERHEAD
from patchbench.engines.native.engine import DONORS, Job, NativeEngine, entry
from patchbench.engines.native.forward import Chunk
from patchbench.engines.native.rounds import donor_points, rounds
from patchbench.engines.native.schedule import Schedule, cuts_of, documents_at, sampled
from patchbench.engines.native.selfcheck import EXAMPLES, TRICKS
from patchbench.engines.rows import RowWriter
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One call of the model.

    Attributes:
        rows: documents in it.
        length: tokens of each.
        blocks: that run.
        slow: components that make a mixer leave its fast path.
        patched: whether its predictions are measured.
    """

    rows: int
    length: int
    blocks: int
    slow: frozenset[str] = frozenset()
    patched: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that go in."""
        return self.rows * self.length


class Forecast:
    """The forwards of an evaluation, batch after batch.

    Args:
        engine: a fresh one.
        loaded: the model.
    """

    def __init__(self, engine: NativeEngine, loaded: "LoadedModel") -> None:
        self._engine, self._loaded = engine, loaded
        self.kept = 0

    def batch(self, interventions: Sequence[Intervention], batch: Batch) -> list[Forward]:
        """Return the forwards of `engine.run(loaded, interventions, batch)`."""
        loaded, model = self._loaded, self._engine.model_of(self._loaded)
        usable = {intervention: batch.usable(intervention) for intervention in interventions}
        pending = [item for item in usable if usable[item].any()]
        points = [point for item in pending for point in donor_points(loaded, item)]
        with scoring(loaded.model):
            looks = model.sizes.learn(loaded, points + entry(loaded), batch)
        found = [Forward(rows=1, length=batch.length, blocks=len(model.blocks))] * looks
        budget = DONORS * self._engine.cache_bytes
        writer = RowWriter(batch)
        for part in rounds(pending, loaded, batch, model.sizes, budget):
            job = _Forecast(self._engine, model, loaded, batch, part, usable, writer)
            found += job.forwards()
            self.kept = max(self.kept, job.kept())
        return found


class _Forecast(Job):
    def forwards(self) -> Iterator[Forward]:
        model, work, batch = self._model, self._work, self._batch
        for _ in self._runs():
            yield self._unpatched(len(batch))
        self._drop("layer", model.blocks.problem)
        if (past := self._past()) is not None:
            if self._unchecked():
                yield self._unpatched(min(EXAMPLES, len(batch)))
            self._cuts = cuts_of(work, batch.length, OVERHEAD)
            for length in past.lengths(documents_at(work, self._cuts)):
                yield self._unpatched(len(work.base_runs) * len(batch), length)
        layers = self._resumable() if "layer" in model.tricks else set()
        schedule = Schedule(work, batch, layers=layers, cuts=self._cuts)
        if components := self._unchecked():
            items, used = sampled(work, self._interventions), frozenset()
            for trick in ("", *(trick for trick in TRICKS if trick in model.tricks)):
                used = used | {trick}
                for chunk in schedule.groups(items, used):
                    yield self._forward(chunk)
            model.checked |= dict.fromkeys(components, batch.length)
        for group in schedule.groups(np.arange(len(work)), model.tricks):
            left, tuner = group.items, self._tuner(group)
            while len(left):
                piece = schedule.piece(group, left, tuner, model.tricks)
                yield self._forward(piece)
                # As if all sizes were equally fast: the largest is taken.
                tuner.note(tuner.tokens, piece.tokens, 1, piece.tokens)
                left = left[len(piece.items) :]

    def kept(self) -> int:
        """Return the bytes of donors' activations and of what enters blocks."""
        work, batch, sizes = self._work, self._batch, self._model.sizes
        donors = sum(
            slots * len(batch) * sizes.bytes_of(point, batch) for point, slots in work.slots.items()
        )
        width = max((sizes.bytes_of(p, batch) for p in entry(self._loaded)), default=0)
        documents = len(work.base_runs) * len(batch)
        layers = self._resumable() if "layer" in self._model.tricks else set()
        return donors + documents * batch.length * width * len(layers)

    def _unpatched(self, rows: int, length: int | None = None) -> Forward:
        blocks = len(self._model.blocks)
        return Forward(rows=rows, length=length or self._batch.length, blocks=blocks)

    def _forward(self, chunk: Chunk) -> Forward:
        return Forward(
            rows=len(chunk.items),
            length=chunk.end - chunk.cut,
            blocks=len(self._model.blocks) - chunk.layer,
            slow=self._work.slow[int(self._work.number[chunk.items[0]])],
            patched=True,
        )
