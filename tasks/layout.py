"""Where every symbol of a document goes when separators are written between the symbols.

Use:

    layout = lay_out(task, examples, pieces)
    ids = layout.write(words[examples.tokens.values])        # flat, in the new lengths
    layout.place[examples.tokens.starts + examples.roles["key"]]    # positions in the new documents
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.example import Examples
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.templates import Pieces

if TYPE_CHECKING:
    from patchbench.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Documents with their separators in place and their words still missing.

    Attributes:
        skeleton: the new documents, from the first word to the answer.
        is_word: of each symbol, whether a word is written for it.
        place: of each symbol, the position of its last token in its new document; that of the
            token before, or −1, if nothing is written for it.
    """

    skeleton: Ragged
    is_word: np.ndarray
    place: np.ndarray
    _flat: np.ndarray

    def write(self, words: np.ndarray) -> Ragged:
        """Return the documents with a token for each symbol: (symbols,) → documents."""
        values = self.skeleton.values.copy()
        values[self._flat[self.is_word]] = words[self.is_word]
        return self.skeleton.with_values(values)


def lay_out(task: "Task", examples: Examples, pieces: Pieces) -> Layout:
    """Lay documents out by their roles and kinds, the same for every corruption.

    Neither BOS nor what follows the answer is written: the prefix belongs to the prompt.
    """
    tokens, roles = examples.tokens, examples.roles
    last = roles["answer"][tokens.rows]
    divider = np.zeros(len(tokens.values), bool)
    divider[tokens.starts + roles["divider"]] = True
    answer = tokens.positions == last
    is_word = (tokens.positions <= last) & ~divider
    is_word[(tokens.starts + roles["bos"])[roles["bos"] >= 0]] = False

    joined, broken = answer, np.zeros(len(answer), bool)
    if has_pairs(task):
        kind, inside = task.kind_of[tokens.values], examples.in_context
        is_key = inside & (kind == task.kind_names.index("key"))
        is_value = inside & (kind == task.kind_names.index("value"))
        joined = joined | (is_value & _after(is_key))
        broken = inside & ~is_value & _after(is_value)
    opened = examples.in_context & ~_after(examples.in_context)

    before = [
        (opened, pieces.opening),
        (joined, pieces.joiner),
        (broken, pieces.line),
        (divider, pieces.divider),
    ]
    widths = is_word.astype(np.int64)
    for mask, piece in before:
        widths += mask * len(piece)
    ends = np.cumsum(widths)
    lengths = np.bincount(tokens.rows, weights=widths, minlength=len(tokens)).astype(np.int64)
    skeleton = Ragged(np.full(int(widths.sum()), -1), lengths)
    for mask, piece in before:
        start = (ends - widths)[mask]
        for offset, token in enumerate(piece):
            skeleton.values[start + offset] = token
    place = ends - 1 - skeleton.starts[tokens.rows]
    return Layout(skeleton=skeleton, is_word=is_word, place=place, _flat=ends - 1)


def has_pairs(task: "Task") -> bool:
    """Return whether the context consists of key–value pairs."""
    return {"key", "value"} <= set(task.kind_names)


def _after(mask: np.ndarray) -> np.ndarray:
    """Return whether the symbol before is in the mask."""
    return np.concatenate([[False], mask[:-1]])
