"""Words that a pretrained tokenizer writes as one token, to stand for a task's symbols.

A recalled symbol must be one token, or a role would have no position. Any tokenizer is asked the
same question: how does it write words with spaces between them? Whether it marks the space
(GPT-2's Ġ, SentencePiece's ▁) or drops it, a word is usable if it then is exactly one token.

Use:

    words = find_words(tokenizer)                 # [Word(text="which", token=581), …]
    tokens, texts = assign_words(task, words)     # symbol id → token id, symbol id → word
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.fitting import fewer_symbols

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from patchbench.tasks.base import Task

# What byte-level BPE and SentencePiece write for a space.
_SPACE_MARKS = "Ġ▁"
_WORD = re.compile("[a-z]+")
_LONG_ENOUGH = 4
_CHUNK = 64


@dataclass(frozen=True, order=True)
class Word:
    """A lower-case word and the token that it is after a space."""

    text: str
    token: int


def encode(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, nothing added."""
    batch: Any = tokenizer(list(texts), add_special_tokens=False)
    return batch["input_ids"]


def find_words(tokenizer: "PreTrainedTokenizerBase") -> list[Word]:
    """Return every lower-case single-token word, the most suitable first.

    Within each group the order is that of token ids, which in common tokenizers is one of
    frequency. Words whose plural is a word too come first, then those plurals: a vocabulary is full
    of beginnings of words ("consum", "estab"), and little else there tells them from words. Short
    ones come last.
    """
    special = {*tokenizer.all_special_ids, *cast(Any, tokenizer).get_added_vocab().values()}
    vocabulary = sorted(
        (token, text) for text, token in tokenizer.get_vocab().items() if token not in special
    )
    marked = [Word(text[1:], token) for token, text in vocabulary if text[:1] in _SPACE_MARKS]
    marked = [word for word in marked if _WORD.fullmatch(word.text)]
    # Without a mark, a token may be the inside of a word, unless the tokenizer has no marks at all.
    plain = [Word(text, token) for token, text in vocabulary if _WORD.fullmatch(text)]
    found: dict[str, Word] = {}
    for word in _confirmed(tokenizer, marked or plain, whole=not marked):
        found.setdefault(word.text, word)

    def group(word: Word) -> int:
        if len(word.text) < _LONG_ENOUGH:
            return 3
        if word.text + "s" in found:
            return 0
        return 1 if word.text.endswith("s") and word.text[:-1] in found else 2

    return sorted(found.values(), key=group)


def known_words(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> list[Word]:
    """Return those of the given words that the tokenizer writes as one token after a space."""
    unknown = tokenizer.unk_token_id
    before = encode(tokenizer, [f"{text} {text}" for text in texts])
    after = encode(tokenizer, [f"{text} {text} {text}" for text in texts])
    return [
        Word(text, ids[-1])
        for text, start, ids in zip(texts, before, after, strict=True)
        if ids[:-1] == start and ids[-1] == start[-1] != unknown
    ]


def _confirmed(
    tokenizer: "PreTrainedTokenizerBase", words: Sequence[Word], *, whole: bool
) -> list[Word]:
    """Return the words that the tokenizer, given text, writes with their token.

    Args:
        tokenizer: the tokenizer.
        words: supposed words.
        whole: whether the text's first word has no other token for want of a space before it.
    """
    chunks = [words[start : start + _CHUNK] for start in range(0, len(words), _CHUNK)]
    confirmed: list[Word] = []
    while chunks:
        texts = [" ".join([chunk[0].text, *(word.text for word in chunk)]) for chunk in chunks]
        failed = []
        for chunk, ids in zip(chunks, encode(tokenizer, texts), strict=True):
            tokens = [word.token for word in chunk]
            if ids == [tokens[0], *tokens] if whole else ids[-len(tokens) :] == tokens:
                confirmed += chunk
            elif len(chunk) > 1:
                middle = len(chunk) // 2
                failed += [chunk[:middle], chunk[middle:]]
        chunks = failed
    return sorted(confirmed, key=lambda word: word.token)


def assign_words(
    task: "Task", words: Sequence[Word], own: Mapping[str, Sequence[Word]] | None = None
) -> tuple[np.ndarray, dict[int, str]]:
    """Give every symbol of the task that is not special a word of its own.

    A symbol whose name is a word in brackets, such as `<parent>`, gets that word. The others take
    the words in order, the kinds by turns, so that keys are no rarer than values.

    Args:
        task: the task.
        words: for any symbol, the most suitable first.
        own: kind → the words that only its symbols take, and it no others.

    Returns:
        Symbol id → token id, (vocab_size,), −1 for special symbols; and symbol id → word.

    Raises:
        UserError: the tokenizer has too few words.
    """
    by_text = {word.text: word for word in words}
    named = _take_own(task, own or {})
    ranked: list[tuple[int, int]] = []
    for kind, symbols in task.kinds.items():
        if kind == "special" or kind in (own or {}):
            continue
        for rank, symbol in enumerate(symbols):
            name = task.symbols[symbol]
            word = by_text.get(name[1:-1]) if name.startswith("<") else None
            if word is not None:
                named[symbol] = word
            else:
                ranked.append((rank, symbol))
    taken = set(named.values())
    free = [word for word in words if word not in taken]
    if len(ranked) > len(free):
        raise UserError(
            f"task {task.name!r} needs {len(named) + len(ranked)} single-token words, "
            f"the tokenizer has {len(words)}",
            fewer_symbols(task, room=len(free), needed=len(ranked)),
        )
    pairs = zip(sorted(ranked), free, strict=False)
    chosen = {**named, **{symbol: word for (_, symbol), word in pairs}}
    tokens = np.full(task.vocab_size, -1, np.int64)
    for symbol, word in chosen.items():
        tokens[symbol] = word.token
    return tokens, {symbol: word.text for symbol, word in chosen.items()}


def _take_own(task: "Task", own: Mapping[str, Sequence[Word]]) -> dict[int, Word]:
    """Return symbol → word for the kinds with words of their own: its name where that is one.

    Raises:
        UserError: a kind has more symbols than the tokenizer has words for it.
    """
    taken: dict[int, Word] = {}
    for kind, words in own.items():
        symbols = task.kinds[kind]
        if len(symbols) > len(words):
            raise UserError(
                f"task {task.name!r} has {len(symbols)} symbols of kind {kind!r}, of its words for "
                f"them the tokenizer writes {len(words)} as one token",
                f"the largest that fits is num_{kind}s={len(words)}",
            )
        by_text = {word.text: word for word in words}
        named = {s: by_text[task.symbols[s]] for s in symbols if task.symbols[s] in by_text}
        free = (word for word in words if word not in set(named.values()))
        taken |= {s: named[s] if s in named else next(free) for s in symbols}
    return taken
