"""The CUDA kernels of other packages, called through this package's layouts and conventions.

Each function takes and returns exactly what its pure PyTorch twin does; `dispatch.choose` has
decided beforehand that the kernel is there and covers the case.

Glossary: b batch, t time, d channels, n state size, h heads, p head width, g groups, k key width,
v value width, w convolution width.
"""

from typing import Any

import torch
from torch import Tensor

from patchbench.adapters.ops import dispatch


def _kernel(op: str) -> Any:
    function = dispatch.kernel(op)
    assert function is not None, op
    return function


def selective_scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, *, return_state: bool
) -> tuple[Tensor, Tensor | None]:
    """Call mamba-ssm's selective scan, which wants time innermost: (b, d, t) and (b, n, t)."""
    u, dt, B, C = (x.transpose(1, 2).contiguous() for x in (u, dt, B, C))
    out = _kernel("selective_scan")(u, dt, A, B, C, D, return_last_state=return_state)
    y, state = out if return_state else (out, None)
    return y.transpose(1, 2), state


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    initial_state: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Call mamba-ssm's chunked scan; the layouts are the same."""
    return _kernel("ssd")(
        x, dt, A, B, C, chunk_size, D=D, initial_states=initial_state, return_final_states=True
    )


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Call fla's chunked delta rule, whose default scale is not 1."""
    arguments = {"scale": 1.0, "initial_state": initial_state, "output_final_state": True}
    k, v, beta = k.to(q.dtype), v.to(q.dtype), beta.to(q.dtype)
    if g is None:
        return _kernel("delta_rule")(q=q, k=k, v=v, beta=beta, **arguments)
    return _kernel("gated_delta_rule")(q=q, k=k, v=v, g=g.float(), beta=beta, **arguments)


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None
) -> Tensor:
    """Call causal-conv1d, which wants (b, d, t); an initial state needs channels innermost."""
    x = x.contiguous().transpose(1, 2)  # b d t, channels innermost
    past = None if initial_state is None else initial_state.contiguous().transpose(1, 2)
    y = _kernel("short_conv")(
        x,
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        initial_states=past,
        activation=None,
    )
    return torch.transpose(y, 1, 2)
