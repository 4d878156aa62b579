"""Proves by running the model that its HookMap is true.

A site that never fires returns unpatched logits without an error, and one that fires twice, or
whose value nothing reads, gives a number that means nothing. So every place must fire exactly once
per forward pass with a (batch, time, features) value, a patch there at one position must change
the logits from that position on, and must not change those before.

Use:

    hook_map = check_model(loaded)         # at every load: one forward pass, no patches
    probe(loaded, [(0, "block_input"), (3, "mixer_output")])     # before measuring there
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from patchbench.adapters.hook_map import HookMap, HookPoint
from patchbench.adapters.hooking import Function, attach
from patchbench.adapters.running import explained, scoring, without_cache
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

LENGTH = 4
# Places patched in one forward pass; a batch of documents this short costs little more than one.
CHUNK = 32
# Logits before the patch may move by rounding alone, relative to their spread.
TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
HALF_TOLERANCE = 5e-2
# Noise in standard deviations. In half precision an untrained model's smallest effects drown in
# rounding: those places are tried again, louder.
LOUDNESS = (1.0, 10.0, 100.0, 10_000.0)
_REMEDY = "the module is bypassed or reused; correct the HookMap or choose another component"


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a patch at one place did.

    Attributes:
        shape: of the value there, for 2 documents of `LENGTH` tokens.
        effect: largest change of a logit at or after the patched position; infinite where only a
            change that overflows is seen.
    """

    layer: int | None
    component: str
    shape: tuple[int, ...]
    effect: float


def probe(
    loaded: LoadedModel, places: Iterable[tuple[int | None, str]] | None = None
) -> list[ProbeResult]:
    """Patch each place once and check what happens.

    Args:
        loaded: the model; it is left as it was, hooks and mode included.
        places: (layer, component) pairs; all of the HookMap if None.

    Raises:
        UserError: a place does not exist, does not fire exactly once, has no (batch, time,
            features) value, changes nothing, or changes earlier positions.
    """
    chosen = loaded.hook_map.points if places is None else set(places)
    points = _hookable(loaded.hook_map.point(*place) for place in sorted(chosen, key=_order))
    tokens = _tokens(loaded)
    with scoring(loaded.model):
        _, seen = _observe(loaded, points, tokens)
        for point in points:
            if problem := _problem(seen[point], tokens):
                raise UserError(f"{loaded.name}: {_label(point)} {problem}", _REMEDY)
        chunks = [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]
        return [result for chunk in chunks for result in _patch(loaded, chunk, seen)]


def check_model(loaded: LoadedModel) -> HookMap:
    """Check that the model is causal and that every place of its HookMap fires once.

    Returns:
        The HookMap. One that was found by inspection is a guess: places that do not hold are
        taken out of it, and its notes say so.

    Raises:
        UserError: a later token changes an earlier prediction (an encoder), logits are missing
            or not finite, or a place of a table does not fire exactly once.
    """
    hook_map = loaded.hook_map
    points = _hookable(hook_map.points.values())
    tokens = _tokens(loaded)
    tokens[1] = tokens[0]
    tokens[1, -1] = (tokens[1, -1] + 1) % loaded.vocab_size
    with scoring(loaded.model):
        logits, seen = _observe(loaded, points, tokens)
    moved = float((logits[0] - logits[1])[:-1].abs().max())
    if not moved <= _tolerance(loaded, logits):
        raise UserError(
            f"{loaded.name} is not causal: a later token moves earlier logits by {moved:.2g}",
            "encoders and bidirectional models cannot be measured; load a decoder",
        )
    problems = {point: _problem(seen[point], tokens) for point in points}
    if hook_map.origin == "inspection":
        problems |= _residuals(hook_map, seen, problems)
        return _without(hook_map, problems)
    for point, problem in problems.items():
        if problem:
            raise UserError(f"{loaded.name}: {_label(point)} {problem}", _REMEDY)
    return hook_map


def _hookable(points: Iterable[HookPoint]) -> list[HookPoint]:
    """Return the places that a hook reaches; an engine that reaches others checks those itself."""
    return [point for point in points if point.source is None]


def _problem(values: Sequence[Tensor], tokens: Tensor) -> str | None:
    """Return what is wrong with what a place gave in one forward pass."""
    if len(values) != 1:
        return f"fires {len(values)} times in a forward pass, once is needed"
    shape = tuple(values[0].shape)
    if len(shape) != 3 or shape[:2] != tokens.shape:
        return f"has shape {shape} where (batch, time, features) is {(*tokens.shape, '…')}"
    return None


def _residuals(
    hook_map: HookMap, seen: dict[HookPoint, list[Tensor]], problems: dict[HookPoint, str | None]
) -> dict[HookPoint, str]:
    """Return the MLP outputs that equal the block's: such an MLP adds the residual itself."""
    found = {}
    for point in seen:
        block = hook_map.points.get((point.layer, "block_output"))
        if point.component != "mlp_output" or block is None or problems[point] or problems[block]:
            continue
        if torch.equal(seen[point][0], seen[block][0]):
            found[point] = "holds the residual stream, too"
    return found


def _without(hook_map: HookMap, problems: dict[HookPoint, str | None]) -> HookMap:
    bad = {point: problem for point, problem in problems.items() if problem}
    if not bad:
        return hook_map
    if any(point.component in ("embed", "block_input", "block_output") for point in bad):
        point, problem = next(iter(bad.items()))
        raise UserError(
            f"cannot map model type {hook_map.model_type!r}: {_label(point)} {problem}",
            "pass a HookMap to load_model",
        )
    reasons = {f"{point.component} is left out, it {problem}" for point, problem in bad.items()}
    return replace(
        hook_map,
        points={place: point for place, point in hook_map.points.items() if point not in bad},
        notes=(*hook_map.notes, *sorted(reasons)),
    )


def _patch(
    loaded: LoadedModel, points: Sequence[HookPoint], seen: Mapping[HookPoint, list[Tensor]]
) -> list[ProbeResult]:
    """Patch each place in a document of its own, all in one forward pass.

    The unpatched pass has the same shape and the same hooks: both choose which code runs, and other
    code rounds differently, which would pass for an effect.
    """
    tokens = _tokens(loaded)[:1].expand(len(points), -1)
    position = tokens.shape[1] // 2
    clean = _logits(loaded, tokens, [(point, torch.clone) for point in points])
    effects: dict[int, float] = {}
    overflows = set()
    for loudness in LOUDNESS:
        rows = [row for row in range(len(points)) if row not in effects]
        if not rows:
            break
        adders = {row: _adder(row, position, seen[points[row]][0], loudness) for row in rows}
        hooks = [(point, adders.get(row, torch.clone)) for row, point in enumerate(points)]
        patched = _logits(loaded, tokens, hooks)
        for row in rows:
            if not bool(torch.isfinite(patched[row]).all()):
                # Of a NaN even what is masked takes some (0 · NaN): it says nothing about time.
                overflows.add(row)
                continue
            before = (patched[row, :position] - clean[row, :position]).abs()
            if position and not float(before.max()) <= _tolerance(loaded, clean):
                raise UserError(
                    f"{loaded.name}: a patch at {_label(points[row])} changes earlier positions",
                    "its second dimension is not time; correct the HookMap",
                )
            if not torch.equal(patched[row, position:], clean[row, position:]):
                effects[row] = float((patched[row, position:] - clean[row, position:]).abs().max())
    for row, point in enumerate(points):
        if row in overflows:
            effects.setdefault(row, math.inf)
        if row not in effects:
            if not bool((clean.amax(-1) > clean.amin(-1)).any()):
                raise UserError(
                    f"{loaded.name}: every token has the same logit, so that no patch is seen",
                    "its head gives nothing: train it, or load it with its weights",
                )
            raise UserError(
                f"{loaded.name}: a patch at {_label(point)} changes nothing",
                "the model does not read it; correct the HookMap or choose another component",
            )
    return [
        ProbeResult(
            layer=point.layer,
            component=point.component,
            shape=tuple(seen[point][0].shape),
            effect=effects[row],
        )
        for row, point in enumerate(points)
    ]


def _adder(row: int, position: int, value: Tensor, loudness: float) -> Callable[[Tensor], Tensor]:
    """Return a function that adds noise, `loudness` times as large as the values, in one place."""
    scale = loudness * float(value.float().std().clamp_min(1e-3))
    change = scale * torch.from_numpy(np.random.default_rng(0).normal(size=value.shape[-1]))

    def add(hidden: Tensor) -> Tensor:
        patched = hidden.clone()
        patched[row, position] += change.to(hidden.device, hidden.dtype)
        return patched

    return add


def _observe(
    loaded: LoadedModel, points: Sequence[HookPoint], tokens: Tensor
) -> tuple[Tensor, dict[HookPoint, list[Tensor]]]:
    """Return the logits of one forward pass, and what each place gave in it.

    Raises:
        UserError: the logits are not finite.
    """
    seen: dict[HookPoint, list[Tensor]] = {point: [] for point in points}
    logits = _logits(loaded, tokens, [(point, _noter(values)) for point, values in seen.items()])
    if not bool(torch.isfinite(logits).all()):
        raise UserError(
            f"{loaded.name}: its logits are not finite in {loaded.dtype}",
            "the weights are damaged, or their training diverged"
            if loaded.dtype == "float32"
            else "try --dtype float32; otherwise the weights are damaged",
        )
    return logits, seen


def _noter(values: list[Tensor]) -> Callable[[Tensor], None]:
    def note(hidden: Tensor) -> None:
        # A copy: some blocks add into the very tensor that a module gave them.
        values.append(hidden.clone())

    return note


def _logits(
    loaded: LoadedModel, tokens: Tensor, hooks: Sequence[tuple[HookPoint, Function]]
) -> Tensor:
    """Return fp32 logits, (batch, time, vocabulary), with a function hooked to each place."""
    model: Any = loaded.model
    with ExitStack() as stack:
        for point, function in hooks:
            module = loaded.hook_map.module(model, point)
            stack.callback(attach(module, point.io, function).remove)
        stack.enter_context(explained(loaded.name, tokens))
        output = model(input_ids=tokens, **without_cache(model))
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != tokens.shape:
        raise UserError(
            f"{type(model).__name__} gives no logits for each token",
            "a causal language model with its head is needed, such as GPT2LMHeadModel",
        )
    return logits.float()


def _tokens(loaded: LoadedModel) -> Tensor:
    length = min(LENGTH, loaded.max_positions or LENGTH)
    tokens = np.random.default_rng(0).integers(loaded.vocab_size, size=(2, length))
    return torch.from_numpy(tokens).to(loaded.device)


def _tolerance(loaded: LoadedModel, logits: Tensor) -> float:
    return TOLERANCE.get(loaded.dtype, HALF_TOLERANCE) * max(1.0, float(logits.std()))


def _order(place: tuple[int | None, str]) -> tuple[int, str]:
    layer, component = place
    return (-1 if layer is None else layer, component)


def _label(point: HookPoint) -> str:
    name = point.component if point.layer is None else f"L{point.layer}.{point.component}"
    return f"{name} ({point.io} of {point.path})"
