"""Joint recall: the same keys in several blocks, each with values of its own.

    BOS c1 k1 v k2 v … c2 k2 v k1 v … EOS c2 k1 v EOS

A block begins with its context token; all blocks have the same keys, in an order of their own, and
all values of a document are distinct. The answer depends on the context *and* the key: a model that
recalls by the key alone is right in one of as many cases as there are blocks. The context token of
the query stands at `query-1`.

Use:

    task = load_task("joint_recall", num_blocks=4, num_pairs=4)
    task.decode(task.dataset("test", 1)[0]["input_ids"])

Source: Zhan et al., arXiv 2507.00449, who extend associative recall by a context in this way. The
layout, the sizes and the query for one pair are our own.
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
class JointRecallConfig:
    """Settings of joint recall.

    Attributes:
        num_blocks: contexts in a document.
        num_pairs: in each block.
        num_contexts: different context tokens.
        num_keys: different key tokens.
        num_values: different value tokens.
    """

    num_blocks: int = 4
    num_pairs: int = 4
    num_contexts: int = 256
    num_keys: int = 4096
    num_values: int = 4096

    def __post_init__(self) -> None:
        check_at_least(1, num_pairs=self.num_pairs)
        check_at_least(2, num_blocks=self.num_blocks)
        check_at_least(self.num_blocks, num_contexts=self.num_contexts)
        sizes = {"num_keys": self.num_keys, "num_values": self.num_values}
        check_at_most(MOST_TOKENS, num_contexts=self.num_contexts, **sizes)
        check_spare(
            num_keys=(self.num_pairs, self.num_keys),
            num_values=(self.num_blocks * self.num_pairs, self.num_values),
        )


class JointRecallTask(Task):
    """Joint recall of one config and seed."""

    Config = JointRecallConfig
    config: JointRecallConfig
    variants: ClassVar = VARIANTS["joint_recall"]
    source: ClassVar = (
        "after Zhan et al., *Overcoming long-context limitations of state-space models via "
        "context-dependent sparse attention*, arXiv 2507.00449."
    )

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> c0 … k0 … v0 …`."""
        config = self.config
        sizes = {"c": config.num_contexts, "k": config.num_keys, "v": config.num_values}
        names = [f"{letter}{i}" for letter, size in sizes.items() for i in range(size)]
        return ["<pad>", "<bos>", "<eos>", *names]

    @cached_property
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Special, context, key and value tokens."""
        contexts = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_contexts)
        keys = range(contexts.stop, contexts.stop + self.config.num_keys)
        values = range(keys.stop, keys.stop + self.config.num_values)
        return {"special": (0, 1, 2), "context": contexts, "key": keys, "value": values}

    @property
    def max_length(self) -> int:
        """The length of every document."""
        return self.config.num_blocks * self._block + 6

    @property
    def _block(self) -> int:
        return 2 * self.config.num_pairs + 1

    def longer_by(self, pair: int = 2) -> dict[str, int]:
        """Return what a block takes, and what a pair more in each."""
        return {
            "num_blocks": 1 + self.config.num_pairs * pair,
            "num_pairs": self.config.num_blocks * pair,
        }

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk; nothing is rejected."""
        config, blocks, pairs = self.config, self.config.num_blocks, self.config.num_pairs
        rows = chunk_rows(self.max_length)
        contexts = draw_distinct(rng, rows=rows, count=blocks, size=config.num_contexts)
        keys = draw_distinct(rng, rows=rows, count=pairs, size=config.num_keys)
        values = draw_distinct(rng, rows=rows, count=blocks * pairs, size=config.num_values)
        contexts += self.kinds["context"][0]
        keys += self.kinds["key"][0]
        values += self.kinds["value"][0]
        # Each block orders the keys anew: (rows, blocks, pairs).
        keys = rng.permuted(np.repeat(keys[:, None], blocks, axis=1), axis=2)

        body = np.empty((rows, blocks, self._block), np.int32)
        body[:, :, 0], body[:, :, 1::2] = contexts, keys
        body[:, :, 2::2] = values.reshape(rows, blocks, pairs)
        row = np.arange(rows)
        block, pair = rng.integers(blocks, size=rows), rng.integers(pairs, size=rows)
        tokens = np.full((rows, self.max_length), EOS, np.int32)
        tokens[:, 0], tokens[:, 1:-5] = BOS, body.reshape(rows, -1)
        tokens[:, -4], tokens[:, -3] = contexts[row, block], keys[row, block, pair]
        tokens[:, -2] = body[row, block, 2 * pair + 2]
        key, full = 1 + block * self._block + 1 + 2 * pair, np.ones(rows, np.int64)
        return assemble(
            Ragged(tokens.reshape(-1), full * self.max_length),
            {
                "key": key,
                "value": key + 1,
                "divider": full * (self.max_length - 5),
                "query": full * (self.max_length - 3),
                "answer": full * (self.max_length - 2),
            },
            candidates=values,
            num_pairs=blocks * pairs,
        ), rows

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the value after the queried key in the block of the queried context."""
        ids = [int(token) for token in input_ids]
        divider = ids.index(EOS)
        context, key = ids[divider + 1], ids[divider + 2]
        found = set()
        for start in range(1, divider, self._block):
            block = ids[start : start + self._block]
            if block[0] == context:
                pairs = zip(block[1::2], block[2::2], strict=True)
                found |= {value for listed, value in pairs if listed == key}
        return tuple(sorted(found))

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        documents = tokens.reshape(-1, self.max_length)
        rows = len(documents)
        blocks = documents[:, 1:-5].reshape(rows, self.config.num_blocks, self._block)
        same_context = blocks[:, :, :1] == documents[:, -4, None, None]
        matches = same_context & (blocks[:, :, 1::2] == documents[:, -3, None, None])
        return among(matches.reshape(rows, -1), blocks[:, :, 2::2].reshape(rows, -1), token)

    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy of guessing, and of recall by the key alone."""
        blocks = self.config.num_blocks
        return {
            "in_context_guess": 1 / (blocks * self.config.num_pairs),
            "ignores_context": 1 / blocks,
        }
