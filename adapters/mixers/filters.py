"""Implicit filters: a small network maps a lag to the weights of a long convolution.

As in Hyena (Poli et al., arXiv 2302.10866): a position is embedded as itself and a few sine and
cosine waves, goes through an MLP with sine activations, and the result is damped by an exponential
of a rate that differs by channel.

Use:

    taps = ImplicitFilter(64, 1024, FilterOptions())(36)       # (64, 36), newest input first

Glossary: l lag, c channels, n width of the MLP, e embedding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init

from patchbench.adapters.mixers.base import MixerOptions
from patchbench.common import UserError

# A channel's weights fall to 1 % of their size after these fractions of the longest lag.
_FASTEST, _SLOWEST = 0.3, 1.5


@dataclass(frozen=True, kw_only=True)
class FilterOptions(MixerOptions):
    """Settings of an implicit filter.

    Args:
        filter_width: width of the MLP (n).
        filter_embedding: size of a lag's embedding (e): itself, then pairs of cosine and sine; odd.
        sine_frequency: initial frequency of the sine activations, which is trained.
    """

    filter_width: int = 64
    filter_embedding: int = 3
    sine_frequency: float = 1.0

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.filter_width < 1:
            raise UserError(f"filter_width is {self.filter_width}", "give at least 1")
        if self.filter_embedding < 3 or self.filter_embedding % 2 == 0:
            raise UserError(f"filter_embedding is {self.filter_embedding}", "give 3, 5, 7, …")


class ImplicitFilter(nn.Module):
    """Weights of a long convolution as a function of the lag.

    Args:
        channels: how many filters (c).
        max_length: the number of lags that fills the embedding's range.
        options: sizes of the network.
    """

    def __init__(self, channels: int, max_length: int, options: FilterOptions) -> None:
        super().__init__()
        n, e = options.filter_width, options.filter_embedding
        self.channels, self.max_length, self.options = channels, max_length, options
        self.inner = nn.ModuleList([nn.Linear(e, n), nn.Linear(n, n), nn.Linear(n, n)])
        self.outer = nn.Linear(n, channels, bias=False)
        self.frequency = nn.Parameter(torch.empty(n))

    def init_weights(self) -> None:
        """Set the frequencies; the Linears follow the model's rule."""
        init.constant_(self.frequency, self.options.sine_frequency)

    def forward(self, length: int) -> Tensor:
        """Return the weights of the lags 0 … `length` − 1, (c, l)."""
        device, dtype = self.frequency.device, self.frequency.dtype
        lag = torch.arange(length, device=device, dtype=torch.float32)[:, None]  # l 1
        bands = (self.options.filter_embedding - 1) // 2
        wave = torch.linspace(1e-4, max(bands - 1, 1e-4), bands, device=device)
        angle = 2 * math.pi * lag / self.max_length * wave  # l bands
        place = lag / max(self.max_length - 1, 1)  # l 1, from 0 to 1
        x = torch.cat([place, angle.cos(), -angle.sin()], -1).to(dtype)  # l e
        for linear in self.inner:
            x = torch.sin(self.frequency * linear(x))  # l n
        rate = torch.linspace(
            math.log(100) / _SLOWEST, math.log(100) / _FASTEST, self.channels, device=device
        )
        return (self.outer(x) * torch.exp(-place * rate)).transpose(0, 1)  # c l
