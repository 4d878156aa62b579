r"""How a document is written for a pretrained model, and the tokens of what stands between words.

| template | a document with pairs     | one without          |
|----------|---------------------------|----------------------|
| bare     | ` k v k v\n q a`          | ` w w w w\n q a`     |
| colon    | ` k: v\n k: v\n q: a`     | ` w w w w\n q: a`    |
| arrow    | ` k -> v\n k -> v\n q -> a` | ` w w w w\n q -> a` |
| record   | ` { k: v, k: v }\n q: a` | ` { w w w w }\n q: a` |
| sentence | ` k likes v. k likes v.\n q likes a` | ` w w w w.\n q likes a` |

Every word follows a space, so that it is the same token wherever it stands. Solved documents in
front are separated by an empty line.

Use:

    pieces = find_pieces(tokenizer, "colon", words, shots=1)
    pieces.joiner, pieces.line                    # token ids of ":" and of the line break
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from patchbench.common import UserError
from patchbench.tasks.words import Word, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Template:
    """What stands between words.

    Attributes:
        joiner: between a key and its value, and between query and answer.
        between: between pairs; None for the end of a line.
        opening: before the context.
        closing: after it.
    """

    joiner: str
    between: str | None = None
    opening: str = ""
    closing: str = ""


TEMPLATES: Mapping[str, Template] = {
    "bare": Template("", between=""),
    "colon": Template(":"),
    "arrow": Template(" ->"),
    "record": Template(":", between=",", opening=" {", closing=" }"),
    "sentence": Template(" likes", between=".", closing="."),
}
# Some tokenizers have no line break, or make a space of it.
_BREAKS = ("\n", ";", ".", ",")
_SAMPLES = 8


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Token ids of what is not a word.

    Attributes:
        prefix: what the tokenizer puts before every text, e.g. BOS.
        bos: index of BOS in `prefix`, −1 where there is no prefix.
        joiner: between a key and its value, and between query and answer.
        line: between pairs.
        opening: before the context.
        divider: between the context and the query.
        separator: between documents.
        notes: what the user should know of them.
    """

    prefix: tuple[int, ...]
    bos: int
    joiner: tuple[int, ...]
    line: tuple[int, ...]
    opening: tuple[int, ...]
    divider: tuple[int, ...]
    separator: tuple[int, ...]
    notes: tuple[str, ...]


def find_pieces(
    tokenizer: "PreTrainedTokenizerBase", template: str, words: Sequence[Word], *, shots: int
) -> Pieces:
    """Tokenise what a template puts between words.

    Raises:
        UserError: the tokenizer cannot write it, or not in the same way between all words.
    """
    prefix, bos, notes = _find_prefix(tokenizer, words[0])
    wanted = TEMPLATES[template]

    def needed(text: str) -> tuple[int, ...]:
        piece = _between(tokenizer, text, words)
        if piece is None:
            raise UserError(
                f"the tokenizer cannot write {text!r} between words, which the template "
                f"{template!r} needs",
                "choose --template bare",
            )
        return piece

    joiner, opening = needed(wanted.joiner), needed(wanted.opening)
    for end in _BREAKS:
        line = _between(tokenizer, end, words)
        if line:
            break
    else:
        raise UserError(
            f"the tokenizer has none of {list(_BREAKS)} to end a line with",
            "the model's tokenizer cannot be used for rendering",
        )
    if end != "\n":
        notes = (*notes, f"the tokenizer has no line break: {end!r} ends a line")
    return Pieces(
        prefix=prefix,
        bos=bos,
        joiner=joiner,
        line=line if wanted.between is None else needed(wanted.between),
        opening=opening,
        divider=needed(wanted.closing + end) if wanted.closing else line,
        # Not every tokenizer can write an empty line.
        separator=(_between(tokenizer, end * 2, words) or line) if shots else (),
        notes=notes,
    )


def _find_prefix(
    tokenizer: "PreTrainedTokenizerBase", word: Word
) -> tuple[tuple[int, ...], int, tuple[str, ...]]:
    """Return what the tokenizer puts before a text, the index of BOS in it, and notes."""
    special = set(tokenizer.all_special_ids)
    text: Any = tokenizer(f"{word.text} {word.text}")
    prefix: list[int] = []
    for token in text["input_ids"]:
        if token not in special:
            break
        prefix.append(token)
    if not prefix:
        return (), -1, ("the tokenizer puts no BOS before a text: there is no role bos",)
    bos = cast(int, tokenizer.bos_token_id)  # one token, or none that a prompt could hold
    if prefix.count(bos) > 1:
        first = prefix.index(bos)
        prefix = [t for i, t in enumerate(prefix) if t != bos or i == first]
        note = f"the tokenizer puts BOS before a text more than once: {tokenizer.bos_token} is kept"
        return tuple(prefix), first, (f"{note} once",)
    return tuple(prefix), prefix.index(bos) if bos in prefix else 0, ()


def _between(
    tokenizer: "PreTrainedTokenizerBase", text: str, words: Sequence[Word]
) -> tuple[int, ...] | None:
    """Return the tokens of `text` between two words, None if they are not the same everywhere."""
    if not text:
        return ()
    step = max(1, len(words) // _SAMPLES)
    sample = words[::step][:_SAMPLES]
    found = set()
    for left, right in zip(sample, [*sample[1:], sample[0]], strict=True):
        # Ahead stands a word whose own tokens, without a space before it, do not matter.
        (ahead, whole) = encode(
            tokenizer, [left.text, f"{left.text} {left.text}{text} {right.text}"]
        )
        rest = whole[len(ahead) :]
        if len(rest) < 3 or (rest[0], rest[-1]) != (left.token, right.token):
            return None
        found.add(tuple(rest[1:-1]))
        # A normaliser may have made something else of it, or it is unknown.
        if text.strip(" ") not in str(tokenizer.decode(whole)):
            return None
    piece = found.pop()
    return None if found else piece
