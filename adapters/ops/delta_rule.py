"""The delta rule, plain and gated, by triangular solves instead of a loop over time.

Every step writes the difference between its value and what the memory recalls for its key, so the
writes of a chunk depend on one another linearly and strictly backwards in time: one unit
triangular system per chunk gives them all (the WY form). Only the memory is carried on.

Use:

    o, memory = delta_rule(q, k, v, beta, return_state=True)
    o, _ = delta_rule(q, k, v, beta, g, initial_state=memory)        # gated

Glossary: b batch, t time, l time within a chunk, h heads, k key width, v value width.
"""

import torch
from torch import Tensor

from patchbench.adapters.ops import dispatch, kernels, naive
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.adapters.ops.segments import span_decay


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    chunk_size: int = 64,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Run S ← eᵍ S; S ← S + k (beta (v − kᵀ S))ᵀ; o = qᵀ S, head by head.

    Args:
        q: queries (b, t, h, k); no scale is applied.
        k: keys (b, t, h, k), of unit length for a stable recurrence.
        v: values (b, t, h, v).
        beta: write strengths (b, t, h).
        g: log decays (b, t, h), at most 0; None for the plain delta rule.
        initial_state: (b, h, k, v); zeros when None.
        return_state: whether to return the final state.
        chunk_size: steps solved at once.
        backend: "auto", "torch", "naive" or "fla" (half precision only).

    Returns:
        o (b, t, h, v) in the dtype of `v`, and the final state (b, h, k, v) in float32 or wider
        (None unless asked for).

    Raises:
        UserError: the backend is unknown or cannot run here.
    """
    half = q.dtype in (torch.bfloat16, torch.float16)
    chosen = dispatch.choose(
        "delta_rule" if g is None else "gated_delta_rule",
        backend,
        q.device,
        unsupported="" if half else str(q.dtype).removeprefix("torch."),
    )
    dtype = working_dtype(q, k, v, beta)
    with no_autocast(q):
        start = None if initial_state is None else initial_state.to(dtype)
        if chosen == "fla":
            o, state = kernels.delta_rule(q, k, v, beta, g, start)
        else:
            q_, k_, v_, beta_ = (x.to(dtype) for x in (q, k, v, beta))
            decay = None if g is None else g.to(dtype)
            if chosen == "naive":
                o, state = naive.delta_rule(q_, k_, v_, beta_, decay, start)
            else:
                o, state = _chunked(q_, k_, v_, beta_, decay, start, chunk_size)
    return o.to(v.dtype), state if return_state else None


def _chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    S: Tensor | None,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Return o (b, t, h, v) and the final memory (b, h, k, v)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # b h t k, b h t k, b h t v
    beta = beta.transpose(1, 2).unsqueeze(-1)  # b h t 1
    g = None if g is None else g.transpose(1, 2)  # b h t
    t = q.shape[2]
    outputs = []
    for begin in range(0, t, size):
        now = slice(begin, min(t, begin + size))
        q_, k_, v_, beta_ = q[:, :, now], k[:, :, now], v[:, :, now], beta[:, :, now]
        kt_ = k_.transpose(-1, -2)  # b h k l
        overlap = (beta_ * k_) @ kt_  # b h l l: only what lies below the diagonal is read
        attention = q_ @ kt_  # b h l l
        until_end = k_
        recall_k, recall_q = k_, q_  # how the memory at the chunk's start is read
        kept: Tensor | None = None
        if g is None:
            attention = attention.tril()
        else:
            decay = span_decay(g[:, :, now])  # b h l l
            since_start = g[:, :, now].cumsum(-1).exp().unsqueeze(-1)  # b h l 1
            overlap, attention = overlap * decay, attention * decay
            until_end = k_ * decay[..., -1, :, None]  # b h l k
            recall_k, recall_q = k_ * since_start, q_ * since_start  # b h l k
            kept = since_start[..., -1:, :]  # b h 1 1
        target = v_ if S is None else v_ - recall_k @ S  # b h l v
        writes = torch.linalg.solve_triangular(
            overlap, beta_ * target, upper=False, unitriangular=True
        )  # b h l v
        o = attention @ writes  # b h l v
        update = until_end.transpose(-1, -2) @ writes  # b h k v
        if S is None:
            S = update
        else:
            o = o + recall_q @ S
            S = (S if kept is None else kept * S) + update
        outputs.append(o)
    assert S is not None
    o = torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]
    return o.transpose(1, 2), S
