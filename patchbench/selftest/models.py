"""Models with closed-form weights, whose mechanism is known because it was put there.

| name       | layers that work                               | what it does                |
|------------|------------------------------------------------|-----------------------------|
| induction  | attention to the token before; attention by it | stores the key at the value |
| direct     | h3: k vᵀ summed, k shifted by one              | fetches at the query        |
| conv_bound | mamba: convolution, then a linear memory       | binds at value + 1          |
| no_context | none                                           | guesses from the last token |
| dial       | direct and induction in one model              | a convex mix at the logits  |

Every token, position and intermediate result is a unit vector of its own. Together they are an
orthonormal set turned by a random rotation, so a seed gives other weights and the same function;
an RMSNorm only scales them. Layers that do nothing can be put before, between and behind.

Use:

    model = build("induction", vocab_size=19, length=11, width=80, seed=0, idle=(1, 0, 2))

Glossary: v vocabulary, l length, w width, f features (rows of the rotation), e head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.common import UserError, near_names

# What a match scores before the softmax: what does not match keeps e^-40 of the weight.
SHARP = 40.0
# Logit of a fetched answer; with fewer, p(answer) is not saturated.
CONFIDENT, UNSURE = 20.0, 8.0
# Inputs of a SiLU that it passes on nearly as they are.
OPEN = 10.0
# So little decay that a memory of a thousand tokens keeps all but a thousandth.
DECAY = 1e-6

_IDLE = {"name": "attention"}


@dataclass(kw_only=True)
class _Plan:
    """A model in the making.

    Attributes:
        layers: mixers as `MixerLMConfig` takes them.
        features: names of the subspaces and their sizes.
        positions: whether tokens know where they are.
    """

    features: dict[str, int]
    positions: bool = False
    layers: list[Any] = field(default_factory=list)


def _plan(name: str, v: int, length: int) -> _Plan:
    shift = {"name": "h3", "d_conv": 2, "d_state": 2}
    token = {"token": v}
    if name == "induction":
        features = token | {"position": length, "previous": v, "found": v}
        return _Plan(features=features, positions=True, layers=["attention", "attention"])
    if name == "direct":
        return _Plan(features=token | {"fetched": v}, layers=[shift])
    if name == "conv_bound":
        mamba = {"name": "mamba", "d_conv": 3, "d_state": v, "expand": 2}
        return _Plan(features=token | {"fetched": v}, layers=[mamba])
    if name == "no_context":
        return _Plan(features=token, layers=["attention"])
    if name == "dial":
        features = token | {"position": length, "previous": v, "found": v, "fetched": v}
        return _Plan(features=features, positions=True, layers=[shift, "attention", "attention"])
    raise UserError(f"unknown hand-built model {name!r}", near_names(name, NAMES))


NAMES = ("induction", "direct", "conv_bound", "no_context", "dial")


def least_width(name: str, *, vocab_size: int, length: int) -> int:
    """Return the smallest width in which the model has room."""
    return sum(_plan(name, vocab_size, length).features.values())


def build(
    name: str,
    *,
    vocab_size: int,
    length: int,
    width: int | None = None,
    seed: int = 0,
    idle: Sequence[int] = (),
    dial: float = 0.0,
) -> MixerLMForCausalLM:
    """Return a model with set weights, in evaluation mode.

    Args:
        name: see the module.
        vocab_size: tokens.
        length: most tokens of a document.
        width: of the residual stream; the least one when None.
        seed: of the rotation, and of the guesses of "no_context".
        idle: layers that do nothing, before each working layer and behind the last; none where
            left out.
        dial: share of the direct pathway in the logits of "dial", the rest is induction.

    Raises:
        UserError: unknown name, too small a width, or a dial outside 0 … 1.
    """
    plan = _plan(name, vocab_size, length)
    least = sum(plan.features.values())
    width = least if width is None else width
    if width < least:
        raise UserError(f"width={width} of {name!r}", f"at least {least} is needed")
    if not 0 <= dial <= 1:
        raise UserError(f"dial={dial}", "between 0 and 1")
    if len(idle) > len(plan.layers) + 1:
        raise UserError(f"idle={tuple(idle)} of {name!r}", f"at most {len(plan.layers) + 1} places")
    rest = [*idle, *[0] * (len(plan.layers) + 1 - len(idle))]
    mixers, working = [], []
    for before, layer in zip(rest, [*plan.layers, None], strict=True):
        mixers += [_IDLE] * before
        if layer is not None:
            working.append(len(mixers))
            wide = isinstance(layer, dict) and layer["name"] == "h3"
            mixers.append({**layer, "head_dim": width} if wide else layer)
    config = MixerLMConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        mixers=mixers,
        mlp="none",
        norm="rmsnorm",
        final_norm="rmsnorm",
        positions="learned" if plan.positions else "none",
        max_position_embeddings=length if plan.positions else None,
        tie_word_embeddings=False,
    )
    model = MixerLMForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if isinstance(module, nn.RMSNorm):
                module.weight.fill_(1.0)
        _Weights(model, plan, generator).set(name, working, dial)
    return model


class _Weights:
    """Writes the weights of a model."""

    def __init__(self, model: Any, plan: _Plan, generator: torch.Generator) -> None:
        self.model, self.generator = model, generator
        self.width = model.config.hidden_size
        square = torch.randn(self.width, self.width, generator=generator, dtype=torch.float64)
        rotation = torch.linalg.qr(square)[0].float()  # w w
        sizes = list(plan.features.values())
        parts = rotation[: sum(sizes)].split(sizes)
        self.vectors = dict(zip(plan.features, parts, strict=True))  # name → f w

    def set(self, name: str, working: Sequence[int], dial: float) -> None:
        """Write everything; the parameters are 0 before."""
        backbone = self.model.backbone
        backbone.embed.weight.copy_(self.vectors["token"])
        summands = 1
        if backbone.pos_embed is not None:
            backbone.pos_embed.weight.copy_(self.vectors["position"])
            summands = 2
        mixers = [backbone.layers[index].mixer for index in working]
        if name in ("direct", "dial"):
            self._shifted_memory(mixers[0], summands)
        if name == "conv_bound":
            self._bound_memory(mixers[0], summands)
        if name == "induction":
            self._attend_before(mixers[0], summands)
            self._attend_by_previous(mixers[1], summands + 1)
        if name == "dial":
            # The shifted memory has written a vector at the query, where nothing is matched to it.
            self._attend_before(mixers[1], summands)
            self._attend_by_previous(mixers[2], summands + 1)
        self._head(name, dial)

    def _scale(self, summands: int) -> float:
        """Return what an RMSNorm makes of each of so many orthogonal unit vectors."""
        return (self.width / summands) ** 0.5

    def _head(self, name: str, dial: float) -> None:
        head = self.model.lm_head.weight  # v w
        v = len(head)
        if name == "no_context":
            guesses = torch.randint(v, (v,), generator=self.generator)
            head.copy_(UNSURE / self._scale(1) * nn.functional.one_hot(guesses, v).float().T
                       @ self.vectors["token"])  # fmt: skip
        elif name == "induction":
            head.copy_(CONFIDENT / self._scale(4) * self.vectors["found"])
        elif name == "dial":
            mix = (1 - dial) * self.vectors["found"] + dial * self.vectors["fetched"]
            head.copy_(UNSURE / self._scale(5) * mix)
        else:
            head.copy_(CONFIDENT / self._scale(2) * self.vectors["fetched"])

    def _attention(self, mixer: Any, summands: int, q: Tensor, k: Tensor, to: str) -> None:
        """Match rows of q with rows of k (f w), and copy tokens to the subspace `to`."""
        scale, e = self._scale(summands), mixer.head_dim
        weight = mixer.qkv_proj.weight.view(3, e, self.width)
        weight[0, : len(q)] = q * SHARP * e**0.5 / scale**2
        weight[1, : len(k)] = k
        weight[2, : len(self.vectors["token"])] = self.vectors["token"] / scale
        mixer.out_proj.weight[:, : len(self.vectors[to])] = self.vectors[to].T

    def _attend_before(self, mixer: Any, summands: int) -> None:
        """Position t matches position t − 1."""
        position = self.vectors["position"]
        self._attention(mixer, summands, position[1:], position[:-1], "previous")

    def _attend_by_previous(self, mixer: Any, summands: int) -> None:
        """A token matches where it stood before."""
        self._attention(mixer, summands, self.vectors["token"], self.vectors["previous"], "found")

    def _shifted_memory(self, mixer: Any, summands: int) -> None:
        """Sum k[t − 1] v[t]ᵀ and read with q[t]; all three are the token."""
        token, scale = self.vectors["token"], self._scale(summands)
        for part in mixer.in_proj.weight.view(3, self.width, self.width):
            part[: len(token)] = token / scale
        mixer.shift[:, 1] = 1.0  # newest input first
        mixer.log_A_real.fill_(torch.tensor(DECAY).log())
        mixer.C[..., 0] = 0.5  # its conjugate adds as much
        mixer.out_proj.weight[:, : len(token)] = self.vectors["fetched"].T

    def _bound_memory(self, mixer: Any, summands: int) -> None:
        """Bind the token before (as a value) to the one before that (as a key), in the convolution.

        Channels: what is written (lag 1), the key it is written under (lag 2), the query (lag 0).
        """
        token, scale = self.vectors["token"], self._scale(summands)
        v, d = len(token), mixer.d_inner
        written, under, query = (slice(i * v, (i + 1) * v) for i in range(3))
        into, gate = mixer.in_proj.weight.view(2, d, self.width)
        for channels, lag in ((written, 1), (under, 2), (query, 0)):
            into[channels] = token * OPEN / scale
            mixer.conv1d.weight[channels, 0, -1 - lag] = 1.0
        gate[:] = token.sum(0) * OPEN / scale  # the same for every token
        passed = float(nn.functional.silu(torch.tensor(OPEN)))
        eye = torch.eye(v) / passed
        B, C = mixer.x_proj.weight[mixer.dt_rank :].split(mixer.d_state)
        B[:, under], C[:, query] = eye, eye
        mixer.dt_proj.bias.fill_(torch.tensor(1.0).expm1().log())  # a step of 1
        mixer.A_log.fill_(torch.tensor(DECAY).log())
        mixer.out_proj.weight[:, written] = self.vectors["fetched"].T / passed**2
