"""Mamba's selective scan on any device, in memory that does not grow with time × channels × state.

Only the states at chunk boundaries are kept for the backward pass, which runs each chunk's
recurrence again. Within a chunk everything that does not depend on the previous step is done at
once, in buffers that all chunks share; on a CPU this is faster than autograd over a loop.

Use:

    y, state = selective_scan(u, dt, A, B, C, D, return_state=True)
    y2, _ = selective_scan(u2, dt2, A, B2, C2, D, initial_state=state)

Glossary: b batch, t time, l time within a chunk, d channels, n state size, c chunks.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from patchbench.adapters.ops import dispatch, kernels, naive
from patchbench.adapters.ops.precision import no_autocast, working_dtype

# Floats per work buffer: small enough for the cache, large enough to drown call overhead.
_BUFFER = 2**19


@torch.compiler.disable
def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Run h ← exp(dt A) h + dt u Bᵀ, y = h C + D u. Differentiable once, states included.

    Args:
        u: input (b, t, d).
        dt: step sizes (b, t, d), after softplus.
        A: (d, n), negative.
        B: (b, t, n).
        C: (b, t, n).
        D: skip weights (d,).
        initial_state: (b, d, n); zeros when None.
        return_state: whether to return the final state.
        backend: "auto", "torch", "naive" or "mamba_ssm".

    Returns:
        y (b, t, d) in the dtype of `u`, and the final state (b, d, n) in float32 or wider
        (None unless asked for).

    Raises:
        UserError: the backend is unknown or cannot run here.
    """
    chosen = dispatch.choose(
        "selective_scan",
        backend,
        u.device,
        unsupported=_unsupported(u, A, initial_state, return_state),
    )
    dtype = working_dtype(u, dt, A)
    with no_autocast(u):
        u_, dt_, A_, B_, C_ = (x.to(dtype) for x in (u, dt, A, B, C))
        skip = None if D is None else D.to(dtype)
        if chosen == "mamba_ssm":
            y, state = kernels.selective_scan(u_, dt_, A_, B_, C_, skip, return_state=return_state)
        else:
            if initial_state is None:
                start = u_.new_zeros(u.shape[0], *A.shape)
            else:
                start = initial_state.to(dtype)
            if chosen == "naive":
                y, state = naive.selective_scan(u_, dt_, A_, B_, C_, skip, start)
            else:
                skip = u_.new_zeros(u.shape[2]) if skip is None else skip
                y, state = _SelectiveScan.apply(u_, dt_, A_, B_, C_, skip, start)
    return y.to(u.dtype), state if return_state else None


def _unsupported(u: Tensor, A: Tensor, initial_state: Tensor | None, return_state: bool) -> str:
    """Name what the CUDA kernel cannot do in this call ("" when it can do it)."""
    if initial_state is not None:
        return "an initial state"
    if return_state and torch.is_grad_enabled():
        return "gradients through the final state"
    if A.shape[1] > 256:
        return "more than 256 state dimensions"
    return "float64" if u.dtype == torch.float64 else ""


def chunk_length(b: int, t: int, d: int, n: int) -> int:
    """Return the steps per chunk.

    At least n / 2, so that all boundary states together take no more room than `u` and `dt`; at
    most 64 beyond that, so that the work buffers do not either.
    """
    return max(1, min(t, max(min(_BUFFER // (b * d * n), 64), n // 2)))


def _run_chunk(
    dt: Tensor, dtu: Tensor, B: Tensor, A2: Tensor, start: Tensor, decay: Tensor, h: Tensor
) -> None:
    """Fill `decay` and `h` (b, l, n, d) with the decays and the states after each step."""
    torch.mul(dt.unsqueeze(2), A2, out=decay).exp2_()
    torch.mul(B.unsqueeze(3), dtu.unsqueeze(2), out=h)
    previous = start
    for factor, state in zip(decay.unbind(1), h.unbind(1), strict=True):
        previous = state.addcmul_(factor, previous)


class _SelectiveScan(torch.autograd.Function):
    """The scan with states as (b, n, d): the channels innermost, where they vectorise."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor,
        start: Tensor,
    ) -> tuple[Tensor, Tensor]:
        b, t, d = u.shape
        n = A.shape[1]
        length = chunk_length(b, t, d, n)
        # exp2 is about twice as fast as exp on a CPU.
        A2 = A.t().contiguous().mul_(math.log2(math.e))  # n d
        y = torch.empty_like(u, memory_format=torch.contiguous_format)
        chunks = math.ceil(t / length)
        bounds = u.new_empty(chunks + 1, b, n, d)
        bounds[0] = start.transpose(1, 2)
        work = u.new_empty(2, b * length * n * d)
        for c in range(chunks):
            now = slice(c * length, min(t, (c + 1) * length))
            steps = now.stop - now.start
            decay, h = work[:, : b * steps * n * d].view(2, b, steps, n, d)
            _run_chunk(dt[:, now], dt[:, now] * u[:, now], B[:, now], A2, bounds[c], decay, h)
            y[:, now] = torch.matmul(C[:, now].unsqueeze(2), h).squeeze(2)  # b l d
            bounds[c + 1] = h[:, -1]
        y.addcmul_(u, D)
        ctx.save_for_backward(u, dt, A, B, C, D, bounds)
        return y, bounds[-1].transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        dy, dlast = grads
        u, dt, A, B, C, D, bounds = ctx.saved_tensors
        b, t, d = u.shape
        n = A.shape[1]
        length = chunk_length(b, t, d, n)
        At = A.t().contiguous()  # n d
        A2 = At * math.log2(math.e)
        du = dy * D
        ddt, dB, dC = torch.empty_like(dt), torch.empty_like(B), torch.empty_like(C)
        dA, dD = torch.zeros_like(At), torch.zeros_like(D)
        carry = dlast.transpose(1, 2).contiguous()  # b n d: gradient of the state after the chunk
        work = u.new_empty(3, b * length * n * d)
        for c in reversed(range(bounds.shape[0] - 1)):
            now = slice(c * length, min(t, (c + 1) * length))
            steps = now.stop - now.start
            decay, h, dh = work[:, : b * steps * n * d].view(3, b, steps, n, d)
            u_, dt_, B_, C_ = u[:, now], dt[:, now], B[:, now], C[:, now]
            dy_ = dy[:, now].contiguous()
            dtu = dt_ * u_
            _run_chunk(dt_, dtu, B_, A2, bounds[c], decay, h)
            dC[:, now] = torch.matmul(dy_.unsqueeze(2), h.transpose(2, 3)).squeeze(2)  # b l n
            # Gradients of the states, from the last step to the first.
            torch.mul(C_.unsqueeze(3), dy_.unsqueeze(2), out=dh)
            dhs, decays = dh.unbind(1), decay.unbind(1)
            dhs[-1].add_(carry)
            for step in range(steps - 2, -1, -1):
                dhs[step].addcmul_(decays[step + 1], dhs[step + 1])
            torch.mul(decays[0], dhs[0], out=carry)
            # The writes: dt u Bᵀ.
            dB[:, now] = torch.matmul(dtu.unsqueeze(2), dh.transpose(2, 3)).squeeze(2)  # b l n
            ddtu = torch.matmul(B_.unsqueeze(2), dh).squeeze(2)  # b l d
            # The decays' exponents, dt A; their gradient replaces `decay`.
            exponent = decay.mul_(dh)
            exponent[:, 1:].mul_(h[:, :-1])
            exponent[:, 0].mul_(bounds[c])
            ddt_decay = torch.mul(exponent, At, out=h).sum(2)  # b l d
            dA += torch.mul(exponent, dt_.unsqueeze(2), out=dh).sum((0, 1))  # n d
            torch.addcmul(ddt_decay, ddtu, u_, out=ddt[:, now])
            du[:, now].addcmul_(ddtu, dt_)
            dD += (dy_ * u_).sum((0, 1))
        return du, ddt, dA.t(), dB, dC, dD, carry.transpose(1, 2)
