"""Associative recall: a list of key–value pairs, then one of the keys; the answer is its value.

    BOS k1 v1 … kP vP EOS kq vq EOS

Keys are distinct within a list and so are values, drawn independently; the queried pair is
uniform over those that may be asked. `reverse` asks for the key of a value: the role `key` is
always what is asked about, `value` what is answered, whichever kind of token they are.

Use:

    task = load_task("ar", num_pairs=4)
    task.decode(task.dataset("test", 1)[0]["input_ids"])

Source: Arora et al., arXiv 2505.15105, section 3. The vocabulary has the paper's size: its
8196th entry never occurs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.base import ARORA, BOS, EOS, FIRST_SYMBOL, Derived, Task
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.example import Examples
from patchbench.tasks.held_out import HeldOutPairs
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_distinct
from patchbench.tasks.settings import MOST_TOKENS, check_at_least, check_at_most, check_share

if TYPE_CHECKING:
    import datasets

# Candidates in a chunk: at most so many rows, and at most so many tokens.
_CHUNK_ROWS, _CHUNK_TOKENS = 8192, 1 << 20


@dataclass(frozen=True, kw_only=True)
class ARConfig:
    """Settings of associative recall.

    Attributes:
        num_pairs: in the list; fewer than there are keys and values, so that a corrupted one can
            be absent from it.
        num_keys: different key tokens.
        num_values: different value tokens.
        reverse: ask for the key of a value.
        held_out: probability that an ordered (query, answer) pair is asked in test only.
        drawn_keys: only the first so many keys occur, all when None; the tokens stay what they
            are, so that a curriculum may begin with few.
        drawn_values: likewise of the values.
    """

    num_pairs: int = 16
    num_keys: int = 4096
    num_values: int = 4096
    reverse: bool = False
    held_out: float = 0.0
    drawn_keys: int | None = None
    drawn_values: int | None = None

    def __post_init__(self) -> None:
        check_at_least(1, num_pairs=self.num_pairs)
        check_at_least(2, num_keys=self.num_keys, num_values=self.num_values)
        check_at_most(MOST_TOKENS, num_keys=self.num_keys, num_values=self.num_values)
        check_share(held_out=self.held_out)
        if self.drawn_keys is not None:
            check_at_least(2, drawn_keys=self.drawn_keys)
            check_at_most(self.num_keys, drawn_keys=self.drawn_keys)
        if self.drawn_values is not None:
            check_at_least(2, drawn_values=self.drawn_values)
            check_at_most(self.num_values, drawn_values=self.drawn_values)
        keys, values = self.keys_in_use, self.values_in_use
        largest = min(keys, values) - 1
        if self.num_pairs > largest:
            raise UserError(
                f"num_pairs={self.num_pairs} with {keys} keys and {values} "
                "values leaves none for a corruption",
                f"the largest allowed is {largest}",
            )

    @property
    def keys_in_use(self) -> int:
        """How many keys occur."""
        return self.num_keys if self.drawn_keys is None else self.drawn_keys

    @property
    def values_in_use(self) -> int:
        """How many values occur."""
        return self.num_values if self.drawn_values is None else self.drawn_values


class ARTask(Task):
    """Associative recall of one config and seed."""

    Config = ARConfig
    config: ARConfig
    variants: ClassVar = VARIANTS["ar"]
    source: ClassVar = ARORA

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> k0 … v0 … <unused>`."""
        keys = [f"k{i}" for i in range(self.config.num_keys)]
        values = [f"v{i}" for i in range(self.config.num_values)]
        return ["<pad>", "<bos>", "<eos>", *keys, *values, "<unused>"]

    @cached_property
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Special, key and value tokens."""
        keys = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_keys)
        values = range(keys.stop, keys.stop + self.config.num_values)
        return {"special": (0, 1, 2, values.stop), "key": keys, "value": values}

    @cached_property
    def drawn(self) -> dict[str, range | tuple[int, ...]]:
        """The kinds, less the keys and values that never occur."""
        keys, values = self.kinds["key"], self.kinds["value"]
        return self.kinds | {
            "key": keys[: self.config.keys_in_use],
            "value": values[: self.config.values_in_use],
        }

    @property
    def max_length(self) -> int:
        """The length of every document."""
        return 2 * self.config.num_pairs + 5

    def longer_by(self, pair: int = 2) -> dict[str, int]:
        """Return what a pair takes."""
        return {"num_pairs": pair}

    @cached_property
    def _held_out(self) -> HeldOutPairs:
        return HeldOutPairs(seed=self.seed, share=self.config.held_out)

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk; lists without a pair that may be asked in the split are rejected."""
        config, pairs = self.config, self.config.num_pairs
        drawn = max(1, min(_CHUNK_ROWS, _CHUNK_TOKENS // self.max_length))
        keys = draw_distinct(rng, rows=drawn, count=pairs, size=config.keys_in_use)
        values = draw_distinct(rng, rows=drawn, count=pairs, size=config.values_in_use)
        keys += self.kinds["key"][0]
        values += self.kinds["value"][0]
        asked, answered = (values, keys) if config.reverse else (keys, values)
        allowed = self._held_out.eligible(split, asked, answered)
        counts = allowed.sum(axis=1)
        kept = counts > 0
        keys, values, asked, answered = keys[kept], values[kept], asked[kept], answered[kept]
        allowed, counts = allowed[kept], counts[kept]
        rank = rng.integers(0, counts)
        pair = np.argmax(np.cumsum(allowed, axis=1) > rank[:, None], axis=1)

        rows = np.arange(len(counts))
        tokens = np.full((len(rows), self.max_length), EOS, np.int32)
        tokens[:, 0] = BOS
        tokens[:, 1 : 2 * pairs + 1 : 2] = keys
        tokens[:, 2 : 2 * pairs + 2 : 2] = values
        tokens[:, -3] = asked[rows, pair]
        tokens[:, -2] = answered[rows, pair]
        first, second = 2 * pair + 1, 2 * pair + 2
        full = np.ones(len(rows), np.int64)
        examples = Examples(
            tokens=Ragged(tokens.reshape(-1), full * self.max_length),
            parents=Ragged(np.empty(0, np.int32), full * 0),
            roles={
                "bos": full * 0,
                "key": second if config.reverse else first,
                "value": first if config.reverse else second,
                "divider": full * (2 * pairs + 1),
                "query": full * (2 * pairs + 2),
                "answer": full * (2 * pairs + 3),
            },
            candidates=Ragged(answered.reshape(-1), full * pairs),
            corruptions={},
            metadata={
                "query_kind": full * 0,
                "distance": full,
                "depth": full * 0,
                "answer_is_next_token": np.full(len(rows), not config.reverse),
                "answer_is_rightmost": (pair == pairs - 1) & (not config.reverse),
                "num_pairs": counts,
            },
            kinds=("value" if config.reverse else "key",),
        )
        return examples, drawn

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the value that follows the query in the list (`reverse`: the key before it)."""
        divider = list(input_ids).index(EOS)
        query, context = input_ids[divider + 1], list(input_ids[1:divider])
        if query not in context:
            return ()
        step = -1 if self.config.reverse else 1
        return (int(context[context.index(query) + step]),)

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        documents = tokens.reshape(-1, self.max_length)
        pairs = documents[:, 1:-4].reshape(len(documents), -1, 2)
        asked, answered = pairs[:, :, 0], pairs[:, :, 1]
        if self.config.reverse:
            asked, answered = answered, asked
        matches = asked == documents[:, -3:-2]
        found = matches.any(axis=1)
        answer = answered[np.arange(len(documents)), matches.argmax(axis=1)]
        answer = np.where(found, answer, -1)
        return Derived(count=found.astype(np.int32), answer=answer, accepts=answer == token)

    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy of guessing among the answers in the list."""
        return {"in_context_guess": 1 / self.config.num_pairs}
