"""What every op does about number formats: compute in float32 or better, whatever comes in.

A recurrent state accumulates over the whole sequence, so half precision inside an op costs far
more accuracy than half precision between ops. Autocast is off inside for the same reason.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def working_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the widest dtype among `tensors`, at least float32."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context that switches autocast off on the device of `x` (free when it is off)."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
