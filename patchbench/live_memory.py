"""How many bytes of tensors a piece of code holds at a time, on any device.

Use:

    with LiveBytes() as live:
        model(tokens)
    live.peak
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make, until they are freed.

    What an operation takes for itself while it runs is not seen.

    Attributes:
        peak: most bytes at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        inputs = tree_leaves((args, kwargs))
        given = {leaf.untyped_storage().data_ptr() for leaf in inputs if _real(leaf)}
        for leaf in tree_leaves(output):
            if _real(leaf):
                self._add(leaf.untyped_storage(), given)
        return output

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in given or address in self._known:
            return
        self._known.add(address)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._now -= size


def _real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
