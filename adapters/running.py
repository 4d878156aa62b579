"""Runs a model as itself: in its own precision, its failures told in one line.

Use:

    with torch.no_grad(), in_own_precision(model), explained("gpt2", tokens):
        output = model(input_ids=tokens)
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from patchbench.common import UserError


@contextmanager
def explained(name: str, tokens: Tensor) -> Iterator[None]:
    """Turn what the model `name` raises on `tokens`, (batch, time), into a `UserError`."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{name} fails on {len(tokens)} documents of {tokens.shape[1]} tokens "
            f"({type(error).__name__}: {reason})",
            "try it by itself: model(input_ids=torch.zeros(1, 4, dtype=int))",
        ) from error


@contextmanager
def in_own_precision(model: nn.Module) -> Iterator[None]:
    """Run without the caller's autocast, which would round below the model's dtype."""
    kinds = {parameter.device.type for parameter in model.parameters()}
    with ExitStack() as stack:
        for kind in kinds - {"meta"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
