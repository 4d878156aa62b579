"""Runs a model as itself: in its own precision, its failures told in one line.

Use:

    with scoring(model), explained("gpt2", tokens):
        output = model(input_ids=tokens, **without_cache(model))
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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


def without_cache(model: nn.Module) -> dict[str, Any]:
    """Return the arguments with which a model keeps no cache: what is continued shows no patch."""
    accepts = inspect.signature(model.forward).parameters
    passes_on = any(p.kind is p.VAR_KEYWORD for p in accepts.values())
    knows = hasattr(getattr(model, "config", None), "use_cache")
    return {"use_cache": False} if "use_cache" in accepts or (passes_on and knows) else {}


@contextmanager
def in_own_precision(model: nn.Module) -> Iterator[None]:
    """Run without the caller's autocast, which would round below the model's dtype."""
    kinds = {parameter.device.type for parameter in model.parameters()}
    with ExitStack() as stack:
        for kind in kinds - {"meta"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation without gradients or autocast, and every module back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), in_own_precision(model):
            yield
    finally:
        for module, training in modes.items():
            module.training = training
