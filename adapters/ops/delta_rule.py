"""The delta rule, plain and gated, by triangular solves instead of a loop over time.

Every step writes the difference between its value and what the memory recalls for its key, so the
writes of a chunk depend on one another linearly and strictly backwards in time: one unit
triangular system per chunk gives them all (the WY form). Only the memory is carried on. Inside a
chunk the backward pass is written out: products with what the forward pass has kept.

Use:

    o, memory = delta_rule(q, k, v, beta, return_state=True)
    o, _ = delta_rule(q, k, v, beta, g, initial_state=memory)        # gated

Glossary: b batch, t time, l time within a chunk, h heads, k key width, v value width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from patchbench.adapters.ops import dispatch, kernels, naive
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.adapters.ops.segments import check_chunk, span_decay


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

    Differentiable once, states included.

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
        UserError: the backend is unknown or cannot run here, or the chunk is empty.
    """
    check_chunk("delta rule", chunk_size)
    half = v.dtype in (torch.bfloat16, torch.float16)
    chosen = dispatch.choose(
        "delta_rule" if g is None else "gated_delta_rule",
        backend,
        q.device,
        unsupported="" if half else str(v.dtype).removeprefix("torch."),
    )
    dtype = working_dtype(q, k, v, beta)
    with no_autocast(q):
        start = None if initial_state is None else initial_state.to(dtype)
        if chosen == "fla":
            o, state = kernels.delta_rule(q.to(v.dtype), k, v, beta, g, start)
        else:
            q_, k_, v_, beta_ = (x.to(dtype) for x in (q, k, v, beta))
            decay = None if g is None else g.to(dtype)
            if chosen == "naive":
                o, state = naive.delta_rule(q_, k_, v_, beta_, decay, start)
            else:
                o, state = _chunked(q_, k_, v_, beta_, decay, start, chunk_size, return_state)
    return o.to(v.dtype), state if return_state else None


def _chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    S: Tensor | None,
    size: int,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return o (b, t, h, v) and, if asked for, the final memory (b, h, k, v)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # b h t k, b h t k, b h t v
    beta = beta.transpose(1, 2).unsqueeze(-1)  # b h t 1
    g = None if g is None else g.transpose(1, 2)  # b h t
    t = q.shape[2]
    outputs = []
    for begin in range(0, t, size):
        now = slice(begin, min(t, begin + size))
        q_, k_, v_, beta_ = q[:, :, now], k[:, :, now], v[:, :, now], beta[:, :, now]
        recall_k, recall_q, until_end = k_, q_, k_  # b h l k: how the chunk meets the memory
        kept: Tensor | None = None
        if g is None:
            decay = k_.new_ones(k_.shape[2], k_.shape[2]).tril_()  # l l
        else:
            decay = span_decay(g[:, :, now])  # b h l l
            since_start = g[:, :, now].cumsum(-1).exp().unsqueeze(-1)  # b h l 1
            recall_k, recall_q = k_ * since_start, q_ * since_start
            until_end = k_ * decay[..., -1, :, None]
            kept = since_start[..., -1:, :]  # b h 1 1
        target = v_ if S is None else v_ - recall_k @ S  # b h l v
        o, writes = _WithinChunk.apply(q_, k_, target, beta_, decay)  # b h l v, b h l v
        outputs.append(o if S is None else o + recall_q @ S)
        if now.stop < t or return_state:
            update = until_end.transpose(-1, -2) @ writes  # b h k v
            if S is not None:
                update = update + (S if kept is None else kept * S)
            S = update
    o = torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]
    return o.transpose(1, 2), S


class _WithinChunk(torch.autograd.Function):
    """What a chunk writes, W, and reads of it, o, given what its values lack of the recalled, R.

    (I + L) W = beta R and o = A W, where L is beta k kᵀ ⊙ decay below the diagonal and A is
    q kᵀ ⊙ decay up to it. The inverse of I + L is kept for the backward pass. With unit keys and
    beta in [0, 1] its entries are at most 1, so it is as accurate as a solve.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, target: Tensor, beta: Tensor, decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        kt = k.transpose(-1, -2)
        kk, qk = k @ kt, q @ kt  # b h l l
        attention = qk * decay
        eye = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
        # Solved from the right, where row-major matrices need no copy; the inverse is the same.
        inverse = torch.linalg.solve_triangular(
            kk * decay * beta, eye.expand_as(kk), upper=False, left=False, unitriangular=True
        )  # b h l l
        writes = inverse @ (beta * target)  # b h l v
        ctx.save_for_backward(q, k, target, beta, decay, kk, qk, attention, inverse, writes)
        ctx.set_materialize_grads(False)
        return attention @ writes, writes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        do, dwrites = grads
        q, k, target, beta, decay, kk, qk, attention, inverse, writes = ctx.saved_tensors
        ddecay = dq = dattention = None
        if do is None and dwrites is None:
            return (None,) * 5
        if do is not None:
            do = do.contiguous()  # a product would copy an expanded one matrix by matrix
            read = attention.transpose(-1, -2) @ do
            dwrites = read if dwrites is None else read + dwrites
            dattention = do @ writes.transpose(-1, -2)  # b h l l
        dright = inverse.transpose(-1, -2) @ dwrites  # b h l v: of beta R
        doverlap = (dright @ writes.transpose(-1, -2)).tril_(-1).neg_()  # b h l l: of L
        if ctx.needs_input_grad[4]:
            ddecay = doverlap * (kk * beta)
            if dattention is not None:
                ddecay = torch.addcmul(ddecay, dattention, qk)
        doverlap = doverlap.mul_(decay)
        dbeta = (dright * target).sum(-1, keepdim=True) + (doverlap * kk).sum(-1, keepdim=True)
        doverlap = doverlap.mul_(beta)
        dk = (doverlap + doverlap.transpose(-1, -2)) @ k
        if dattention is not None:
            dattention = dattention.mul_(decay)
            dq = dattention @ k
            dk = dk + dattention.transpose(-1, -2) @ q
        return dq, dk, dright.mul_(beta), dbeta, ddecay
