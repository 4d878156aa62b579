"""Rows of a vocabulary that stand for no token: many checkpoints pad it to a round number.

Such a row is no answer, yet a softmax over all rows gives it some probability, and the converted
form of a checkpoint (`-hf`) would give other numbers than the original. So they are cut off.

Use:

    notes += cut_padding(model, tokenizer)     # what was cut, in words
    notes += cut_rows(model, 50277)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Padding is at most one row in so many; a tokenizer that lacks more is of another model.
_ONE_IN = 20


def cut_padding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, change: bool = True
) -> list[str]:
    """Cut off the rows of embedding and head that no token of the tokenizer stands for.

    Args:
        model: changed in place.
        tokenizer: the one that it was trained with. Where it lacks more than one row in twenty it
            is taken for another one, and nothing is cut.
        change: False leaves the model as it is, and says so.

    Returns:
        What was done, or left, in words; nothing where there are no such rows.
    """
    known, rows = 1 + max(tokenizer.get_vocab().values(), default=-1), _rows(model)
    slight = (rows - known) * _ONE_IN <= rows
    return cut_rows(model, known, "of the tokenizer", change=change and slight)


def cut_rows(
    model: PreTrainedModel, known: int, whose: str = "", *, change: bool = True
) -> list[str]:
    """Cut off all rows but the first `known`; see `cut_padding`.

    Rows that are not in memory, or of modules that are no plain embedding and Linear, stay.
    """
    rows = _rows(model)
    if known >= rows:
        return []
    some = " ".join(f"rows {known}–{rows - 1} of the vocabulary stand for no token {whose}".split())
    if not (change and _plain(model, rows)):
        return [f"{some}: they take part in the probabilities"]
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    tied = embedding.weight is head.weight
    # In place: transformers' resize_token_embeddings puts a plain embedding in the place of
    # Gemma's, which scales what it gives.
    _keep(embedding, "weight", known)
    embedding.num_embeddings = known
    if (padding := embedding.padding_idx) is not None and padding >= known:
        embedding.padding_idx = None
    if tied:
        head.weight = embedding.weight
    else:
        _keep(head, "weight", known)
    if head.bias is not None:
        _keep(head, "bias", known)
    head.out_features = known
    model.config.get_text_config().vocab_size = known
    return [f"{some} and are cut off"]


def _keep(module: nn.Module, name: str, known: int) -> None:
    old: nn.Parameter = getattr(module, name)
    new = nn.Parameter(old.detach()[:known].clone(), requires_grad=old.requires_grad)
    setattr(module, name, new)


def _rows(model: PreTrainedModel) -> int:
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def _plain(model: PreTrainedModel, rows: int) -> bool:
    """Return whether embedding and head have as many rows, whole and in memory."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return (
        isinstance(embedding, nn.Embedding)
        and isinstance(head, nn.Linear)
        and head.out_features == rows
        and all(m.weight.is_floating_point() for m in (embedding, head))
        and all(m.weight.device.type != "meta" for m in (embedding, head))
    )
