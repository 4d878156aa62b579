"""Small MixerLMs whose outputs depend visibly on every input, for tests of the model's behaviour.

A freshly initialised model is nearly constant: an error in a mixer would hide below the tolerance.
"""

from typing import Any

import torch
from torch import nn

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

VOCAB = 26
EVERY_PRESET = (
    "attention", "linear_attention", "based", "based_long", "base_conv", "hyena", "h3", "mamba",
    "mamba_noconv", "mamba2", "delta_net", "delta_net_noconv", "gated_delta_net", "mamba,attention",
)  # fmt: skip


def lively(name: str, *, width: int = 16, layers: int = 2, **options: Any) -> MixerLMForCausalLM:
    """Return a seeded model in evaluation mode with unit embeddings and PyTorch's Linears."""
    torch.manual_seed(0)
    options = {"init": "pytorch", **options}
    config = MixerLMConfig.preset(name, width=width, layers=layers, vocab_size=VOCAB, **options)
    model = MixerLMForCausalLM(config).eval()
    nn.init.normal_(model.backbone.embed.weight)
    if model.backbone.pos_embed is not None:
        nn.init.normal_(model.backbone.pos_embed.weight)
    return model


def tokens(batch: int = 2, time: int = 12, seed: int = 1) -> torch.Tensor:
    """Return random token ids (batch, time)."""
    return torch.randint(VOCAB, (batch, time), generator=torch.Generator().manual_seed(seed))


def labels_at(ids: torch.Tensor, places: list[tuple[int, int]]) -> torch.Tensor:
    """Return labels (batch, time) that are set only where `places` says (row, column)."""
    labels = torch.full_like(ids, -100)
    for row, column in places:
        labels[row, column] = ids[row, column]
    return labels
