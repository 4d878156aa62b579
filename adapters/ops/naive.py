"""The obvious twin of every op: one loop over time, one line per equation, no cleverness.

They define what the fast ops compute. Tests compare against them; `backend="naive"` runs them in
a model. They share no code with the fast ops.

Glossary: b batch, t time, d channels, n state size, h heads, p head width, g groups,
k key width, v value width, w convolution width.
"""

import torch
from torch import Tensor


def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run h ← exp(dt A) h + dt u Bᵀ, y = h C + D u (Mamba, arXiv 2312.00752, algorithm 2).

    Args:
        u: input (b, t, d).
        dt: step sizes (b, t, d), after softplus.
        A: (d, n), negative.
        B: (b, t, n).
        C: (b, t, n).
        D: skip weights (d,).
        initial_state: (b, d, n).

    Returns:
        y (b, t, d) and the final state (b, d, n).
    """
    h = u.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state
    outputs = []
    for t in range(u.shape[1]):
        decay = torch.exp(dt[:, t, :, None] * A)  # b d n
        h = decay * h + (dt[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]  # b d n
        y = (h * C[:, t, None, :]).sum(-1)  # b d
        outputs.append(y if D is None else y + D * u[:, t])
    return torch.stack(outputs, 1), h


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run h ← exp(dt A) h + dt x Bᵀ, y = h C + D x per head (Mamba-2, arXiv 2405.21060).

    Args:
        x: input (b, t, h, p).
        dt: step sizes (b, t, h), after softplus.
        A: (h,), negative.
        B: (b, t, g, n); heads are split evenly over the groups.
        C: (b, t, g, n).
        D: skip weights (h,).
        initial_state: (b, h, p, n).

    Returns:
        y (b, t, h, p) and the final state (b, h, p, n).
    """
    b, length, heads, p = x.shape
    B = B.repeat_interleave(heads // B.shape[2], dim=2)  # b t h n
    C = C.repeat_interleave(heads // C.shape[2], dim=2)  # b t h n
    h = x.new_zeros(b, heads, p, B.shape[3]) if initial_state is None else initial_state
    outputs = []
    for t in range(length):
        decay = torch.exp(dt[:, t] * A)[:, :, None, None]  # b h 1 1
        write = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]  # b h p n
        h = decay * h + write
        y = (h * C[:, t, :, None, :]).sum(-1)  # b h p
        outputs.append(y if D is None else y + D[:, None] * x[:, t])
    return torch.stack(outputs, 1), h


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run S ← eᵍ S; S ← S + k (beta (v − kᵀ S))ᵀ; o = qᵀ S (arXiv 2406.06484, 2412.06464).

    Args:
        q: queries (b, t, h, k); no scale is applied.
        k: keys (b, t, h, k), of unit length for a stable recurrence.
        v: values (b, t, h, v).
        beta: write strengths (b, t, h).
        g: log decays (b, t, h), at most 0; None for the plain delta rule.
        initial_state: (b, h, k, v).

    Returns:
        o (b, t, h, v) and the final state (b, h, k, v).
    """
    b, length, heads, width = k.shape
    S = v.new_zeros(b, heads, width, v.shape[3]) if initial_state is None else initial_state
    outputs = []
    for t in range(length):
        if g is not None:
            S = torch.exp(g[:, t])[:, :, None, None] * S
        recalled = (k[:, t, :, :, None] * S).sum(2)  # b h v
        correction = beta[:, t, :, None] * (v[:, t] - recalled)  # b h v
        S = S + k[:, t, :, :, None] * correction[:, :, None, :]  # b h k v
        outputs.append((q[:, t, :, :, None] * S).sum(2))  # b h v
    return torch.stack(outputs, 1), S


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum y[t] = bias + Σ_j weight[:, w−1−j] x[t−j] over the last w inputs, channel by channel.

    Args:
        x: (b, t, d).
        weight: (d, w), the newest input last, as `nn.Conv1d` stores it.
        bias: (d,).
        initial_state: the w − 1 inputs before x, (b, w−1, d); zeros when None.

    Returns:
        y (b, t, d) and the last w − 1 inputs (b, w−1, d).
    """
    b, length, d = x.shape
    w = weight.shape[1]
    past = x.new_zeros(b, w - 1, d) if initial_state is None else initial_state
    history = torch.cat([past, x], 1)  # b w-1+t d
    outputs = []
    for t in range(length):
        y = torch.zeros_like(x[:, 0]) if bias is None else bias.expand(b, d)
        for j in range(w):
            y = y + weight[:, j] * history[:, t + j]
        outputs.append(y)
    return torch.stack(outputs, 1), history[:, length:]


def long_conv(
    x: Tensor, filters: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum y[t] = Σ_{s≤t} filters[:, t−s] x[s] over everything seen, channel by channel.

    Args:
        x: (b, t, d).
        filters: (d, l), the weight of the newest input first; zero beyond l.
        initial_state: all inputs before x, (b, s, d).

    Returns:
        y (b, t, d) and all inputs so far (b, s+t, d).
    """
    history = x if initial_state is None else torch.cat([initial_state, x], 1)  # b s+t d
    start = history.shape[1] - x.shape[1]
    outputs = []
    for t in range(start, history.shape[1]):
        y = torch.zeros_like(x[:, 0])
        for lag in range(min(t + 1, filters.shape[1])):
            y = y + filters[:, lag] * history[:, t - lag]
        outputs.append(y)
    return torch.stack(outputs, 1), history
