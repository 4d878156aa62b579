"""Induction: a random sequence that begins to repeat; what followed the first time is the answer.

    BOS x1 x2 … xL EOS xj xj+1 … xL EOS

The tokens of the sequence are distinct, and the repetition starts at a uniformly drawn place, so
that its first token, the query, is all that tells where in the sequence it is: the answer cannot be
found by counting, nor from the tokens before. Every later token of the repetition is labelled as
well; for those the tokens before do help.

Use:

    task = load_task("induction", length=32)
    task.decode(task.dataset("test", 1)[0]["input_ids"])

Source: Olsson et al., arXiv 2209.11895 (induction heads on repeated random tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from patchbench.tasks.assembly import among, assemble, check_spare, chunk_rows
from patchbench.tasks.base import BOS, EOS, FIRST_SYMBOL, Derived, Task
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.example import IGNORED, Examples
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_distinct
from patchbench.tasks.settings import MOST_TOKENS, check_at_least, check_at_most

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, kw_only=True)
class InductionConfig:
    """Settings of induction.

    Attributes:
        length: of the random sequence; fewer than there are tokens, so that a corrupted one can be
            absent from it.
        num_tokens: different tokens.
    """

    length: int = 32
    num_tokens: int = 4096

    def __post_init__(self) -> None:
        check_at_least(2, length=self.length, num_tokens=self.num_tokens)
        check_at_most(MOST_TOKENS, num_tokens=self.num_tokens)
        check_spare(num_tokens=(self.length, self.num_tokens))


class InductionTask(Task):
    """Induction of one config and seed."""

    Config = InductionConfig
    config: InductionConfig
    variants: ClassVar = VARIANTS["induction"]
    source: ClassVar = "Olsson et al., *In-context learning and induction heads*, arXiv 2209.11895."

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> t0 …`."""
        return ["<pad>", "<bos>", "<eos>", *(f"t{i}" for i in range(self.config.num_tokens))]

    @cached_property
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Special and other tokens."""
        tokens = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_tokens)
        return {"special": (0, 1, 2), "token": tokens}

    @property
    def max_length(self) -> int:
        """The length of a document that repeats the whole sequence."""
        return 2 * self.config.length + 3

    def longer_by(self, pair: int = 2) -> dict[str, int]:
        """Return what a token takes; what is read ends with the answer."""
        return {"length": 1}

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk; nothing is rejected."""
        length, rows = self.config.length, chunk_rows(self.max_length)
        sequence = draw_distinct(rng, rows=rows, count=length, size=self.config.num_tokens)
        sequence += FIRST_SYMBOL
        start = rng.integers(length - 1, size=rows)

        lengths = 2 * length + 3 - start  # of BOS, sequence, EOS, its rest from `start` on, EOS
        tokens = Ragged(np.full(int(lengths.sum()), EOS, np.int32), lengths)
        place, row = tokens.positions, tokens.rows
        first = (place >= 1) & (place <= length)
        source = place - length - 2 + start[row]  # in the sequence, of what is repeated
        again = (place >= length + 2) & (source < length)
        tokens.values[place == 0] = BOS
        tokens.values[first] = sequence[row[first], place[first] - 1]
        tokens.values[again] = sequence[row[again], source[again]]
        labels = np.where(again & (place > length + 2), tokens.values, IGNORED)
        full = np.ones(rows, np.int64)
        examples = assemble(
            tokens,
            {
                "key": start + 1,
                "value": start + 2,
                "divider": full * (length + 1),
                "query": full * (length + 2),
                "answer": full * (length + 3),
            },
            candidates=sequence[:, 1:],
            num_pairs=length - 1,
            labels=labels.astype(np.int32),
        )
        return examples, rows

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the token that follows the query's occurrence in the sequence."""
        divider = list(input_ids).index(EOS)
        query, context = input_ids[divider + 1], list(input_ids[1:divider])
        places = [i for i in range(len(context) - 1) if context[i] == query]
        return tuple(sorted({int(context[i + 1]) for i in places}))

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        starts = examples.tokens.starts
        context = tokens[starts[:, None] + 1 + np.arange(self.config.length)]
        query = tokens[starts + examples.roles["query"]]
        return among(context[:, :-1] == query[:, None], context[:, 1:], token)

    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy of guessing among the tokens that follow another."""
        return {"in_context_guess": 1 / (self.config.length - 1)}
