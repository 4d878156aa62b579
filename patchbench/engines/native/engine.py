"""The fast engine: computes of every patched run only what the patch can change.

Use:

    engine = NativeEngine()
    rows = engine.run(loaded, interventions, batch)
    engine.counters.notes                         # tricks that were switched off, and why

Per batch each run (clean, and each corruption) goes through the model once. Then the patched runs
are grouped by the block and the token at which the patch first matters, start there from what the
unpatched run left, and share forwards where that is faster. Each of these tricks is compared with
the plain path before it is relied on.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from patchbench.common import UserError
from patchbench.engines.base import Batch, Counters
from patchbench.engines.native.batching import OVERHEAD, Grouping, Tuner, choose_cuts, cut_of, plan
from patchbench.engines.native.blocks import Blocks
from patchbench.engines.native.forward import Chunk, Runner
from patchbench.engines.native.recording import Recording
from patchbench.engines.native.selfcheck import TRICKS, WORDS, check, sample
from patchbench.engines.native.states import Past, past_of
from patchbench.engines.native.work import Work
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import halving, scoring
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

# Blocks, cached activations and the past share one budget; this part is for what enters blocks.
_ENTERING = 0.5


class NativeEngine:
    """See `patchbench.engines.base.Engine`.

    Args:
        cache_bytes: most that everything kept of the unpatched runs may take. Interventions whose
            activations do not fit wait for another round, with one more forward per run.
        tricks: which of `selfcheck.TRICKS` may be used, where they are right.

    Attributes:
        kept: most bytes that were kept of unpatched runs at a time.
    """

    name = "native"

    def __init__(self, *, cache_bytes: int = 2**30, tricks: Sequence[str] = TRICKS) -> None:
        self.counters = Counters()
        self.cache_bytes = cache_bytes
        self.tricks = frozenset(tricks)
        self.kept = 0
        self._models: WeakKeyDictionary[nn.Module, _Model] = WeakKeyDictionary()

    def run(
        self, loaded: "LoadedModel", interventions: Sequence[Intervention], batch: Batch
    ) -> pa.Table:
        """See `Engine.run`; a batch that does not fit into memory is halved."""
        return halving(lambda part: self._run(loaded, interventions, part), batch, self.counters)

    def _run(
        self, loaded: "LoadedModel", interventions: Sequence[Intervention], batch: Batch
    ) -> pa.Table:
        usable = {intervention: batch.usable(intervention) for intervention in interventions}
        pending = [item for item in usable if usable[item].any()]
        writer = RowWriter(batch)
        if loaded.model not in self._models:
            self._models[loaded.model] = _Model(Blocks(loaded.model, loaded.hook_map), self.tricks)
        with scoring(loaded.model):
            while pending:
                part = pending[: len(pending)]
                _Job(self, self._models[loaded.model], loaded, batch, part, usable, writer).run()
                pending = pending[len(part) :]
        for intervention, mask in usable.items():
            self.counters.skip(intervention, int((~mask).sum()))
        return writer.table()


class _Model:
    """What was learned about a model.

    Attributes:
        tricks: those that are right on it.
        checked: component → longest documents on which that was checked.
        tuners: by what makes forwards unlike each other.
    """

    def __init__(self, blocks: Blocks, tricks: frozenset[str]) -> None:
        self.blocks, self.tricks = blocks, tricks
        self.checked: dict[str, int] = {}
        self.tuners: dict[frozenset[str], Tuner] = {}
        self.overhead = OVERHEAD


class _Job:
    """One batch and the interventions of one round."""

    def __init__(
        self,
        engine: NativeEngine,
        model: _Model,
        loaded: "LoadedModel",
        batch: Batch,
        interventions: Sequence[Intervention],
        usable: dict[Intervention, np.ndarray],
        writer: RowWriter,
    ) -> None:
        self._engine, self._counters = engine, engine.counters
        self._model, self._loaded, self._batch, self._writer = model, loaded, batch, writer
        self._interventions, self._usable = interventions, usable
        self._work = Work(interventions, usable, batch, loaded.hook_map)
        self._ends = np.maximum(batch.read_out[self._work.example], self._work.last) + 1
        self._cuts = np.zeros(1, int)

    def run(self) -> None:
        """Write the rows of the interventions."""
        past = self._past()
        recording = self._record(past)
        self._prepare(past, recording)
        kept = recording.nbytes + (0 if past is None else past.nbytes)
        self._engine.kept = max(self._engine.kept, kept)
        self._runner = Runner(
            self._loaded,
            self._batch,
            self._work,
            recording,
            self._model.blocks,
            past if "position" in self._model.tricks else None,
            self._counters,
        )
        self._layers = np.array([0, *sorted(recording.entering)])
        self._check()
        self._patch()

    def _past(self) -> Past | None:
        if "position" not in self._model.tricks:
            return None
        blocks = len(self._model.blocks)
        past, problem = past_of(self._loaded.model, blocks, self._batch.length)
        self._drop("position", problem)
        return past

    def _record(self, past: Past | None) -> Recording:
        """Run the model unpatched."""
        blocks, work = self._model.blocks, self._work
        self._drop("layer", blocks.problem)
        layers = set(map(int, work.layer)) - {0} if "layer" in self._model.tricks else set()
        recording = Recording(self._loaded, self._batch, work, blocks, layers=layers, past=past)
        sources = [intervention.source_run for intervention in self._interventions]
        for run in dict.fromkeys([*work.base_runs, *sources, *work.wanted, "clean"]):
            logits = recording.observe(run)
            self._counters.forwards += 1
            self._counters.forward_rows += len(self._batch)
            if run not in self._writer.observed:
                self._writer.observe(run, logits)
        if self._drop("layer", blocks.problem):
            recording.entering.clear()
        return recording

    def _prepare(self, past: Past | None, recording: Recording) -> None:
        """Choose where documents are cut, and keep the past there."""
        if past is None:
            return
        work = self._work
        groups = len(np.unique(np.stack([work.layer, work.kind]), axis=1).T)
        overhead = self._model.overhead * groups
        self._cuts = choose_cuts(work.first, self._batch.length, overhead)
        cut = cut_of(work, np.arange(len(work)), self._cuts)
        needed = {int(c): np.unique(work.document[cut == c]) for c in np.unique(cut)}
        self._drop("position", past.at_cuts(recording.tokens, needed))

    def _check(self) -> None:
        """Compare the tricks with the plain path: at first, and on much longer documents."""
        checked, length = self._model.checked, self._batch.length
        places = [tuple(site.component for site in item.sites) for item in self._interventions]
        components = {name for names in places for name in names}
        if all(length <= 2 * checked.get(name, 0) for name in components):
            return
        kept, notes = check(
            self._compute, sample(self._work, places), self._model.tricks, self._loaded.dtype
        )
        self._model.tricks = kept
        self._note(notes)
        checked |= dict.fromkeys(components, length)

    def _compute(self, items: np.ndarray, tricks: frozenset[str]) -> torch.Tensor:
        """Return the predictions of `items` with these tricks."""
        found = {}
        for chunk in self._chunks(items, tricks):
            found |= zip(chunk.items.tolist(), self._runner.logits(chunk), strict=True)
        return torch.stack([found[item] for item in items.tolist()])

    def _patch(self) -> None:
        """Run everything, and write the rows."""
        work, interventions = self._work, self._interventions
        contrasts = [(item.corruption, item.source_run) for item in interventions]
        known = sorted(set(contrasts))
        contrast = np.array([known.index(pair) for pair in contrasts])[work.number]
        values: dict[str, np.ndarray] = {}
        for chunk in self._chunks(np.arange(len(work)), self._model.tricks):
            for items, logits in self._run_chunk(chunk):
                for index in np.unique(contrast[items]):
                    rows = np.flatnonzero(contrast[items] == index)
                    mine, part = items[rows], logits
                    if len(rows) < len(items):
                        part = logits[torch.as_tensor(rows, device=logits.device)]
                    corruption, source_run = known[index]
                    found = self._writer.patched(corruption, source_run, work.example[mine], part)
                    for name, column in found.items():
                        if name not in values:
                            shape = (len(interventions), len(self._batch))
                            values[name] = np.full(shape, np.nan)
                        values[name][work.number[mine], work.example[mine]] = column
        for number, intervention in enumerate(interventions):
            own = {name: column[number] for name, column in values.items()}
            self._writer.add_values(intervention, self._usable[intervention], own)

    def _run_chunk(self, group: Chunk):
        """Yield items and their predictions, as many at a time as run fastest and fit."""
        left = group.items
        width = group.end - group.cut
        tuner = self._tuner(group)
        while len(left):
            size = tuner.tokens
            most = max(1, min(size // width, size // 2))
            if "repeat" not in self._model.tricks:
                most = len(left)
            # Equal parts, rather than a small rest.
            count = -(-len(left) // -(-len(left) // most))
            chunk = Chunk(items=left[:count], layer=group.layer, cut=group.cut, end=group.end)
            started = time.process_time()
            try:
                logits = self._runner.logits(chunk)
            except torch.OutOfMemoryError as error:
                if count == 1:
                    raise UserError(
                        "one patched document does not fit into the device's memory",
                        "use --device cpu, a narrower --dtype, or shorter documents",
                    ) from error
                logits = None
            if logits is None:
                # Outside of the handler, which would keep the failed attempt's tensors alive.
                tuner.halve()
                self._note(["native: out of memory: patched forwards were halved"])
                continue
            blocks = len(self._model.blocks) - group.layer + 1
            tuner.note(size, chunk.tokens, blocks, time.process_time() - started)
            yield chunk.items, logits
            left = left[count:]

    def _tuner(self, group: Chunk) -> Tuner:
        number = int(self._work.number[group.items[0]])
        kind = self._work.slow[number]
        largest = len(self._batch) * self._batch.length
        tuner = self._model.tuners.setdefault(kind, Tuner(largest=largest))
        return tuner

    def _chunks(self, items: np.ndarray, tricks: frozenset[str]):
        length = self._batch.length
        how = Grouping(
            cuts=self._cuts if "position" in tricks else np.zeros(1, int),
            layers=self._layers if "layer" in tricks else np.zeros(1, int),
            repeat="repeat" in tricks,
        )
        ends = self._ends if "position" in tricks else np.full(len(self._work), length)
        return plan(self._work, items, length, ends, how)

    def _drop(self, trick: str, problem: str | None) -> bool:
        """Switch a trick off if there is a problem."""
        if problem is None or trick not in self._model.tricks:
            return False
        self._model.tricks -= {trick}
        self._note([f"native: {WORDS[trick]} is off: {problem}"])
        return True

    def _note(self, notes: Sequence[str]) -> None:
        self._counters.notes += [note for note in notes if note not in self._counters.notes]
