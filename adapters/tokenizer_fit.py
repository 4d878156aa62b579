"""Whether a tokenizer that was named by hand is the model's: another one's makes each number wrong.

Its token ids are all known to the model, and stand for other words there: nothing fails, and the
model only seems not to solve its task.

Use:

    check_same_ids(given, own, "gpt2")           # raises where a checkpoint's own says otherwise
    notes += plain_text_notes(loaded)            # where it brings none: does the model read it?
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from patchbench.adapters.running import scoring, without_cache
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from patchbench.adapters.loading import LoadedModel

# Versions of one tokenizer differ in a few added tokens.
_ALIKE = 0.9
# Share of guessing's loss. SmolLM2-135M has 0.24 with its tokenizer, and 0.99 to 1.28 with others.
_MUCH = 0.75
_TEXT = (
    "The sun rises in the east and sets in the west. After dinner the children went to bed, and "
    "their mother read them a story about a king and his three daughters."
)


def check_same_ids(given: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase, name: str) -> None:
    """Raise `UserError` unless a tokenizer has the ids of the one that the model brings.

    Args:
        given: the tokenizer to be used.
        own: the checkpoint's.
        name: of the checkpoint.
    """
    ids, wanted = given.get_vocab(), own.get_vocab()
    different = [token for token, index in wanted.items() if ids.get(token) != index]
    if len(different) <= (1 - _ALIKE) * len(wanted):
        return
    token = min(different, key=wanted.__getitem__)
    instead = f"it is {ids[token]}" if token in ids else "there is none"
    raise UserError(
        f"the tokenizer is not that of {name}: token {token!r} is {wanted[token]} there, and here "
        f"{instead}",
        "drop --tokenizer, the model brings its own",
    )


def plain_text_notes(loaded: LoadedModel) -> list[str]:
    """Return a warning if a model predicts plain English little better than by guessing."""
    ids: Any = loaded.tokenizer(_TEXT)["input_ids"] if loaded.tokenizer else []
    ids = ids[: loaded.max_positions]
    if len(ids) < 2 or max(ids) >= loaded.vocab_size:
        return []  # which is an error of its own where it matters
    tokens = torch.tensor([ids], device=loaded.device)
    with scoring(loaded.model):
        output = loaded.model(input_ids=tokens, **without_cache(loaded.model))
    logits = output.logits[0, :-1].float()
    loss = cross_entropy(logits, tokens[0, 1:].to(logits.device)).item()
    guessing = math.log(loaded.vocab_size)
    if loss < _MUCH * guessing:
        return []
    return [
        f"with this tokenizer plain English costs {loss:.1f} nats a token, guessing "
        f"{guessing:.1f}: is it the one that the model was trained with?"
    ]
