"""A recurrence one step at a time, whose writes and states a hook can read and replace.

The fast ops never hold a state for every position. When something looks at `ssm_write`,
`ssm_state` or `conv_state`, a mixer runs its recurrence here instead. A replaced write takes effect
from its own position on. A replaced state is what the model remembers *after* a position, as if it
were exchanged in a cache between two tokens: what is read at that position stays as it was, and
every later write and state follows from the new one.

Use:

    read, states = stepwise(keep, write, start, length, state_hook=hook)      # (b, t, *state) each

Glossary: b batch, t time; a state is (b, *state).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from patchbench.adapters.hook_points import Hook

Replacement = tuple[Tensor, Tensor, Tensor | None]
"""At which (b, t) a hook returned something else, what (b, t, *state), and by how much it differs
where a gradient is to reach the hook's own terms."""


def stepwise(
    keep: Callable[[int, Tensor], Tensor],
    write: Callable[[int, Tensor], Tensor],
    start: Tensor,
    length: int,
    *,
    state_hook: Hook,
    write_hook: Hook | None = None,
) -> tuple[Tensor, Tensor]:
    """Run state ← keep(state) + write, and show writes and states to their hooks.

    The hook of the writes sees all writes of the unpatched recurrence as (b, t, features), the
    hook of the states all states after patched writes. Positions where a hook returns what it
    was given are computed as usual; elsewhere the recurrence goes on from the returned value.
    Terms that a hook adds can be differentiated by, be they 0.

    Args:
        keep: (step, state before) → what is left of it before the write.
        write: (step, what is left) → the increment.
        start: the state before the first step (b, *state).
        length: number of steps.
        state_hook: shown the states.
        write_hook: shown the writes.

    Returns:
        The states that each step reads, and those that the next one goes on from (b, t, *state).
    """
    read, states, writes = _run(keep, write, start, length, None, None)
    new_writes = None if write_hook is None else _show(write_hook, writes)
    if new_writes is not None:
        read, states, _ = _run(keep, write, start, length, new_writes, None)
    new_states = _show(state_hook, states)
    if new_states is not None:
        read, states, _ = _run(keep, write, start, length, new_writes, new_states)
    return read, states


def _run(
    keep: Callable[[int, Tensor], Tensor],
    write: Callable[[int, Tensor], Tensor],
    state: Tensor,
    length: int,
    new_writes: Replacement | None,
    new_states: Replacement | None,
) -> tuple[Tensor, Tensor, Tensor]:
    read, states, writes = [], [], []
    for t in range(length):
        kept = keep(t, state)
        increment = _replace(new_writes, t, write(t, kept))
        read.append(kept + increment)
        state = _replace(new_states, t, read[-1])
        states.append(state)
        writes.append(increment)
    before = torch.stack(read, 1)
    after = before if new_states is None else torch.stack(states, 1)
    return before, after, torch.stack(writes, 1)


def _show(hook: Hook, values: Tensor) -> Replacement | None:
    """Pass `values` (b, t, *state) through the hook; return what it changed."""
    if not hook.active:
        return None
    flat = values.flatten(2)
    given = flat.clone()  # hooks may write into what they are given
    before = given.grad_fn
    returned = hook(given)
    added = returned.requires_grad and (before is None or returned.grad_fn is not before)
    returned = returned.to(values.dtype)
    changed = (returned != flat).any(-1)  # b t
    if not (added or bool(changed.any())):
        return None
    difference = (returned - flat).view_as(values) if added else None
    return changed, returned.view_as(values), difference


def _replace(replacement: Replacement | None, t: int, value: Tensor) -> Tensor:
    if replacement is None:
        return value
    changed, new, difference = replacement
    where = changed[:, t].view(-1, *[1] * (value.dim() - 1))
    if difference is not None:
        value = value + difference[:, t]
    return torch.where(where, new[:, t], value)
