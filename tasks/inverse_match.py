"""Inverse matching: find the listed sequence that is the query read backwards; answer its value.

    BOS a b c v1  d e f v2  c b a v3  f e d v4 EOS c b a v1 EOS

Every sequence is listed both ways, each with a value of its own, so that the tokens alone leave two
values: only their order tells which. A causal convolution maps a sequence and its reversal to
different things; what it helps with (`inverse_match/forward`: the entry that *is* the query) it
hinders with here. The difference between the two variants, on the same lists, is the probe.

The corruption `key` replaces one token of the asked entry, of which the nearest in the list is then
still that one: a model that matches loosely answers as before, and is below the gate for it. With
`swap` no way of matching leads to the clean answer.

The query's last token is the sequence's first, in the role `key`; the value comes after the
sequence, at `key+length`.

Use:

    task = load_task("inverse_match", num_sequences=4, length=4)
    task.decode(task.dataset("test", 1)[0]["input_ids"])

Source: Chen et al., arXiv 2509.17514, who let a model match 1234 with 4321. The values, and that
both orders are listed, are our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from patchbench.tasks.assembly import among, assemble, check_spare, chunk_rows
from patchbench.tasks.base import BOS, EOS, FIRST_SYMBOL, Derived, Task
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.example import Examples
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_distinct
from patchbench.tasks.settings import MOST_TOKENS, check_at_least, check_at_most

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, kw_only=True)
class InverseMatchConfig:
    """Settings of inverse matching.

    Attributes:
        num_sequences: in the list, each of them there both ways.
        length: of a sequence; its tokens are distinct.
        num_tokens: different tokens of sequences.
        num_values: different value tokens.
        forward: ask for the entry that is the query as it stands.
    """

    num_sequences: int = 4
    length: int = 4
    num_tokens: int = 4096
    num_values: int = 4096
    forward: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, num_sequences=self.num_sequences)
        check_at_least(2, length=self.length)
        check_at_most(MOST_TOKENS, num_tokens=self.num_tokens, num_values=self.num_values)
        check_spare(
            num_tokens=(self.num_sequences * self.length, self.num_tokens),
            num_values=(2 * self.num_sequences, self.num_values),
        )


class InverseMatchTask(Task):
    """Inverse matching of one config and seed."""

    Config = InverseMatchConfig
    config: InverseMatchConfig
    variants: ClassVar = VARIANTS["inverse_match"]
    source: ClassVar = (
        "after Chen et al., *Achilles' heel of Mamba: essential difficulties of the Mamba "
        "architecture demonstrated by synthetic data*, arXiv 2509.17514."
    )

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> t0 … v0 …`."""
        tokens = [f"t{i}" for i in range(self.config.num_tokens)]
        values = [f"v{i}" for i in range(self.config.num_values)]
        return ["<pad>", "<bos>", "<eos>", *tokens, *values]

    @cached_property
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Special, sequence and value tokens."""
        tokens = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_tokens)
        values = range(tokens.stop, tokens.stop + self.config.num_values)
        return {"special": (0, 1, 2), "token": tokens, "value": values}

    @property
    def max_length(self) -> int:
        """The length of every document."""
        return 1 + self._list_length + 1 + self.config.length + 2

    @property
    def _list_length(self) -> int:
        return 2 * self.config.num_sequences * (self.config.length + 1)

    def longer_by(self, pair: int = 2) -> dict[str, int]:
        """Return what a sequence takes, both ways; its value is a pair less its key."""
        return {"num_sequences": 2 * (self.config.length + 1)}

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk; nothing is rejected."""
        config, length, entries = self.config, self.config.length, 2 * self.config.num_sequences
        rows = chunk_rows(self.max_length)
        tokens = draw_distinct(
            rng, rows=rows, count=config.num_sequences * length, size=config.num_tokens
        )
        values = draw_distinct(rng, rows=rows, count=entries, size=config.num_values)
        values += self.kinds["value"][0]
        there = (tokens + FIRST_SYMBOL).reshape(rows, config.num_sequences, length)
        both = np.concatenate([there, there[:, :, ::-1]], axis=1)  # (rows, entries, length)
        row = np.arange(rows)
        order = rng.permuted(np.broadcast_to(np.arange(entries), (rows, entries)), axis=1)
        both = both[row[:, None], order]

        asked = rng.integers(entries, size=rows)
        sequence = both[row, asked]  # (rows, length)
        listed = np.concatenate([both, values[:, :, None]], axis=2)
        document = np.full((rows, self.max_length), EOS, np.int32)
        document[:, 0] = BOS
        document[:, 1 : 1 + self._list_length] = listed.reshape(rows, -1)
        document[:, -length - 2 : -2] = sequence if config.forward else sequence[:, ::-1]
        document[:, -2] = values[row, asked]
        first, full = 1 + asked * (length + 1), np.ones(rows, np.int64)
        return assemble(
            Ragged(document.reshape(-1), full * self.max_length),
            {
                "key": first + length - 1 if config.forward else first,
                "value": first + length,
                "divider": full * (1 + self._list_length),
                "query": full * (self.max_length - 3),
                "answer": full * (self.max_length - 2),
            },
            candidates=values,
            num_pairs=entries,
        ), rows

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the value of the entry that is the query backwards (`forward`: as it stands)."""
        ids, length = [int(token) for token in input_ids], self.config.length
        divider = ids.index(EOS)
        wanted = ids[divider + 1 : divider + 1 + length]
        wanted = wanted if self.config.forward else wanted[::-1]
        starts = range(1, divider, length + 1)
        found = {ids[i + length] for i in starts if ids[i : i + length] == wanted}
        return tuple(sorted(found))

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        documents, length = tokens.reshape(-1, self.max_length), self.config.length
        listed = documents[:, 1 : 1 + self._list_length].reshape(len(documents), -1, length + 1)
        query = documents[:, -length - 2 : -2]
        query = query if self.config.forward else query[:, ::-1]
        matches = (listed[:, :, :length] == query[:, None]).all(axis=2)
        return among(matches, listed[:, :, length], token)

    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy of guessing, and of recall by the tokens without their order."""
        return {"in_context_guess": 1 / (2 * self.config.num_sequences), "ignores_order": 1 / 2}
