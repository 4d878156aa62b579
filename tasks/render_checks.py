"""What is checked of rendered prompts: finished ones, whose layout it knows nothing of.

Use:

    check_rendered(examples, rendered, token_of, pieces)    # raises, or all is well
"""

from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.example import Examples
from patchbench.tasks.templates import Pieces
from patchbench.tasks.words import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SAMPLE = 32


class RenderingError(RuntimeError):
    """A rendered prompt is not what it must be: its numbers would be about other tokens."""


def check_rendered(
    source: Examples, rendered: Examples, token_of: np.ndarray, pieces: Pieces
) -> None:
    """Check every role's token, and the words of every document, clean and corrupted.

    Args:
        source: the symbolic rows.
        rendered: the same rows as prompts.
        token_of: symbol → token, −1 for special symbols: (vocab_size,).
        pieces: what is written between words.

    Raises:
        RenderingError: naming the document's version, the role and the first offending row.
    """
    versions: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray | None]] = {}
    versions["clean"] = (source.tokens.values, rendered.tokens.values, None)
    for name, twin in source.corruptions.items():
        versions[name] = (twin.tokens, rendered.corruptions[name].tokens, twin.exists)
    for name, (symbols, tokens, exists) in versions.items():
        if tokens.shape != rendered.tokens.values.shape:
            raise RenderingError(f"{name}: the length is not that of the clean prompts")
        checks = {
            **_role_checks(source, rendered, symbols, tokens, token_of, pieces),
            "its words are not those of the document": _same_words(
                source, rendered, symbols, tokens, token_of
            ),
        }
        for message, passed in checks.items():
            failed = ~passed if exists is None else ~passed & exists
            if failed.any():
                raise RenderingError(f"{name}, row {int(np.argmax(failed))}: {message}")


def _role_checks(
    source: Examples,
    rendered: Examples,
    symbols: np.ndarray,
    tokens: np.ndarray,
    token_of: np.ndarray,
    pieces: Pieces,
) -> dict[str, np.ndarray]:
    starts, roles, lengths = rendered.tokens.starts, rendered.roles, rendered.tokens.lengths
    expected = {
        role: token_of[symbols[source.tokens.starts + source.roles[role]]]
        for role in ("key", "value", "query", "answer")
    }
    expected["divider"] = np.full(len(starts), pieces.divider[-1])
    if pieces.bos >= 0:
        expected["bos"] = np.full(len(starts), pieces.prefix[pieces.bos])
    checks = {}
    for role, token in expected.items():
        inside = (roles[role] >= 0) & (roles[role] < lengths)
        found = tokens[starts + np.where(inside, roles[role], 0)]
        checks[f"role {role} lies outside"] = inside
        checks[f"the token at role {role} is not its own"] = found == token
    if pieces.bos >= 0:
        is_bos = tokens == pieces.prefix[pieces.bos]
        checks["BOS does not stand there once"] = (
            np.bincount(rendered.tokens.rows[is_bos], minlength=len(starts)) == 1
        )
    checks["the answer is not last"] = roles["answer"] == lengths - 1
    return checks


def _same_words(
    source: Examples,
    rendered: Examples,
    symbols: np.ndarray,
    tokens: np.ndarray,
    token_of: np.ndarray,
) -> np.ndarray:
    """Return whether the last words of each prompt are the words of its document: (rows,)."""
    rows, words = len(source), token_of[symbols]
    wanted = (words >= 0) & (source.tokens.positions <= source.roles["answer"][source.tokens.rows])
    wanted[source.tokens.starts + source.roles["divider"]] = False
    # A table: looking among sorted words takes most of the rendering's time.
    table = np.zeros(max(tokens.max(), token_of.max()) + 1, bool)
    table[token_of[token_of >= 0]] = True
    is_word = table[tokens]
    counts = np.bincount(source.tokens.rows[wanted], minlength=rows)
    written = np.bincount(rendered.tokens.rows[is_word], minlength=rows)
    if (written < counts).any():
        return written >= counts
    # The shots' words stand before them.
    place = np.cumsum(is_word) - 1
    ends = np.cumsum(written)
    late = is_word & (place >= np.repeat(ends - counts, rendered.tokens.lengths))
    differs = words[wanted] != tokens[late]
    return np.bincount(source.tokens.rows[wanted][differs], minlength=rows) == 0


def count_other_tokens(
    tokenizer: "PreTrainedTokenizerBase", rendered: Examples, prefix: int
) -> tuple[int, int]:
    """Return how many prompts were sampled, and how many are tokenised otherwise as text.

    Args:
        tokenizer: the tokenizer.
        rendered: prompts.
        prefix: tokens of each prompt that the tokenizer adds by itself.
    """
    rows = np.unique(np.linspace(0, len(rendered) - 1, min(_SAMPLE, len(rendered)), dtype=int))
    versions = [rendered.tokens.values, *(t.tokens for t in rendered.corruptions.values())]
    prompts = [
        rendered.tokens.with_values(tokens).row(int(row))[prefix:].tolist()
        for tokens in versions
        for row in rows
    ]
    again = encode(tokenizer, [str(tokenizer.decode(prompt)) for prompt in prompts])
    return len(prompts), sum(a != b for a, b in zip(prompts, again, strict=True))
