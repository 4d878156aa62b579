"""Functions at places of a model for one forward; each place must be passed exactly once.

Use:

    with watching(loaded, {point: lambda hidden: None}):
        loaded.model(tokens)
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import Function, attach
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


@contextmanager
def watching(loaded: "LoadedModel", functions: Mapping[HookPoint, Function]) -> Iterator[None]:
    """Attach each function to its place; remove these hooks and no others, whatever happens.

    Raises:
        UserError: a place was not passed exactly once.
    """
    fired = dict.fromkeys(functions, 0)

    def counted(point: HookPoint, function: Function) -> Function:
        def call(hidden: Tensor) -> Tensor | None:
            fired[point] += 1
            return function(hidden)

        return call

    with ExitStack() as stack:
        for point, function in functions.items():
            module = loaded.hook_map.module(loaded.model, point)
            stack.callback(attach(module, point.io, counted(point, function)).remove)
        yield
    for point, times in fired.items():
        if times != 1:
            raise UserError(
                f"site {point.path}.{point.io} fired {times} times in a forward, not once",
                "this model computes it elsewhere: choose another component",
            )
