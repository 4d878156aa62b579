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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.running import scoring
from patchbench.common import UserError
from patchbench.engines.base import Batch, Counters
from patchbench.engines.native.batching import OVERHEAD, Tuner, seconds_worked
from patchbench.engines.native.blocks import Blocks
from patchbench.engines.native.forward import Chunk, Runner
from patchbench.engines.native.recording import Recording
from patchbench.engines.native.rounds import Sizes, donor_points, rounds
from patchbench.engines.native.schedule import WIDER, Schedule, cuts_of, documents_at, sampled
from patchbench.engines.native.selfcheck import EXAMPLES, TRICKS, WORDS, check, difference
from patchbench.engines.native.states import Past, past_of
from patchbench.engines.native.work import Work
from patchbench.engines.rows import RowWriter
from patchbench.engines.scoring import halving
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

# Shares of the budget: donors' activations, what enters blocks, and the past.
DONORS, _ENTERING, _PAST = 0.4, 0.3, 0.3


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
        model = self.model_of(loaded)
        with scoring(loaded.model):
            points = [point for item in pending for point in donor_points(loaded, item)]
            points += entry(loaded)
            looks = model.sizes.learn(loaded, points, batch)
            self.counters.count(looks, rows=1)
            budget = DONORS * self.cache_bytes
            for part in rounds(pending, loaded, batch, model.sizes, budget):
                Job(self, model, loaded, batch, part, usable, writer).run()
        for intervention, mask in usable.items():
            self.counters.skip(intervention, int((~mask).sum()))
        return writer.table()

    def state(self, loaded: "LoadedModel") -> dict[str, Any]:
        """See `Engine.state`."""
        model = self.model_of(loaded)
        return {
            "tricks": sorted(model.tricks),
            "checked": model.checked,
            "tuners": [{"kind": sorted(kind), **t.state()} for kind, t in model.tuners.items()],
        }

    def restore(self, loaded: "LoadedModel", state: Mapping[str, Any]) -> None:
        """See `Engine.restore`."""
        model = self.model_of(loaded)
        model.tricks = frozenset(state["tricks"])
        model.checked = dict(state["checked"])
        model.tuners = {
            frozenset(tuner["kind"]): Tuner.restored(tuner) for tuner in state["tuners"]
        }

    def model_of(self, loaded: "LoadedModel") -> "_Model":
        """Return what is known about a model."""
        if loaded.model not in self._models:
            self._models[loaded.model] = _Model(Blocks(loaded.model, loaded.hook_map), self.tricks)
        return self._models[loaded.model]


def entry(loaded: "LoadedModel") -> list[HookPoint]:
    """Return the place that tells how large the residual stream is, if the model has it."""
    point = loaded.hook_map.points.get((0, "block_input"))
    return [] if point is None else [point]


class _Model:
    """What was learned about a model.

    Attributes:
        tricks: those that are right on it.
        sizes: of activations.
        checked: component → longest documents on which that was checked.
        tuners: by what makes forwards unlike each other.
    """

    def __init__(self, blocks: Blocks, tricks: frozenset[str]) -> None:
        self.blocks, self.tricks = blocks, tricks
        self.checked: dict[str, int] = {}
        self.tuners: dict[frozenset[str], Tuner] = {}
        self.sizes = Sizes()


class Job:
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
        self._cuts = np.zeros(1, int)

    def run(self) -> None:
        """Write the rows of the interventions."""
        past = self._past()
        recording, past = self._record(past)
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
        self._schedule = Schedule(
            self._work, self._batch, layers=recording.entering.keys(), cuts=self._cuts
        )
        self._check()
        self._patch()

    def _past(self) -> Past | None:
        if "position" not in self._model.tricks:
            return None
        blocks = len(self._model.blocks)
        past, problem = past_of(self._loaded.model, blocks, self._batch.length)
        self._drop("position", problem)
        return past

    def _record(self, past: Past | None) -> tuple[Recording, Past | None]:
        """Run the model unpatched; keeping its past must not matter, which is checked at first."""
        self._drop("layer", self._model.blocks.problem)
        recording, logits = self._observe(past)
        if past is not None and self._unchecked():
            rows = min(EXAMPLES, len(self._batch))
            run = self._work.base_runs[0]
            plain = recording.predict(run, rows)
            self._counters.count(1, rows=rows)
            if problem := difference(logits[run][:rows], plain, self._loaded.dtype):
                self._drop("position", f"keeping its past {problem}")
                past = None
                recording, logits = self._observe(None)
        for run, predicted in logits.items():
            if run not in self._writer.observed:
                self._writer.observe(run, predicted)
        if self._drop("layer", self._model.blocks.problem):
            recording.entering.clear()
        return recording, past

    def _observe(self, past: Past | None) -> tuple[Recording, dict[str, torch.Tensor]]:
        blocks, work = self._model.blocks, self._work
        layers = self._resumable() if "layer" in self._model.tricks else set()
        recording = Recording(self._loaded, self._batch, work, blocks, layers=layers, past=past)
        runs = self._runs()
        self._counters.count(len(runs), rows=len(self._batch))
        return recording, {run: recording.observe(run) for run in runs}

    def _runs(self) -> list[str]:
        """Return the unpatched runs that are needed."""
        sources = [intervention.source_run for intervention in self._interventions]
        work = self._work
        return list(dict.fromkeys([*work.base_runs, *sources, *work.wanted, "clean"]))

    def _resumable(self) -> set[int]:
        """Return the layers at which patched runs resume: all, or as many as fit the budget.

        A run whose layer is left out resumes at the next one before it.
        """
        layers = sorted(set(map(int, self._work.layer)) - {0})
        documents = len(self._work.base_runs) * len(self._batch)
        width = [self._model.sizes.bytes_of(p, self._batch) for p in entry(self._loaded)]
        size = documents * self._batch.length * max(width, default=1)
        most = int(_ENTERING * self._engine.cache_bytes // size)
        return set(layers[:: max(1, -(-len(layers) // most))]) if most else set()

    def _prepare(self, past: Past | None, recording: Recording) -> None:
        """Choose where documents are cut, and keep the past there."""
        if past is None:
            return
        work = self._work
        self._cuts = cuts_of(work, self._batch.length, OVERHEAD)
        needed = documents_at(work, self._cuts)
        problem = past.at_cuts(recording.tokens, needed)
        self._counters.count(len(past.lengths(needed)), rows=len(recording.tokens))
        if problem is None and past.nbytes > _PAST * self._engine.cache_bytes:
            size = f"{past.nbytes / 2**20:.0f} MiB"
            problem = f"the past takes {size}: a smaller batch_size takes less"
        self._drop("position", problem)

    def _check(self) -> None:
        """Compare the tricks with the plain path: at first, and on much longer documents."""
        components = self._unchecked()
        if not components:
            return
        items = sampled(self._work, self._interventions)
        kept, notes = check(self._compute, items, self._model.tricks, self._loaded.dtype)
        self._model.tricks = kept
        self._note(notes)
        self._model.checked |= dict.fromkeys(components, self._batch.length)

    def _unchecked(self) -> set[str]:
        """Return the components on which no trick was checked, or only on short documents."""
        components = {site.component for item in self._interventions for site in item.sites}
        checked = self._model.checked
        return {name for name in components if self._batch.length > 2 * checked.get(name, 0)}

    def _compute(self, items: np.ndarray, tricks: frozenset[str]) -> torch.Tensor:
        """Return the predictions of `items` with these tricks."""
        found = {}
        for chunk in self._schedule.groups(items, tricks):
            found |= zip(chunk.items.tolist(), self._runner.logits(chunk), strict=True)
        return torch.stack([found[item] for item in items.tolist()])

    def _patch(self) -> None:
        """Run everything, and write the rows."""
        work, interventions = self._work, self._interventions
        contrasts = [(item.corruption, item.source_run) for item in interventions]
        known = sorted(set(contrasts))
        contrast = np.array([known.index(pair) for pair in contrasts])[work.number]
        values: dict[str, np.ndarray] = {}
        for chunk in self._schedule.groups(np.arange(len(work)), self._model.tricks):
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
                    del part
                del logits  # else held, like `part`, while the next forward runs
        for number, intervention in enumerate(interventions):
            own = {name: column[number] for name, column in values.items()}
            self._writer.add_values(intervention, self._usable[intervention], own)

    def _run_chunk(self, group: Chunk):
        """Yield items and their predictions, as many at a time as run fastest and fit."""
        left, tuner = group.items, self._tuner(group)
        while len(left):
            chunk = self._schedule.piece(group, left, tuner, self._model.tricks)
            size, count = tuner.tokens, len(chunk.items)
            started = seconds_worked(self._loaded.device)
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
            seconds = seconds_worked(self._loaded.device) - started
            tuner.note(size, chunk.tokens, blocks, seconds)
            yield chunk.items, logits
            del logits  # nobody holds them while the next are computed
            left = left[count:]

    def _tuner(self, group: Chunk) -> Tuner:
        number = int(self._work.number[group.items[0]])
        kind = self._work.slow[number]
        largest = WIDER * len(self._batch) * self._batch.length
        return self._model.tuners.setdefault(kind, Tuner(largest=largest))

    def _drop(self, trick: str, problem: str | None) -> bool:
        """Switch a trick off if there is a problem."""
        if problem is None or trick not in self._model.tricks:
            return False
        self._model.tricks -= {trick}
        self._note([f"native: {WORDS[trick]} is off: {problem}"])
        return True

    def _note(self, notes: Sequence[str]) -> None:
        self._counters.notes += [note for note in notes if note not in self._counters.notes]
