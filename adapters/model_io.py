"""What goes into a MixerLM's forward pass and what comes out of it.

Use:

    out = model(input_ids, labels=labels)      # MixerLMCausalOutput
    out.loss, out.logits, out.cache
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.utils.generic import ModelOutput

from patchbench.adapters.cache import MixerLMCache
from patchbench.adapters.settings import fits
from patchbench.common import UserError, near_names

# What callers in transformers may pass and what changes nothing here.
_HARMLESS = {"num_items_in_batch"}
_INSTEAD = {
    "position_ids": "leave it out: positions count from the first token",
    "cache_position": "leave it out: positions count from the first token",
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


def check_arguments(
    given: dict[str, Any], use_cache: object, inputs_embeds: object, embedding: Tensor
) -> None:
    """Refuse arguments that would be without effect, such as another library's name for ours.

    Args:
        given: keywords that `MixerLMModel.forward` does not name.
        use_cache: as given.
        inputs_embeds: as given, (b, t, d) or None.
        embedding: the weight, (v, d), of the embedding in whose place they stand.

    Raises:
        UserError: an unknown keyword, or a value of another type or width.
    """
    if use_cache is not None and not isinstance(use_cache, bool):
        raise UserError(f"use_cache is {use_cache!r}", "give true or false, or leave it out")
    if inputs_embeds is not None:
        _check_embeddings(inputs_embeds, embedding)
    for key, value in given.items():
        if key in _HARMLESS or value is None or value is False:
            continue
        remedy = _INSTEAD.get(key) or near_names(key, _ARGUMENTS)
        raise UserError(f"MixerLM takes no argument {key!r}", remedy)


def _check_embeddings(x: object, like: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"inputs_embeds are {given}", "give a tensor of floating point numbers")
    if x.ndim == 3 and x.shape[-1] != like.shape[1]:
        raise UserError(
            f"inputs_embeds have {x.shape[-1]} features",
            f"the model has a width of {like.shape[1]}",
        )
    if x.dtype != like.dtype and not torch.is_autocast_enabled(x.device.type):
        raise UserError(f"inputs_embeds are {x.dtype}", f"the model is {like.dtype}")


@torch.compiler.disable
def _check_items(items: object) -> None:
    number = items.item() if isinstance(items, Tensor) and items.numel() == 1 else items
    if not fits(number, float) or not number > 0:  # pyright: ignore[reportOperatorIssue]
        raise UserError(f"num_items_in_batch is {items!r}", "give the number of labels, at least 1")


def loss_items(given: dict[str, Any]) -> dict[str, Any]:
    """Return the `num_items_in_batch` among keywords, by which a loss is divided, if there is one.

    Raises:
        UserError: it is no number above 0.
    """
    items = given.get("num_items_in_batch")
    if items is None:
        return {}
    # The decorator that keeps the compiler out is typed as taking one argument.
    check: Any = _check_items
    check(items)
    return {"num_items_in_batch": items}


@torch.compiler.disable
def has_padding(mask: Tensor) -> bool:
    """Return whether there is padding after real tokens, where it is harmless to them.

    Raises:
        UserError: padding before real tokens, which would enter their states, or no mask of
            zeros and ones.
    """
    if not isinstance(mask, Tensor) or bool(((mask != 0) & (mask != 1)).any()):
        raise UserError("the attention_mask is no tensor of 0 and 1", "1 at tokens, 0 at padding")
    if mask.ndim != 2 or bool((mask[:, 1:] > mask[:, :-1]).any() or (mask[:, :1] == 0).any()):
        raise UserError(
            "the attention_mask has padding before real tokens",
            "pad on the right, or batch sequences of equal length",
        )
    return bool((mask == 0).any())


def check_mask(mask: Tensor, *, rows: int, time: int, past: int) -> None:
    """Raise `UserError` unless a mask has an entry for each token given, or for each one so far."""
    if tuple(mask.shape) not in ((rows, time), (rows, past + time)):
        raise UserError(
            f"the attention_mask has shape {tuple(mask.shape)}, the tokens ({rows}, {time})",
            "give one entry per token",
        )


def kept(hidden: Tensor, keep: int | Tensor) -> Tensor:
    """Return the positions of `hidden` (b, t, d) that `logits_to_keep` asks for.

    Raises:
        UserError: it is none of what `MixerLMForCausalLM.forward` takes, or beyond the tokens.
    """
    rows, time = hidden.shape[:2]
    if isinstance(keep, int) and not isinstance(keep, bool) and keep >= 0:
        return hidden[:, -keep:] if keep else hidden
    if isinstance(keep, Tensor):
        if keep.dtype == torch.bool and keep.shape == (rows, time):
            return hidden[keep]
        whole = not keep.is_floating_point() and keep.dtype != torch.bool and not keep.is_complex()
        if whole and (keep.ndim == 1 or (keep.ndim == 2 and len(keep) == rows)):
            # The decorator that keeps the compiler out is typed as taking one argument.
            check: Any = _check_range
            check(keep, time)
            return hidden[:, keep] if keep.ndim == 1 else hidden.take_along_dim(keep[..., None], 1)
    given = f"{keep.dtype} {tuple(keep.shape)}" if isinstance(keep, Tensor) else repr(keep)
    raise UserError(
        f"logits_to_keep is {given}, for tokens of shape ({rows}, {time})",
        "a number of last positions, positions (i,) or (b, i), or a boolean mask (b, t)",
    )


@torch.compiler.disable
def _check_range(keep: Tensor, time: int) -> None:
    if keep.numel() and not (-time <= int(keep.min()) and int(keep.max()) < time):
        raise UserError(
            f"logits_to_keep names positions {int(keep.min())} to {int(keep.max())}, and there are "
            f"{time} tokens",
            f"give 0 to {time - 1}",
        )


@torch.compiler.disable
def labelled(hidden: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the hidden states that predict a label, (n, d), and the labels, (n,), below `size`.

    Not compiled: the number of labels is data, and compiled code would be rebuilt for each.

    Raises:
        UserError: a label that is no token of the vocabulary.
    """
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)  # b t
    where = targets != -100
    chosen = targets[where]
    if chosen.is_floating_point() or bool(((chosen < 0) | (chosen >= size)).any()):
        raise UserError(
            f"labels from {chosen.min().item()} to {chosen.max().item()}, {chosen.dtype}, but the "
            f"vocabulary has {size}",
            f"give whole numbers from 0 to {size - 1}, and -100 where there is no label",
        )
    return hidden[where], chosen
