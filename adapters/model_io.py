"""What goes into a MixerLM's forward pass and what comes out of it.

Use:

    out = model(input_ids, labels=labels)      # MixerLMCausalOutput
    out.loss, out.logits, out.cache
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from patchbench.adapters.cache import MixerLMCache
from patchbench.common import UserError, near_names

# What callers in transformers may pass and what changes nothing here.
_HARMLESS = {"num_items_in_batch", "cache_position"}
_INSTEAD = {
    "position_ids": "leave it out: positions count from the first token",
    "past_key_values": "pass cache=",
    "output_attentions": "hook the component attn_weights instead",
}
_ARGUMENTS = (
    "input_ids", "attention_mask", "inputs_embeds", "labels", "cache", "use_cache",
    "output_hidden_states", "return_dict", "logits_to_keep",
)  # fmt: skip


@dataclass
class MixerLMOutput(ModelOutput):
    """What `MixerLMModel` returns.

    Args:
        last_hidden_state: after the final norm, (b, t, d).
        cache: the states after the last token, when asked for.
        hidden_states: the embedding, then every block's output but the last, then
            `last_hidden_state`, when asked for; each (b, t, d).
    """

    last_hidden_state: Tensor | None = None
    cache: MixerLMCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class MixerLMCausalOutput(ModelOutput):
    """What `MixerLMForCausalLM` returns.

    Args:
        loss: mean negative log-likelihood (natural log) over the labelled positions.
        logits: at the positions that the call asked for; see `MixerLMForCausalLM.forward`.
        cache: as in `MixerLMOutput`.
        hidden_states: as in `MixerLMOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: MixerLMCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None


def check_keywords(given: dict[str, Any]) -> None:
    """Refuse arguments that would be without effect, such as another library's name for ours."""
    for key, value in given.items():
        if key in _HARMLESS or value is None or value is False:
            continue
        remedy = _INSTEAD.get(key) or near_names(key, _ARGUMENTS)
        raise UserError(f"MixerLM takes no argument {key!r}", remedy)


@torch.compiler.disable
def has_padding(mask: Tensor) -> bool:
    """Return whether there is padding after real tokens, where it is harmless to them.

    Raises:
        UserError: padding before real tokens, which would enter their states.
    """
    if mask.ndim != 2 or bool((mask[:, 1:] > mask[:, :-1]).any() or (mask[:, :1] == 0).any()):
        raise UserError(
            "the attention_mask has padding before real tokens",
            "pad on the right, or batch sequences of equal length",
        )
    return bool((mask == 0).any())
