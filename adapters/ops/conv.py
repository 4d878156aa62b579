"""Causal convolutions, channel by channel: short (a few taps) and long (a tap per position).

Use:

    y, last_inputs = short_conv(x, weight, bias, return_state=True)
    y2, _ = short_conv(x2, weight, bias, initial_state=last_inputs)
    y, history = long_conv(x, filters, return_state=True)

The long convolution has two forms. "direct" multiplies with blocks of the filter's Toeplitz
matrix. "fft", faster on long sequences, does so within chunks and adds what earlier chunks
contribute by Fourier transforms. One transform of the whole sequence would spread the rounding of
a later input over earlier outputs; here every transform ends before the outputs that it adds to,
so in both forms an output depends, to the last bit, on no later input.

Glossary: b batch, t time, s time including the past, l time within a block, d channels, w width,
p pairs of neighbouring spans.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from patchbench.adapters.ops import dispatch, kernels, naive
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.adapters.ops.segments import check_chunk

DIRECT_LIMIT = 1024
_BLOCK = 64


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Sum y[t] = bias + Σ_j weight[:, w−1−j] x[t−j] over the last w inputs.

    Args:
        x: (b, t, d).
        weight: (d, w) with w ≥ 1, the newest input last, as `nn.Conv1d` stores it.
        bias: (d,).
        initial_state: the w − 1 inputs before x, (b, w−1, d); zeros when None.
        return_state: whether to return the last w − 1 inputs.
        backend: "auto", "torch", "naive" or "causal_conv1d" (widths 2 to 4).

    Returns:
        y (b, t, d) in the dtype of `x`, and the last w − 1 inputs (b, w−1, d) in the dtype of `x`
        (None unless asked for).

    Raises:
        UserError: the backend is unknown or cannot run here.
    """
    t, w = x.shape[1], weight.shape[1]
    chosen = dispatch.choose("short_conv", backend, x.device, unsupported=_unsupported(x, w))
    dtype = working_dtype(x, weight)
    past = x.new_zeros(x.shape[0], w - 1, x.shape[2]) if initial_state is None else initial_state
    history = torch.cat([past.to(x.dtype), x], 1) if w > 1 else x  # b w-1+t d
    with no_autocast(x):
        taps = weight.to(dtype)
        shift = None if bias is None else bias.to(dtype)
        if chosen == "causal_conv1d":
            y = kernels.short_conv(x.to(dtype), taps, shift, past.to(dtype))
        elif chosen == "naive":
            y, _ = naive.short_conv(x.to(dtype), taps, shift, past.to(dtype))
        else:
            y = _ShortConv.apply(history.to(dtype), taps, shift)
    return y.to(x.dtype), history[:, t:] if return_state else None


def _unsupported(x: Tensor, w: int) -> str:
    """Name what the CUDA kernel cannot do in this call ("" when it can do it)."""
    if not 2 <= w <= 4:
        return f"width {w}"
    if x.shape[2] % 8:
        return "a number of channels that 8 does not divide"
    return "float64" if x.dtype == torch.float64 else ""


class _ShortConv(torch.autograd.Function):
    """One fused pass per tap; autograd would pad and add up a gradient of full size for each."""

    @staticmethod
    def forward(ctx: Any, history: Tensor, taps: Tensor, shift: Tensor | None) -> Tensor:
        rows = taps.t().contiguous()  # w d
        t = history.shape[1] + 1 - len(rows)
        y = history[:, :t] * rows[0]
        if shift is not None:
            y += shift
        for j in range(1, len(rows)):
            y.addcmul_(history[:, j : j + t], rows[j])
        ctx.save_for_backward(history, rows)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (dy,) = grads
        history, rows = ctx.saved_tensors
        t = dy.shape[1]
        dhistory, drows = torch.zeros_like(history), torch.empty_like(rows)
        for j, row in enumerate(rows):
            dhistory[:, j : j + t].addcmul_(dy, row)
            drows[j] = (dy * history[:, j : j + t]).sum((0, 1))
        return dhistory, drows.t(), dy.sum((0, 1)) if ctx.needs_input_grad[2] else None


def long_conv(
    x: Tensor,
    filters: Tensor,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    chunk_size: int = 256,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Sum y[t] = Σ_{s≤t} filters[:, t−s] x[s] over everything seen.

    Args:
        x: (b, t, d).
        filters: (d, l), the weight of the newest input first; zero beyond l.
        initial_state: all inputs before x, (b, s, d).
        return_state: whether to return all inputs so far.
        chunk_size: inputs that the form "fft" convolves directly.
        backend: "auto" (direct for short sequences and few outputs), "direct", "fft" or "naive".

    Returns:
        y (b, t, d) in the dtype of `x`, and all inputs so far (b, s+t, d) in the dtype of `x`
        (None unless asked for).

    Raises:
        UserError: the backend is unknown, or the chunk is empty.
    """
    check_chunk("long_conv", chunk_size)
    history = x if initial_state is None else torch.cat([initial_state.to(x.dtype), x], 1)
    t, s = x.shape[1], history.shape[1]
    forms = ("direct", "fft") if s * t <= DIRECT_LIMIT**2 else ("fft", "direct")
    chosen = dispatch.choose("long_conv", backend, x.device, ours=forms)
    dtype = working_dtype(x, filters)
    with no_autocast(x):
        taps = filters[:, :s].to(dtype)
        full = history.to(dtype)
        if chosen == "naive":
            y, _ = naive.long_conv(full[:, s - t :], taps, full[:, : s - t])
        elif chosen == "direct":
            y = _direct(full, F.pad(taps, (0, s - taps.shape[1])), t)
        else:
            y = _fft(full, taps, chunk_size)[:, s - t :]
    return y.to(x.dtype), history if return_state else None


def _direct(history: Tensor, filters: Tensor, t: int) -> Tensor:
    """Return the last t outputs (b, t, d): for every lag in blocks, one product for all blocks."""
    b, s, d = history.shape
    size = min(s, _BLOCK)
    blocks, wanted = math.ceil(s / size), math.ceil(t / size)
    # Blocks are counted from the end; within a block the newest input comes first.
    x = F.pad(history, (0, 0, blocks * size - s, 0)).view(b, blocks, size, d)
    x = x.flip(2).permute(3, 2, 1, 0).reshape(d, size, blocks * b)
    lags = F.pad(filters, (size - 1, blocks * size - s))  # d, lag −(size − 1) first
    y = _BlockToeplitz.apply(x, lags, wanted, b)
    y = y.view(d, size, wanted, b).permute(3, 2, 1, 0).reshape(b, wanted * size, d)
    return y[:, wanted * size - t :]


class _BlockToeplitz(torch.autograd.Function):
    """y[i] = Σ_m W[m] x[i − m] over blocks; W[m][p, q] = lags[m · size + p + q]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lags: Tensor, wanted: int, b: int) -> Tensor:
        ctx.save_for_backward(x, lags)
        ctx.wanted, ctx.b = wanted, b
        y = x.new_zeros(*x.shape[:2], wanted * b)
        for span, inputs, outputs in _block_lags(x.shape[1], x.shape[2] // b, wanted, b):
            weights = lags[:, span].unfold(1, x.shape[1], 1)  # d l l
            y[..., outputs].baddbmm_(weights, x[..., inputs])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (dy,) = grads
        x, lags = ctx.saved_tensors
        d, size, width = x.shape
        dx, dlags = torch.zeros_like(x), torch.zeros_like(lags)
        for span, inputs, outputs in _block_lags(size, width // ctx.b, ctx.wanted, ctx.b):
            weights = lags[:, span].unfold(1, size, 1)
            dx[..., inputs].baddbmm_(weights.transpose(1, 2), dy[..., outputs])
            dweights = torch.bmm(dy[..., outputs], x[..., inputs].transpose(1, 2))  # d l l
            # Shift row p by p, so that entries of equal p + q come to stand in one column.
            skewed = F.pad(dweights, (0, size)).view(d, -1)[:, :-size]
            dlags[:, span] += skewed.view(d, size, 2 * size - 1).sum(1)
        return dx, dlags, None, None


def _block_lags(
    size: int, blocks: int, wanted: int, b: int
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield, per lag in blocks: its weights' span in `lags`, the input and the output columns."""
    for lag in range(blocks):
        count = min(wanted, blocks - lag)
        inputs = slice((blocks - lag - count) * b, (blocks - lag) * b)
        yield slice(lag * size, (lag + 2) * size - 1), inputs, slice((wanted - count) * b, None)


def _fft(history: Tensor, filters: Tensor, chunk: int) -> Tensor:
    """Return all outputs (b, s, d): directly within chunks, by multiplied spectra between them.

    Spans double from `chunk` on; each span of odd number receives from the span before it. So every
    pair of an input and a later output is met once.
    """
    s, d = history.shape[1:]
    chunk = min(chunk, s)
    x = F.pad(history, (0, 0, 0, -s % chunk))
    taps = F.pad(filters, (0, max(chunk - filters.shape[1], 0)))[:, :chunk]
    y = _direct(x.reshape(-1, chunk, d), taps, chunk).reshape(x.shape)[:, :s]  # b s d
    x = history.transpose(1, 2)  # b d s
    span = chunk
    while span < s:
        pairs = math.ceil((s - span) / (2 * span))
        # Padded at the end to whole pairs; what the last receiving span lacks is cut off below.
        sent = F.pad(x, (0, max(2 * span * pairs - s, 0)))[..., : 2 * span * pairs]
        sent = sent.unflatten(-1, (pairs, 2 * span))[..., :span]  # b d p l
        # Twice the span: what wraps around falls upon the outputs that are thrown away.
        weights = torch.fft.rfft(filters[:, : 2 * span], n=2 * span)[:, None]  # d 1 f
        received = torch.fft.irfft(torch.fft.rfft(sent, n=2 * span) * weights, n=2 * span)
        received = F.pad(received[..., span:], (span, 0)).flatten(2)[..., :s]  # b d 2·l·p
        y = y + F.pad(received, (0, s - received.shape[-1])).transpose(1, 2)
        span *= 2
    return y
