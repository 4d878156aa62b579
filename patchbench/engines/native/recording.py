"""The unpatched runs of one batch: what they predict, and what patched runs take from them.

Use:

    recording = Recording(loaded, batch, work, blocks, layers={3}, past=past)
    logits = recording.observe("clean")
    recording.donors[point][slot, example]        # activations (features,)
    recording.entering[3][document]               # what enters block 3, (time, width)

Only what was declared is kept: donors' activations at their positions, what enters the blocks at
which patched runs resume, and the past (see `states`).
"""

from collections.abc import Mapping, Set
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import Function
from patchbench.adapters.running import explained
from patchbench.engines.base import Batch
from patchbench.engines.native.blocks import Blocks
from patchbench.engines.native.places import watching
from patchbench.engines.native.states import Past
from patchbench.engines.native.work import Work
from patchbench.engines.scoring import ReadOut

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


class Recording:
    """The unpatched runs of one batch.

    Args:
        loaded: the model.
        batch: the examples.
        work: what is wanted of them.
        blocks: the model's blocks.
        layers: where patched runs resume; empty if they do not.
        past: keeps what a run remembers at a position; None if runs start at the first token.

    Attributes:
        tokens: (documents, T).
        donors: place → (slots, B, features).
        entering: layer → (documents, T, width).
    """

    def __init__(
        self,
        loaded: "LoadedModel",
        batch: Batch,
        work: Work,
        blocks: Blocks,
        *,
        layers: Set[int],
        past: Past | None,
    ) -> None:
        self._loaded, self._batch, self._work = loaded, batch, work
        self._blocks, self._layers, self._past = blocks, layers, past
        self._device = torch.device(loaded.device)
        self._read_out = ReadOut(loaded.model, batch, self._device)
        self.tokens = torch.cat([self._inputs(run) for run in work.base_runs])
        self.donors: dict[HookPoint, Tensor] = {}
        self.entering: dict[int, Tensor] = {}

    def observe(self, run: str) -> Tensor:
        """Run the model unpatched; return its predictions at the read-out (B, vocabulary).

        Raises:
            UserError: a place does not fire exactly once.
        """
        wanted = self._work.wanted.get(run, {})
        readers = {point: self._reader(point, slots) for point, slots in wanted.items()}
        arguments = dict(self._read_out.arguments)
        is_base = run in self._work.base_runs
        with ExitStack() as stack:
            outputs: dict[int, Tensor] = {}
            if is_base and self._layers:
                outputs = stack.enter_context(self._blocks.recording(self._layers))
            if is_base and self._past is not None:
                arguments |= self._past.begin()
            stack.enter_context(watching(self._loaded, readers))
            tokens = self._inputs(run)
            stack.enter_context(explained(self._loaded.name, tokens))
            output = self._loaded.model(input_ids=tokens, **arguments)
        for layer, hidden in outputs.items():
            self._keep_entering(layer, run, hidden)
        return self._read_out.logits(output)

    def predict(self, run: str, count: int) -> Tensor:
        """Return the plain model's predictions on a run's first documents (count, vocabulary)."""
        tokens = self._inputs(run)[:count]
        positions = torch.as_tensor(self._batch.read_out[:count], device=self._device)
        read_out = ReadOut.at(self._loaded.model, positions, tokens.shape[1])
        with explained(self._loaded.name, tokens):
            return read_out.logits(self._loaded.model(input_ids=tokens, **read_out.arguments))

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return sum(part.nbytes for part in (*self.donors.values(), *self.entering.values()))

    def _keep_entering(self, layer: int, run: str, hidden: Tensor) -> None:
        size, first = len(self._batch), self._work.base_runs.index(run) * len(self._batch)
        if layer not in self.entering:
            count = len(self._work.base_runs) * size
            self.entering[layer] = hidden.new_empty(count, *hidden.shape[1:])
        self.entering[layer][first : first + size] = hidden

    def _reader(self, point: HookPoint, slots: Mapping[int, np.ndarray]) -> Function:
        where = torch.as_tensor(np.stack(list(slots.values())), device=self._device)  # slots B

        def read(hidden: Tensor) -> None:
            count = self._work.slots[point]
            rows = torch.arange(len(hidden), device=hidden.device)
            found = hidden[rows, where.to(hidden.device)]  # slots B features
            kept = self.donors.setdefault(point, found.new_empty(count, *found.shape[1:]))
            kept[list(slots)] = found

        return read

    def _inputs(self, run: str) -> Tensor:
        return torch.as_tensor(self._batch.tokens(run), device=self._device)
