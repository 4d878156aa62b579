"""The recurrences with their hook points: fast, or step by step where something looks inside.

`ssm_write` and `ssm_state` exist for every position only when a hook asks for them; otherwise the
fast op runs, which never holds more than it must. Both compute outside of the caller's autocast.

Use:

    y, last = scan_channels(hook_points, u, dt, A, B, C, D, start, return_state=False)

Glossary: b batch, t time, d channels, n state size, h heads, p head width, g groups, k key width,
v value width.
"""

from typing import Any

import torch
from torch import Tensor

from patchbench.adapters import ops
from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.stepwise import stepwise
from patchbench.adapters.ops.precision import no_autocast

Output = tuple[Tensor, Tensor | None]
"""What was read, and the last state if asked for."""


def scan_channels(
    hook_points: HookPoints,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    start: Tensor | None,
    *,
    return_state: bool,
) -> Output:
    """Run Mamba's scan: u, dt (b, t, d); A (d, n); B, C (b, t, n); D (d); start (b, d, n).

    Returns:
        y (b, t, d) with the skip D u, in the dtype of u, and the last state (b, d, n).
    """
    if not _looked_at(hook_points):
        # The decorator that keeps the compiler out is typed as taking one argument.
        scan: Any = ops.selective_scan
        return scan(u, dt, A, B, C, D, initial_state=start, return_state=return_state)
    with no_autocast(u):
        full, B, C = (z.to(dtype=torch.promote_types(z.dtype, A.dtype)) for z in (u, B, C))
        dtu = dt * full
        read, states = stepwise(
            keep=lambda t, h: torch.exp(dt[:, t, :, None] * A) * h,
            write=lambda t, kept: dtu[:, t, :, None] * B[:, t, None, :],
            start=full.new_zeros(len(u), *A.shape) if start is None else start,
            length=u.shape[1],
            state_hook=hook_points["ssm_state"],
            write_hook=hook_points["ssm_write"],
        )  # b t d n
        y = (read @ C.unsqueeze(-1)).squeeze(-1) + D * full  # b t d
    return y.to(u.dtype), states[:, -1] if return_state else None


def scan_heads(
    hook_points: HookPoints,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    start: Tensor | None,
    *,
    return_state: bool,
    chunk_size: int,
) -> Output:
    """Run Mamba-2's scan: x (b, t, h, p); dt (b, t, h); A, D (h); B, C (b, t, g, n).

    Returns:
        y (b, t, h, p) with the skip D x, in the dtype of x, and the last state (b, h, p, n).
    """
    if not _looked_at(hook_points):
        return ops.ssd(
            x, dt, A, B, C, D,
            initial_state=start, return_state=return_state, chunk_size=chunk_size,
        )  # fmt: skip
    with no_autocast(x):
        full, B, C = (z.to(torch.promote_types(z.dtype, A.dtype)) for z in (x, B, C))
        repeats = x.shape[2] // B.shape[2]
        B, C = B.repeat_interleave(repeats, 2), C.repeat_interleave(repeats, 2)  # b t h n
        dtx = dt.unsqueeze(-1) * full  # b t h p
        shape = (len(x), *x.shape[2:], B.shape[-1])
        read, states = stepwise(
            keep=lambda t, h: torch.exp(dt[:, t] * A)[:, :, None, None] * h,
            write=lambda t, kept: dtx[:, t, :, :, None] * B[:, t, :, None, :],
            start=full.new_zeros(shape) if start is None else start,
            length=x.shape[1],
            state_hook=hook_points["ssm_state"],
            write_hook=hook_points["ssm_write"],
        )  # b t h p n
        y = (read @ C.unsqueeze(-1)).squeeze(-1) + D[:, None] * full  # b t h p
    return y.to(x.dtype), states[:, -1] if return_state else None


def delta_memory(
    hook_points: HookPoints,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    start: Tensor | None,
    *,
    return_state: bool,
    chunk_size: int,
) -> Output:
    """Run the delta rule: q, k (b, t, h, k); v (b, t, h, v); beta and log decays g (b, t, h).

    Returns:
        o (b, t, h, v) in the dtype of v, and the last memory (b, h, k, v).
    """
    if not _looked_at(hook_points):
        return ops.delta_rule(
            q, k, v, beta, g,
            initial_state=start, return_state=return_state, chunk_size=chunk_size,
        )  # fmt: skip
    dtype = torch.promote_types(v.dtype, torch.float32)
    wide, q, k, beta = (z.to(dtype) for z in (v, q, k, beta))

    def keep(t: int, memory: Tensor) -> Tensor:
        return memory if g is None else torch.exp(g[:, t])[:, :, None, None] * memory

    def write(t: int, memory: Tensor) -> Tensor:
        recalled = (k[:, t, :, None, :] @ memory).squeeze(2)  # b h v
        correction = beta[:, t, :, None] * (wide[:, t] - recalled)  # b h v
        return k[:, t, :, :, None] * correction[:, :, None, :]  # b h k v

    with no_autocast(v):
        if start is None:
            start = wide.new_zeros(len(v), *k.shape[2:], v.shape[-1])
        read, memories = stepwise(
            keep,
            write,
            start,
            v.shape[1],
            state_hook=hook_points["ssm_state"],
            write_hook=hook_points["ssm_write"],
        )  # b t h k v
        o = (q.unsqueeze(-2) @ read).squeeze(-2)  # b t h v
    return o.to(v.dtype), memories[:, -1] if return_state else None


def _looked_at(hook_points: HookPoints) -> bool:
    return hook_points["ssm_write"].active or hook_points["ssm_state"].active
