"""Mamba-2's scan by the state space duality: matrix products inside a chunk, a state between.

With one scalar decay per head, the outputs inside a chunk are a masked attention whose mask holds
the decays; only the state at the chunk's end is carried on.

Use:

    y, state = ssd(x, dt, A, B, C, D, return_state=True)

Glossary: b batch, t time, l time within a chunk, h heads, p head width, g groups, r heads per
group, n state size.
"""

import torch
from torch import Tensor

from patchbench.adapters.ops import dispatch, kernels, naive
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.adapters.ops.segments import check_chunk, span_decay


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    chunk_size: int = 64,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Run h ← exp(dt A) h + dt x Bᵀ, y = h C + D x, head by head.

    Args:
        x: input (b, t, h, p).
        dt: step sizes (b, t, h), after softplus.
        A: (h,), negative.
        B: (b, t, g, n); heads are split evenly over the groups.
        C: (b, t, g, n).
        D: skip weights (h,).
        initial_state: (b, h, p, n); zeros when None.
        return_state: whether to return the final state.
        chunk_size: steps whose outputs are computed at once.
        backend: "auto", "torch", "naive" or "mamba_ssm".

    Returns:
        y (b, t, h, p) in the dtype of `x`, and the final state (b, h, p, n) in float32 or wider
        (None unless asked for).

    Raises:
        UserError: the backend is unknown or cannot run here, or the chunk is empty.
    """
    check_chunk("ssd", chunk_size)
    unsupported = "float64" if x.dtype == torch.float64 else ""
    chosen = dispatch.choose("ssd", backend, x.device, unsupported=unsupported)
    dtype = working_dtype(x, dt, A)
    with no_autocast(x):
        x_, dt_, A_, B_, C_ = (z.to(dtype) for z in (x, dt, A, B, C))
        skip = None if D is None else D.to(dtype)
        start = None if initial_state is None else initial_state.to(dtype)
        if chosen == "mamba_ssm":
            y, state = kernels.ssd(x_, dt_, A_, B_, C_, skip, start, chunk_size)
        elif chosen == "naive":
            y, state = naive.ssd(x_, dt_, A_, B_, C_, skip, start)
        else:
            y, state = _chunked(x_, dt_, A_, B_, C_, start, chunk_size)
            if skip is not None:
                y = y + x_ * skip[:, None]
    return y.to(x.dtype), state if return_state else None


def _chunked(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor | None, size: int
) -> tuple[Tensor, Tensor]:
    """Return the outputs without the skip (b, t, h, p), and the final state (b, h, p, n)."""
    b, t, heads, p = x.shape
    groups, n = B.shape[2:]
    r = heads // groups
    # Time next to the feature it is contracted with: b g r t p, b g r t, b g 1 t n.
    dtx = (x * dt.unsqueeze(-1)).transpose(1, 2).reshape(b, groups, r, t, p)
    log_decay = (dt * A).transpose(1, 2).reshape(b, groups, r, t)
    B, C = B.transpose(1, 2).unsqueeze(2), C.transpose(1, 2).unsqueeze(2)
    h = None if state is None else state.reshape(b, groups, r, p, n)
    outputs = []
    for begin in range(0, t, size):
        now = slice(begin, min(t, begin + size))
        dtx_, a_, B_, C_ = dtx[..., now, :], log_decay[..., now], B[..., now, :], C[..., now, :]
        decay = span_decay(a_)  # b g r l l
        y = (C_ @ B_.transpose(-1, -2) * decay) @ dtx_  # b g r l p
        write = (dtx_ * decay[..., -1, :, None]).transpose(-1, -2) @ B_  # b g r p n
        if h is None:
            h = write
        else:
            since_start = a_.cumsum(-1).exp().unsqueeze(-1)  # b g r l 1
            y = y + since_start * (C_ @ h.transpose(-1, -2))
            h = since_start[..., -1:, :] * h + write
        outputs.append(y)
    assert h is not None
    y = torch.cat(outputs, -2) if len(outputs) > 1 else outputs[0]  # b g r t p
    return y.reshape(b, heads, t, p).transpose(1, 2), h.reshape(b, heads, p, n)
