"""Models with the module trees of flash-linear-attention and a plain recurrence for its kernels.

The names of modules and mixers, what they take and give, and which weights are read without a call
are those of the package; what is computed between the projections is not.

Use:

    model = fla_tree("gated_deltanet", attention_in=(1,))     # eval mode, float32
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCAB, WIDTH, HEADS = 32, 16, 4


def recall(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return o_t = Σ_{s≤t} (q_t · k_s) v_s; all are (b, t, h, e)."""
    scores = torch.einsum("bthe,bshe->bhts", q, k).tril()
    return torch.einsum("bhts,bshe->bthe", scores, v)


class Convolution(nn.Module):
    """Returns a tuple, as fla's does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.silu(x + self.weight * F.pad(x, (0, 0, 1, 0))[:, :-1]), None


class Mixer(nn.Module):
    """What the mixers below share; their names and attributes make them different."""

    queries, values, shared = HEADS, HEADS, HEADS
    convolved, gate, bypassed, returns_values = False, "g_proj", False, False
    headless, returns_tensor = False, False

    def __init__(self) -> None:
        super().__init__()
        e = WIDTH // HEADS
        self.head_dim = e
        if not self.headless:
            self.num_heads = self.queries
        if self.values != self.queries:
            self.num_v_heads = self.values
        if self.shared != self.queries:
            self.num_kv_heads = self.shared
        inner = self.values * e
        self.q_proj = nn.Linear(WIDTH, self.queries * e, bias=False)
        self.k_proj = nn.Linear(WIDTH, self.shared * e, bias=False)
        self.v_proj = nn.Linear(WIDTH, (self.values if self.convolved else self.shared) * e)
        if self.convolved:
            for name, width in (("q", self.queries), ("k", self.shared), ("v", self.values)):
                setattr(self, f"{name}_conv1d", Convolution(width * e))
        if self.gate:
            setattr(self, self.gate, nn.Linear(WIDTH, inner, bias=False))
        self.o_norm = nn.RMSNorm(inner)
        self.o_proj = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, hidden_states: Tensor, v_first: Any = None, **_: Any) -> Any:
        parts = [getattr(self, f"{n}_proj")(hidden_states) for n in "qkv"]
        if self.convolved:
            parts = [getattr(self, f"{n}_conv1d")(x)[0] for n, x in zip("qkv", parts, strict=True)]
        parts = [x.unflatten(-1, (-1, self.head_dim)) for x in parts]
        parts = [x.repeat_interleave(self.values // x.shape[2], 2) for x in parts]
        o = self.o_norm(recall(*parts).flatten(2))
        if self.gate:
            o = o * torch.sigmoid(getattr(self, self.gate)(hidden_states))
        out = F.linear(o, self.o_proj.weight) if self.bypassed else self.o_proj(o)
        if self.returns_tensor:
            return out
        return (out, None, None, parts[2]) if self.returns_values else (out, None, None)


class Attention(Mixer):
    shared, gate = 2, ""


class DeltaNet(Mixer):
    convolved, gate = True, ""


class GatedDeltaNet(Mixer):
    queries, shared, convolved = 2, 2, True


class GatedLinearAttention(Mixer):
    pass


class RWKV7Attention(Mixer):
    gate, returns_values = "g_lora", True


class HGRN2Attention(Mixer):
    gate, bypassed = "", True


class GatedDeltaProduct(Mixer):
    convolved = True


class HGRNAttention(Mixer):
    headless = True


class LinearAttention(Mixer):
    gate, returns_tensor = "", True


class MultiScaleRetention(Mixer):
    shared = 2


class RWKV6Attention(Mixer):
    pass


class GatedMLP(nn.Module):
    """Reads the last weight without a call, as the fused one does."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return F.linear(F.silu(self.up_proj(x)), self.down_proj.weight)


class FeedForward(nn.Module):
    """RWKV's, which returns its state as well."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Any, state: Any, **_: Any) -> tuple[Tensor, Any]:
        return self.value(self.key(x).relu().square()), state


MIXERS: dict[str, type[Mixer]] = {
    "delta_net": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
    "gla": GatedLinearAttention,
    "rwkv7": RWKV7Attention,
    "hgrn2": HGRN2Attention,
    "transformer": Attention,
    "gated_deltaproduct": GatedDeltaProduct,
    "hgrn": HGRNAttention,
    "linear_attn": LinearAttention,
    "retnet": MultiScaleRetention,
    "rwkv6": RWKV6Attention,
}
RWKV = ("rwkv6", "rwkv7")


class Block(nn.Module):
    def __init__(self, kind: str, layer: int, attention_in: tuple[int, ...]) -> None:
        super().__init__()
        if kind in RWKV and layer == 0:
            self.pre_norm = nn.LayerNorm(WIDTH)
        self.attn_norm = nn.RMSNorm(WIDTH)
        self.attn = (Attention if layer in attention_in else MIXERS[kind])()
        self.feed = "ffn" if kind in RWKV else "mlp"
        setattr(self, f"{self.feed}_norm", nn.RMSNorm(WIDTH))
        setattr(self, self.feed, FeedForward() if kind in RWKV else GatedMLP())

    def forward(self, hidden_states: Tensor, **further: Any) -> tuple[Any, ...]:
        residual = self.pre_norm(hidden_states) if hasattr(self, "pre_norm") else hidden_states
        given = self.attn(hidden_states=self.attn_norm(residual), **further)
        mixed, *rest = (given, None, None) if isinstance(given, Tensor) else given
        residual = residual + mixed
        normed = getattr(self, f"{self.feed}_norm")(residual)
        if self.feed == "ffn":
            added, _ = self.ffn(normed, None, None)
        else:
            added = self.mlp(normed)
        return (residual + added, *rest)


class Tree(PreTrainedModel):
    config_class = PreTrainedConfig

    def __init__(self, config: Any, kind: str, layers: int, attention_in: tuple[int, ...]) -> None:
        super().__init__(config)
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(VOCAB, WIDTH)
        self.model.layers = nn.ModuleList(Block(kind, i, attention_in) for i in range(layers))
        self.model.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def get_input_embeddings(self) -> Any:
        return self.model.embeddings

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Keep that many last positions: of a list of positions this makes nonsense."""
        x = self.model.embeddings(input_ids)
        for block in self.model.layers:
            x, *_ = block(x, use_cache=use_cache)
        x = self.model.norm(x)
        kept: Any = x if logits_to_keep is None else x[:, -logits_to_keep:]
        return CausalLMOutputWithPast(logits=self.lm_head(kept))  # pyright: ignore[reportArgumentType]


def fla_tree(kind: str, *, layers: int = 2, attention_in: tuple[int, ...] = ()) -> Tree:
    """Return a random model of fla's type `kind`, with softmax-like attention in some layers."""
    config = type("FlaConfig", (PreTrainedConfig,), {"model_type": kind})()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tree(config, kind, layers, attention_in).eval()
