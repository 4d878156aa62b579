"""What every engine does around a forward: the read-out, batches that fit.

Use:

    with scoring(model):                      # of patchbench.adapters.running
        read_out = ReadOut(model, batch, device)
        logits = read_out.logits(model(input_ids=tokens, **read_out.arguments))
    rows = halving(run, batch, counters)      # run(batch) → rows
"""

import inspect
from collections.abc import Callable
from copy import copy
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from patchbench.adapters.running import without_cache
from patchbench.common import UserError
from patchbench.engines.base import Batch, Counters


class ReadOut:
    """Takes the predictions at the read-out, and lets the model compute no others if it can.

    Attributes:
        arguments: for the model, beside its tokens.
    """

    def __init__(self, model: nn.Module, batch: Batch, device: torch.device) -> None:
        self._take(model)
        self._move(torch.as_tensor(batch.read_out, device=device), batch.length)

    @classmethod
    def at(cls, model: nn.Module, positions: Tensor, length: int) -> "ReadOut":
        """Return the read-out of documents (or parts of them) of `length` tokens.

        Args:
            model: a causal language model.
            positions: (B,) where each is read.
            length: tokens that go in.
        """
        read_out = cls.__new__(cls)
        read_out._take(model)
        read_out._move(positions, length)
        return read_out

    def moved(self, positions: Tensor, length: int) -> "ReadOut":
        """Return `ReadOut.at` of the same model, which need not be looked at again."""
        read_out = copy(self)
        read_out._move(positions, length)
        return read_out

    def _take(self, model: nn.Module) -> None:
        keep = inspect.signature(model.forward).parameters.get("logits_to_keep")
        # Some models take a number of last positions only, and misread a list of positions.
        self._keeps = keep is not None and "Tensor" in str(keep.annotation)
        self._plain = without_cache(model)

    def _move(self, positions: Tensor, length: int) -> None:
        self._positions, self._length = positions, length
        self._kept, self._columns = positions.unique(return_inverse=True)
        self.arguments = dict(self._plain)
        if self._keeps:
            self.arguments["logits_to_keep"] = self._kept

    def logits(self, output: Any) -> Tensor:
        """Return (B, vocabulary) logits of the model's output."""
        logits = output.logits if hasattr(output, "logits") else output[0]
        columns = {len(self._kept): self._columns, self._length: self._positions}
        if logits.shape[1] not in columns:
            raise UserError(
                f"the model returned logits at {logits.shape[1]} positions",
                f"{len(self._kept)} were asked for, and the documents have {self._length}",
            )
        if logits.shape[1] == 1:
            return logits[:, 0]  # a view: the logits of many documents are not copied
        where = columns[logits.shape[1]].to(logits.device)
        return logits[torch.arange(len(logits), device=logits.device), where]


def halving(run: Callable[[Batch], pa.Table], batch: Batch, counters: Counters) -> pa.Table:
    """Return the rows of `run(batch)`; a batch that does not fit into memory is halved.

    Raises:
        UserError: one document alone does not fit.
    """
    try:
        return run(batch)
    except torch.OutOfMemoryError as error:
        if len(batch) == 1:
            raise UserError(
                "one document does not fit into the device's memory",
                "use --device cpu, a narrower --dtype, or shorter documents",
            ) from error
    # Outside of the handler, which would keep the failed attempt's tensors alive.
    half = len(batch) // 2
    note = f"out of memory: batches of {len(batch)} were halved"
    if note not in counters.notes:
        counters.notes.append(note)
    parts = [slice(0, half), slice(half, len(batch))]
    return pa.concat_tables([halving(run, batch.select(part), counters) for part in parts])
