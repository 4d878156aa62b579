"""Lets a function see, or replace, the value that passes a place of a model.

Use:

    handle = attach(module, "output", lambda hidden: hidden * 2)     # None would leave it as it is
    handle.remove()

Whatever a module takes or gives (a tensor, a tuple, keywords only), the function gets its hidden
state, (batch, time, features), and the rest passes unchanged. A value is replaced, never written
into: others may hold the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from patchbench.adapters.hook_map import get_hidden, put_hidden

Function = Callable[[Tensor], Tensor | None]


def attach(module: nn.Module, io: str, function: Function) -> RemovableHandle:
    """Call `function` with what `module` takes ("input") or gives ("output") in every forward.

    Returns:
        The handle that removes this hook and no other.
    """
    if io == "output":
        return module.register_forward_hook(output_hook(function))
    return module.register_forward_pre_hook(input_hook(function), with_kwargs=True)


def output_hook(function: Function) -> Callable[..., Any]:
    """Return a forward hook, with or without keywords, that applies `function` to the output."""

    def hook(module: nn.Module, *passed: Any) -> Any:
        output = passed[-1]
        new = function(get_hidden(output))
        return None if new is None else put_hidden(output, new)

    return hook


def input_hook(function: Function) -> Callable[..., Any]:
    """Return a forward pre-hook with keywords that applies `function` to the input."""

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        # Some callers pass everything by keyword (Llama's attention).
        by_position = any(isinstance(value, Tensor) for value in args)
        taken = args if by_position else kwargs
        new = function(get_hidden(taken))
        if new is None:
            return None
        given = put_hidden(taken, new)
        return (given, kwargs) if by_position else (args, given)

    return hook
