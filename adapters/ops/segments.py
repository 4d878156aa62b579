"""What the ops that work chunk by chunk share.

Decays over every span of a chunk come without the cancellation of subtracting long sums.

Use:

    check_chunk("ssd", chunk_size)
    decay = span_decay(log_decay)        # decay[..., t, s] = exp(Σ_{s<i≤t} log_decay[..., i])
"""

import torch
from torch import Tensor

from patchbench.common import UserError


def check_chunk(op: str, chunk_size: int) -> None:
    """Check a chunk's length in steps.

    Raises:
        UserError: it is below 1.
    """
    if chunk_size < 1:
        raise UserError(f"{op}: chunk_size is {chunk_size}", "give at least 1")


def span_decay(log_decay: Tensor) -> Tensor:
    """Return the product of decays after s up to and including t, 0 where s > t.

    Args:
        log_decay: (..., l), each at most 0.

    Returns:
        (..., l, l), indexed [t, s].
    """
    length = log_decay.shape[-1]
    ones = torch.ones(length, length, dtype=torch.bool, device=log_decay.device)
    later = log_decay.unsqueeze(-1).expand(*log_decay.shape, length)  # ... t s
    total = later.masked_fill(~ones.tril(-1), 0).cumsum(-2)  # ... t s
    return total.masked_fill(~ones.tril(), -torch.inf).exp()
