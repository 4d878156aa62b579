"""One patched forward: some items' documents, from a cut to an end, from a block on.

Use:

    runner = Runner(loaded, work, recording, blocks, past, counters)
    logits = runner.logits(Chunk(items=items, layer=2, cut=4, end=12))     # (items, vocabulary)
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import Function
from patchbench.adapters.running import explained
from patchbench.common import UserError
from patchbench.engines.base import Batch, Counters
from patchbench.engines.native.blocks import Blocks
from patchbench.engines.native.places import watching
from patchbench.engines.native.recording import Recording
from patchbench.engines.native.states import Past
from patchbench.engines.native.work import Swaps, Work
from patchbench.engines.scoring import ReadOut

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Items that share a forward.

    Attributes:
        items: (n,) which.
        layer: the first block that runs.
        cut: the first token that goes in.
        end: the token behind the last.
    """

    items: np.ndarray
    layer: int
    cut: int
    end: int

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return len(self.items) * (self.end - self.cut)


class Runner:
    """Runs chunks of one batch's work."""

    def __init__(
        self,
        loaded: "LoadedModel",
        batch: Batch,
        work: Work,
        recording: Recording,
        blocks: Blocks,
        past: Past | None,
        counters: Counters,
    ) -> None:
        self._loaded, self._work, self._recording = loaded, work, recording
        self._blocks, self._past, self._counters = blocks, past, counters
        self._where = batch.read_out
        self._read_out = ReadOut(loaded.model, batch, torch.device(loaded.device))
        self._row = np.full(len(work), -1)

    def logits(self, chunk: Chunk) -> Tensor:
        """Return the patched predictions of the chunk's items (items, vocabulary).

        Raises:
            UserError: a patched place does not fire exactly once.
        """
        recording, documents = self._recording, self._work.document[chunk.items]
        rows = torch.as_tensor(documents, device=recording.tokens.device)
        positions = self._where[self._work.example[chunk.items]] - chunk.cut
        model = self._loaded.model
        read_out = self._read_out.moved(_index(positions, rows), chunk.end - chunk.cut)
        arguments = dict(read_out.arguments)
        if self._past is not None:
            arguments |= self._past.resume(documents, chunk.cut, chunk.layer)
        hidden = None
        if chunk.layer:
            hidden = recording.entering[chunk.layer][rows, chunk.cut : chunk.end]
        with ExitStack() as stack:
            stack.enter_context(self._blocks.resumed(chunk.layer, hidden))
            stack.enter_context(watching(self._loaded, self._writers(chunk)))
            tokens = recording.tokens[rows, chunk.cut : chunk.end]
            stack.enter_context(explained(self._loaded.name, tokens))
            output = model(input_ids=tokens, **arguments)
        self._counters.count(1, rows=len(chunk.items))
        return read_out.logits(output)

    def _writers(self, chunk: Chunk) -> dict[HookPoint, Function]:
        """Return what replaces the activations at each place that the chunk patches."""
        self._row[chunk.items] = np.arange(len(chunk.items))
        swaps: dict[HookPoint, list[tuple[HookPoint, Swaps, np.ndarray]]] = {}
        for (point, donor), lines in self._work.swaps.items():
            mine = np.flatnonzero(self._row[lines.item] >= 0)
            if len(mine):
                swaps.setdefault(point, []).append((donor, lines, mine))
        writers = {point: self._writer(point, parts, chunk.cut) for point, parts in swaps.items()}
        self._row[chunk.items] = -1
        return writers

    def _writer(
        self, point: HookPoint, parts: list[tuple[HookPoint, Swaps, np.ndarray]], cut: int
    ) -> Function:
        writes = []
        for donor, lines, mine in parts:
            values = self._recording.donors[donor]
            for shape in {(lines.heads[i], lines.donor_heads[i]) for i in mine}:
                heads, donor_heads = map(int, shape)
                some = mine[(lines.heads[mine] == heads) & (lines.donor_heads[mine] == donor_heads)]
                given = values[
                    _index(lines.slot[some], values), _index(lines.example[some], values)
                ]
                given = _part(given, _index(lines.donor_head[some], values), donor_heads, donor)
                where = self._row[lines.item[some]], lines.position[some] - cut
                writes.append((*where, lines.head[some], heads, given))

        def write(hidden: Tensor) -> Tensor:
            patched = hidden.clone()
            for rows, positions, head, heads, given in writes:
                _check_width(point, hidden.shape[-1], heads, given.shape[-1])
                split = patched.unflatten(-1, (heads, -1))  # rows time heads features
                where = (_index(rows, split), _index(positions, split), _index(head, split))
                split[where] = given.to(split.dtype)
            return patched

        return write


def _index(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(values, device=like.device)


def _part(values: Tensor, head: Tensor, heads: int, point: HookPoint) -> Tensor:
    """Return each line's head (n, features / heads) of activations (n, features)."""
    _check_width(point, values.shape[-1], heads, None)
    if heads == 1:
        return values
    return values.unflatten(-1, (heads, -1))[torch.arange(len(values)), head]


def _check_width(point: HookPoint, width: int, heads: int, given: int | None) -> None:
    if width % heads:
        raise UserError(
            f"{point.path}: {width} features do not split into {heads} heads",
            "patch the site without [head]",
        )
    if given is not None and given != width // heads:
        raise UserError(
            f"site {point.path}.{point.io} has {width // heads} features, its source {given}",
            "take the source from a component of equal width",
        )
