"""Causal linear attention: similarity of features instead of a softmax, so a state of fixed size.

With features φ, y[t] = φ(q[t]) Σ_{s≤t} φ(k[s]) v[s]ᵀ, divided by φ(q[t]) Σ_{s≤t} φ(k[s]) where
normalised. The feature maps:

- "taylor" (Based, Arora et al., arXiv 2402.18668): φ(q)·φ(k) = 1 + s + s²/2 with
  s = q·k / √feature_dim, the exponential to second order; 1 + d + d² features;
- "elu" (Katharopoulos et al., arXiv 2006.16236): φ(x) = elu(x) + 1;
- "identity": φ(q)·φ(k) = s; not normalised, as it may be negative.

A whole sequence is computed from the (time, time) weights, a continuation also from the state.

Use:

    MixerLMConfig.preset("based", width=64, layers=2, vocab_size=26, feature_dim=16)

Hook points: `q`, `k`, `v` (projected, before the feature map), `attn_weights` (batch, time, heads
× positions of this call; normalised), `ssm_write` and `ssm_state` (φ(k) [v, 1]ᵀ and its running
sum, (batch, time, heads · features · (head width + 1)); the last column is the normaliser),
`head_output` (before the output projection).

Glossary: b batch, t time, h heads, d feature_dim, f features, e head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.base import Mixer, MixerOptions, MixerState, check_heads
from patchbench.adapters.mixers.stepwise import stepwise
from patchbench.adapters.ops.precision import no_autocast, working_dtype
from patchbench.common import UserError, near_names

if TYPE_CHECKING:
    from patchbench.adapters.config import MixerLMConfig

FEATURE_MAPS = ("taylor", "identity", "elu")
_EPSILON = 1e-12


@dataclass(frozen=True, kw_only=True)
class LinearAttentionOptions(MixerOptions):
    """Settings of `LinearAttention`.

    Args:
        num_heads: heads (h); divides the width.
        feature_dim: width of a query and a key (d), per head.
        feature_map: "taylor", "identity" or "elu".
        normalize: whether weights sum to 1; True when None, but for "identity".
    """

    num_heads: int = 1
    feature_dim: int = 8
    feature_map: str = "taylor"
    normalize: bool | None = None

    def __post_init__(self) -> None:
        """Check the numbers and the name."""
        if self.feature_dim < 1:
            raise UserError(
                f"linear_attention: feature_dim is {self.feature_dim}", "give at least 1"
            )
        if self.feature_map not in FEATURE_MAPS:
            raise UserError(
                f"linear_attention: unknown feature_map {self.feature_map!r}",
                near_names(self.feature_map, FEATURE_MAPS),
            )

    def check(self, config: MixerLMConfig) -> None:
        """Check that the heads fit the width."""
        check_heads("linear_attention", config.hidden_size, self.num_heads)


class LinearAttention(Mixer):
    """Linear attention; see the module's docstring and `Mixer`."""

    Options = LinearAttentionOptions

    def __init__(self, config: MixerLMConfig, layer: int) -> None:
        super().__init__(config, layer)
        options = config.options_for(layer)
        assert isinstance(options, LinearAttentionOptions)
        width = config.hidden_size
        self.num_heads, self.feature_dim = options.num_heads, options.feature_dim
        self.head_dim = width // self.num_heads
        self.feature_map = options.feature_map
        self.normalize = options.normalize
        if self.normalize is None:
            self.normalize = self.feature_map != "identity"
        self.q_proj = nn.Linear(width, self.num_heads * self.feature_dim, bias=False)
        self.k_proj = nn.Linear(width, self.num_heads * self.feature_dim, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.hook_points = HookPoints(
            "q", "k", "v", "attn_weights", "ssm_write", "ssm_state", "head_output"
        )

    @property
    def num_features(self) -> int:
        """How many features the map makes of `feature_dim` (f)."""
        d = self.feature_dim
        return 1 + d + d * d if self.feature_map == "taylor" else d

    def forward(
        self, x: Tensor, state: MixerState | None = None, *, return_state: bool = False
    ) -> tuple[Tensor, MixerState | None]:
        """See `Mixer.forward`; the state is {"ssm_state": (b, h, f, e + 1)} in fp32."""
        b, t, _ = x.shape
        q = self._heads(self.hook_points["q"](self.q_proj(x)))  # b h t d
        k = self._heads(self.hook_points["k"](self.k_proj(x)))  # b h t d
        v = self._heads(self.hook_points["v"](self.v_proj(x)))  # b h t e
        dtype = working_dtype(q)
        with no_autocast(x):
            y, new_state = self._attend(q.to(dtype), k.to(dtype), v.to(dtype), state, return_state)
        y = y.transpose(1, 2).reshape(b, t, -1).to(x.dtype)
        return self.out_proj(self.hook_points["head_output"](y)), new_state

    def heads(self, component: str) -> int | None:
        """Return the number of heads: everything here is laid out head by head."""
        return self.num_heads

    def initial_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> MixerState:
        """Return empty sums."""
        shape = (batch, self.num_heads, self.num_features, self.head_dim + 1)
        dtype = torch.promote_types(dtype, torch.float32)
        return {"ssm_state": torch.zeros(shape, device=device, dtype=dtype)}

    def _heads(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, -1).transpose(1, 2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, state: MixerState | None, return_state: bool
    ) -> tuple[Tensor, MixerState | None]:
        b, h, t, _ = q.shape
        past = None if state is None else state["ssm_state"].to(v.dtype)  # b h f e+1
        watched = self.hook_points["ssm_write"].active or self.hook_points["ssm_state"].active
        weights = self._similarity(q, k).tril()  # b h t t
        total = weights.sum(-1, keepdim=True)  # b h t 1
        v1 = F.pad(v, (0, 1), value=1.0)  # b h t e+1
        read = states = None
        if watched:
            at, states = self._states(k, v1, past)  # b t h f e+1
            read = torch.einsum("bhtf,bthfe->bhte", self._features(q), at)
            total = read[..., -1:]
        elif past is not None:
            read = self._features(q) @ past  # b h t e+1
            total = total + read[..., -1:]
        scale = 1 / (total + _EPSILON) if self.normalize else torch.ones_like(total)
        weights = weights * scale
        hook = self.hook_points["attn_weights"]
        seen = weights
        if hook.active:
            flat = weights.transpose(1, 2).reshape(b, t, h * t)
            seen = hook(flat).view(b, t, h, t).transpose(1, 2)
        if watched and read is not None:
            # The states already hold this call's tokens: of the weights only a change counts.
            y = read[..., :-1] * scale + ((seen - weights) @ v if hook.active else 0)
        else:
            y = seen @ v if read is None else torch.addcmul(seen @ v, read[..., :-1], scale)
        if not return_state:
            return y, None
        if states is not None:
            return y, {"ssm_state": states[:, -1]}
        new = self._features(k).transpose(2, 3) @ v1  # b h f e+1
        return y, {"ssm_state": new if past is None else past + new}

    def _states(self, k: Tensor, v1: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sums that each position reads, and leaves to the next (b, t, h, f, e + 1)."""
        features = self._features(k)
        b, h, t, f = features.shape
        start = v1.new_zeros(b, h, f, v1.shape[-1]) if past is None else past
        return stepwise(
            lambda step, state: state,
            lambda step, state: features[:, :, step, :, None] * v1[:, :, step, None, :],
            start,
            t,
            state_hook=self.hook_points["ssm_state"],
            write_hook=self.hook_points["ssm_write"],
        )

    def _similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """Return φ(q[t])·φ(k[s]) for all t and s (b, h, t, t), without making the features."""
        if self.feature_map == "elu":
            return (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(2, 3)
        s = q @ k.transpose(2, 3) / math.sqrt(self.feature_dim)
        return s if self.feature_map == "identity" else 1 + s + 0.5 * s * s

    def _features(self, x: Tensor) -> Tensor:
        """Return φ(x), (b, h, t, f), with the scale of the similarity shared by both sides."""
        if self.feature_map == "elu":
            return F.elu(x) + 1
        x = x * self.feature_dim**-0.25
        if self.feature_map == "identity":
            return x
        pairs = (x[..., :, None] * x[..., None, :]).flatten(-2) / math.sqrt(2)  # b h t d·d
        return torch.cat([torch.ones_like(x[..., :1]), x, pairs], -1)
