"""Multi-query associative recall: pairs, then their keys again, scattered among other tokens.

    BOS k1 v1 … kP vP EOS … k3 … … k1 … … k2 v2 EOS

Every key is asked once. The distances of the queries follow a power law, as in text: most come
soon. All queries are labelled with their values, but only the value of the one that the row is
about (role `query`) is written: with the others' written, too, the missing one could be told by
elimination. The document ends there.

What stands between the queries is drawn from the keys and values that are *not* in the document's
list, so that no filler is a query, and none an answer.

The power law is sampled in integers of 2⁻³⁰, the same on every machine.

Use:

    task = load_task("mqar", length=128, num_pairs=8)
    row = task.dataset("train", 1)[0]
    [label for label in row["labels"] if label >= 0]     # all values that were asked for

Source: Arora et al., arXiv 2312.04927 (Zoology). `length` is its input length; BOS and the divider
are added. There, fillers may be keys or values of the list, and no answer is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.assembly import among, assemble, check_spare, chunk_rows
from patchbench.tasks.base import BOS, EOS, FIRST_SYMBOL, Derived, Task
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.example import IGNORED, Examples
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_distinct
from patchbench.tasks.settings import MOST_TOKENS, check_at_least, check_at_most

if TYPE_CHECKING:
    import datasets

_WEIGHT_STEPS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class MQARConfig:
    """Settings of multi-query associative recall.

    Attributes:
        length: of list and queries together; even, at least 4 tokens for each pair.
        num_pairs: in the list.
        num_keys: different key tokens.
        num_values: different value tokens.
        power: a of the power law a·g^(a−1) of the gap g (in steps of two tokens) before a query.
        asked: which query the row is about, "any" of them or the "last" (which labels all).
    """

    length: int = 64
    num_pairs: int = 4
    num_keys: int = 4096
    num_values: int = 4096
    power: float = 0.01
    asked: Literal["any", "last"] = "any"

    def __post_init__(self) -> None:
        check_at_least(1, num_pairs=self.num_pairs)
        check_at_least(2, num_keys=self.num_keys, num_values=self.num_values)
        check_at_most(MOST_TOKENS, num_keys=self.num_keys, num_values=self.num_values)
        check_at_least(4 * self.num_pairs, length=self.length)
        if self.length % 2:
            raise UserError(f"length={self.length}", "an even number is needed")
        if not 0.01 <= self.power <= 10:
            raise UserError(f"power={self.power}", "a number from 0.01 to 10 is needed")
        check_spare(
            num_keys=(self.num_pairs, self.num_keys), num_values=(self.num_pairs, self.num_values)
        )

    @property
    def places(self) -> int:
        """Where a query may stand: every other token after the list."""
        return self.length // 2 - self.num_pairs


class MQARTask(Task):
    """Multi-query associative recall of one config and seed."""

    Config = MQARConfig
    config: MQARConfig
    variants: ClassVar = VARIANTS["mqar"]
    source: ClassVar = (
        "Arora et al., *Zoology: measuring and improving recall in efficient language models*, "
        "arXiv 2312.04927."
    )

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> k0 … v0 …`."""
        keys = [f"k{i}" for i in range(self.config.num_keys)]
        return ["<pad>", "<bos>", "<eos>", *keys, *(f"v{i}" for i in range(self.config.num_values))]

    @cached_property
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Special, key and value tokens."""
        keys = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_keys)
        return {
            "special": (0, 1, 2),
            "key": keys,
            "value": range(keys.stop, keys.stop + self.config.num_values),
        }

    @property
    def max_length(self) -> int:
        """The length of a document whose last place is asked."""
        return self.config.length + 3

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk; nothing is rejected."""
        config, pairs, rows = self.config, self.config.num_pairs, chunk_rows(self.max_length)
        keys = draw_distinct(rng, rows=rows, count=pairs, size=config.num_keys)
        values = draw_distinct(rng, rows=rows, count=pairs, size=config.num_values)
        keys += self.kinds["key"][0]
        values += self.kinds["value"][0]
        gaps = _successively(rng, _power_law(config.places, config.power), rows, pairs)
        row = np.arange(rows)
        pair = rng.integers(pairs, size=rows) if config.asked == "any" else gaps.argmax(axis=1)
        asked = gaps[row, pair]

        head = 2 * pairs + 2  # BOS, the list, EOS
        tokens = np.full((rows, self.max_length), EOS, np.int32)
        tokens[:, 0] = BOS
        tokens[:, 1 : head - 1 : 2], tokens[:, 2 : head - 1 : 2] = keys, values
        tokens[:, head:-1] = self._fillers(rng, keys, values, 2 * config.places)
        place = head + 2 * gaps
        tokens[row[:, None], place] = keys
        labels = np.full(tokens.shape, IGNORED, np.int32)
        labels[row[:, None], place + 1] = values

        answer = head + 2 * asked + 1
        tokens[row, answer] = values[row, pair]
        tokens[row, answer + 1] = EOS
        kept = np.arange(self.max_length) <= answer[:, None] + 1
        return assemble(
            Ragged(tokens[kept], answer + 2),
            {
                "key": 2 * pair + 1,
                "value": 2 * pair + 2,
                "divider": np.full(rows, head - 1),
                "query": answer - 1,
                "answer": answer,
            },
            candidates=values,
            num_pairs=pairs,
            labels=labels[kept],
        ), rows

    def _fillers(
        self, rng: np.random.Generator, keys: np.ndarray, values: np.ndarray, count: int
    ) -> np.ndarray:
        """Return (rows, count) tokens, uniform over the keys and values that a row lacks."""
        first = self.kinds["key"][0]
        size = self.config.num_keys + self.config.num_values
        # Sorted (row, token) pairs: one search tells which of many tokens a row has.
        present = np.concatenate([keys, values], axis=1) - first
        row = np.arange(len(keys))[:, None]
        taken = np.sort((row * size + present).reshape(-1))
        drawn = rng.integers(size, size=(len(keys), count), dtype=np.int64)
        flat, where = (row * size + drawn).reshape(-1), np.arange(drawn.size)
        while len(where):
            found = np.searchsorted(taken, flat[where])
            hit = taken[np.minimum(found, len(taken) - 1)] == flat[where]
            where = where[hit]
            again = rng.integers(size, size=len(where), dtype=np.int64)
            flat[where] = where // count * size + again
        return flat.reshape(drawn.shape) % size + first

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the value of the document's last query, which its answer and EOS follow."""
        ids = [int(token) for token in input_ids]
        divider = ids.index(EOS)
        listed = dict(zip(ids[1:divider:2], ids[2:divider:2], strict=True))
        return (listed[ids[-3]],) if ids[-3] in listed else ()

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        starts = examples.tokens.starts
        listed = tokens[starts[:, None] + 1 + np.arange(2 * self.config.num_pairs)]
        query = tokens[starts + examples.roles["query"]]
        return among(listed[:, ::2] == query[:, None], listed[:, 1::2], token)

    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy of guessing among the answers in the list."""
        return {"in_context_guess": 1 / self.config.num_pairs}


def _power_law(places: int, power: float) -> np.ndarray:
    """Return the weights of gaps 1 … places as positive integers: (places,)."""
    weights = np.arange(1, places + 1, dtype=np.float64) ** (power - 1)
    return np.maximum(np.rint(weights / weights.max() * _WEIGHT_STEPS), 1).astype(np.int64)


def _successively(
    rng: np.random.Generator, weights: np.ndarray, rows: int, count: int
) -> np.ndarray:
    """Return (rows, count) distinct places, each drawn by weight from those that are left."""
    left = np.broadcast_to(weights, (rows, len(weights))).copy()
    drawn = np.empty((rows, count), np.int64)
    row = np.arange(rows)
    for column in range(count):
        bounds = np.cumsum(left, axis=1)
        ticket = rng.integers(0, bounds[:, -1])
        drawn[:, column] = (bounds <= ticket[:, None]).sum(axis=1)
        left[row, drawn[:, column]] = 0
    return drawn
