"""Resume at the patched layer: blocks before it return what they gave in the unpatched run.

The model itself still runs from its tokens to its logits, so masks, positions, the final norm and
whatever else stands around the blocks stay its own. A block that is passed over hands its input
on; the last of them returns the recorded output.

Use:

    blocks = Blocks(model, hook_map)
    with blocks.recording({3}) as outputs:
        model(tokens)
    with blocks.resumed(3, outputs[3]):       # blocks 0–2 do not run
        model(tokens)
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from patchbench.adapters.hook_map import HookMap, get_hidden, put_hidden


class Blocks:
    """The list of blocks of a model.

    Attributes:
        problem: why blocks cannot be passed over; None where they can, as far as is known.
    """

    def __init__(self, model: nn.Module, hook_map: HookMap) -> None:
        stack = model.get_submodule(hook_map.blocks)
        assert isinstance(stack, nn.ModuleList)
        self._blocks = list(stack)
        self._form: Any = None
        self.problem: str | None = None
        if len(set(map(id, self._blocks))) < len(self._blocks):
            self.problem = "blocks share modules"

    def __len__(self) -> int:
        return len(self._blocks)

    @contextmanager
    def recording(self, layers: Set[int]) -> Iterator[dict[int, Tensor]]:
        """Keep what enters each of `layers`: layer → (B, T, width), raw, before any hook.

        The layer behind the last stands for what the last block gives. Hooks of others see what a
        passed-over block returns, and change it as they would have.
        """
        outputs: dict[int, Tensor] = {}
        called: list[int] = []

        def spy(index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                called.append(index)
                output = forward(*args, **kwargs)
                if index + 1 in layers:
                    self._check_form(output)
                    outputs[index + 1] = get_hidden(output)
                return output

            return run

        with ExitStack() as stack:
            for index, block in enumerate(self._blocks):
                stack.enter_context(replaced_forward(block, spy(index, block.forward)))
            yield outputs
        if called != list(range(len(self._blocks))):
            self.problem = "its blocks do not run once each and in order"

    @contextmanager
    def resumed(self, layer: int, hidden: Tensor | None) -> Iterator[None]:
        """Let the blocks before `layer` return without running.

        Args:
            layer: the first block that runs; the number of blocks for none.
            hidden: what enters it (batch, time, width); None where `layer` is 0.
        """

        def hand_on(*args: Any, **kwargs: Any) -> Any:
            given = args if any(isinstance(value, Tensor) for value in args) else kwargs
            return put_hidden(self._form, get_hidden(given))

        def give(*args: Any, **kwargs: Any) -> Any:
            assert hidden is not None
            return put_hidden(self._form, hidden)

        with ExitStack() as stack:
            for block in self._blocks[: max(layer - 1, 0)]:
                stack.enter_context(replaced_forward(block, hand_on))
            if layer:
                stack.enter_context(replaced_forward(self._blocks[layer - 1], give))
            yield

    def _check_form(self, output: Any) -> None:
        """Note in what a block returns its hidden state, and whether that is all it returns."""
        if isinstance(output, Tensor):
            self._form = _NOTHING
            return
        parts = output.values() if isinstance(output, Mapping) else output
        if sum(part is not None for part in parts) != 1:
            self.problem = "its blocks return more than a hidden state"
        self._form = put_hidden(output, _NOTHING)


_NOTHING = Tensor()


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call `forward` in place of the module's own; its hooks stay."""
    had = "forward" in module.__dict__
    old = module.forward
    module.forward = forward
    try:
        yield
    finally:
        if had:
            module.forward = old
        else:
            del module.forward
