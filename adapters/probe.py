"""Proves by running the model that its HookMap is true.

A site that never fires returns unpatched logits without an error, and one that fires twice, or
whose value nothing reads, gives a number that means nothing. So, before anything is measured: each
place must fire exactly once per forward pass with a (batch, time, features) value, a patch there at
one position must change the logits from that position on, and must not change those before.

Use:

    probe(loaded, [(0, "block_input"), (3, "mixer_output")])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from patchbench.adapters.hook_map import HookPoint, get_hidden, put_hidden
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

LENGTH, POSITION = 8, 4
# Logits before the patch may move by rounding alone, relative to their spread.
TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
HALF_TOLERANCE = 5e-2


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a patch at one place did.

    Attributes:
        shape: of the value there, for 2 documents of `LENGTH` tokens.
        effect: largest change of a logit at or after the patched position.
    """

    layer: int | None
    component: str
    shape: tuple[int, ...]
    effect: float


def probe(
    loaded: LoadedModel, places: Collection[tuple[int | None, str]] | None = None
) -> list[ProbeResult]:
    """Patch each place once and check what happens.

    Args:
        loaded: the model; it is left as it was, hooks and mode included.
        places: (layer, component) pairs; all of the HookMap if None.

    Raises:
        UserError: a place does not exist, does not fire exactly once, has no (batch, time,
            features) value, changes nothing, or changes earlier positions.
    """
    hook_map, model = loaded.hook_map, loaded.model
    chosen = hook_map.points if places is None else places
    points = [hook_map.point(*place) for place in sorted(chosen, key=_order)]
    tokens = _tokens(loaded)
    seen: dict[HookPoint, list[Tensor]] = {point: [] for point in points}
    with _scoring(model):
        clean = _logits(model, tokens, points=seen, hook_map=hook_map)
        for point, values in seen.items():
            _check_fired(loaded, point, values)
        return [_patch(loaded, point, seen[point][0], tokens, clean) for point in points]


def check_causal(loaded: LoadedModel) -> None:
    """Check that a later token does not change an earlier prediction.

    Raises:
        UserError: it does (an encoder), or the model gives no logits over its vocabulary.
    """
    tokens = _tokens(loaded)
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % loaded.vocab_size
    with _scoring(loaded.model):
        logits, changed = (_logits(loaded.model, ids) for ids in (tokens, other))
    moved = float((logits - changed)[:, :-1].abs().max())
    if not moved <= _tolerance(loaded, logits):
        raise UserError(
            f"{loaded.name} is not causal: a later token moves earlier logits by {moved:.2g}",
            "encoders and bidirectional models cannot be measured; load a decoder",
        )


def _patch(
    loaded: LoadedModel, point: HookPoint, value: Tensor, tokens: Tensor, clean: Tensor
) -> ProbeResult:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape[0], *value.shape[2:], generator=generator)
    scale = value.float().std().clamp_min(1e-3)

    def replace(hidden: Tensor) -> Tensor:
        patched = hidden.clone()
        patched[:, POSITION] += (scale * noise.to(hidden.device)).to(hidden.dtype)
        return patched

    module = loaded.hook_map.module(loaded.model, point)
    with _hook(module, point, replace):
        patched = _logits(loaded.model, tokens)
    change = (patched - clean).abs()
    effect = float(change[:, POSITION:].max())
    where = f"{_label(point)} ({point.path}, {point.io})"
    if not effect > 0:
        raise UserError(
            f"{loaded.name}: a patch at {where} changes nothing",
            "the model does not read that value; correct the HookMap or choose another component",
        )
    if not float(change[:, :POSITION].max()) <= _tolerance(loaded, clean):
        raise UserError(
            f"{loaded.name}: a patch at {where} changes earlier positions",
            "its second dimension is not time; correct the HookMap",
        )
    return ProbeResult(
        layer=point.layer, component=point.component, shape=tuple(value.shape), effect=effect
    )


def _check_fired(loaded: LoadedModel, point: HookPoint, values: list[Tensor]) -> None:
    where = f"{_label(point)} ({point.path}, {point.io})"
    if len(values) != 1:
        raise UserError(
            f"{loaded.name}: {where} fires {len(values)} times in a forward pass",
            "once is needed: the module is bypassed or reused; correct the HookMap or choose "
            "another component",
        )
    shape = tuple(values[0].shape)
    if len(shape) < 3 or shape[:2] != (2, LENGTH):
        raise UserError(
            f"{loaded.name}: {where} has shape {shape}",
            f"(batch, time, features) is needed, here (2, {LENGTH}, …)",
        )


@contextmanager
def _hook(
    module: nn.Module, point: HookPoint, function: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """Let `function` see the value of a place, and replace it unless it returns None."""

    def after(_: nn.Module, __: Any, output: Any) -> Any:
        new = function(get_hidden(output))
        return None if new is None else put_hidden(output, new)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Some modules get their input by keyword only.
        by_position = any(isinstance(value, Tensor) for value in args)
        value = args if by_position else kwargs
        new = function(get_hidden(value))
        if new is None:
            return None
        value = put_hidden(value, new)
        return (value, kwargs) if by_position else (args, value)

    if point.io == "output":
        handle = module.register_forward_hook(after)
    else:
        handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _logits(
    model: Any,
    tokens: Tensor,
    points: dict[HookPoint, list[Tensor]] | None = None,
    hook_map: Any = None,
) -> Tensor:
    """Return fp32 logits (batch, time, vocabulary), noting the values at `points`."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        for point, values in (points or {}).items():
            module = hook_map.module(model, point)
            stack.enter_context(_hook(module, point, lambda hidden, v=values: v.append(hidden)))
        output = model(tokens, use_cache=False)
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != tokens.shape:
        raise UserError(f"{type(model).__name__} gives no logits", "a language model is needed")
    return logits.float()


@contextmanager
def _scoring(model: nn.Module) -> Iterator[None]:
    """Evaluate without gradients, and put the mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _tokens(loaded: LoadedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(loaded.vocab_size, (2, LENGTH), generator=generator)
    return tokens.to(loaded.device)


def _tolerance(loaded: LoadedModel, logits: Tensor) -> float:
    return TOLERANCE.get(loaded.dtype, HALF_TOLERANCE) * max(1.0, float(logits.std()))


def _order(place: tuple[int | None, str]) -> tuple[int, str]:
    layer, component = place
    return (-1 if layer is None else layer, component)


def _label(point: HookPoint) -> str:
    return point.component if point.layer is None else f"L{point.layer}.{point.component}"
