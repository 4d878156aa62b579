"""A task: recall by key where something stands between key and value.

    BOS k1 x v1  k2 x v2 … EOS k2 v2 EOS

Use:

    pb.load_task("spaced_recall/wide", num_pairs=3)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from patchbench.tasks import Task, Variant
from patchbench.tasks.assembly import among, assemble, check_spare, chunk_rows
from patchbench.tasks.base import BOS, EOS, FIRST_SYMBOL
from patchbench.tasks.ragged import Ragged
from patchbench.tasks.sampling import draw_distinct


@dataclass(frozen=True, kw_only=True)
class SpacedRecallConfig:
    """Settings of spaced recall.

    Attributes:
        num_pairs: in the list.
        num_keys: different keys, and as many values.
        gap: fillers between a key and its value.
    """

    num_pairs: int = 4
    num_keys: int = 16
    gap: int = 1

    def __post_init__(self) -> None:
        check_spare(num_keys=(self.num_pairs, self.num_keys))


class SpacedRecall(Task):
    """Spaced recall of one config and seed."""

    Config = SpacedRecallConfig
    variants: ClassVar[Mapping[str, Variant]] = {
        "": Variant("recall by key with a filler between key and value"),
        "wide": Variant("recall by key with four fillers between", {"gap": 4}),
    }
    source: ClassVar = "A test."

    @cached_property
    def symbols(self):
        """`<pad> <bos> <eos> k0 … v0 … <filler>`."""
        size = self.config.num_keys
        names = [f"{letter}{i}" for letter in "kv" for i in range(size)]
        return ["<pad>", "<bos>", "<eos>", *names, "<filler>"]

    @cached_property
    def kinds(self):
        """Special, key, value and filler tokens."""
        keys = range(FIRST_SYMBOL, FIRST_SYMBOL + self.config.num_keys)
        values = range(keys.stop, keys.stop + self.config.num_keys)
        return {"special": (0, 1, 2), "key": keys, "value": values, "filler": (values.stop,)}

    @property
    def _entry(self):
        return self.config.gap + 2

    @property
    def max_length(self):
        """The length of every document."""
        return self.config.num_pairs * self._entry + 5

    def draw(self, rng, split):
        """Draw one chunk."""
        pairs, rows = self.config.num_pairs, chunk_rows(self.max_length)
        drawn = [
            draw_distinct(rng, rows=rows, count=pairs, size=self.config.num_keys)
            + self.kinds[kind][0]
            for kind in ("key", "value")
        ]
        listed = np.full((rows, pairs, self._entry), self.kinds["filler"][0], np.int32)
        listed[:, :, 0], listed[:, :, -1] = drawn
        asked, row = rng.integers(pairs, size=rows), np.arange(rows)
        tokens = np.full((rows, self.max_length), EOS, np.int32)
        tokens[:, 0], tokens[:, 1:-4] = BOS, listed.reshape(rows, -1)
        tokens[:, -3], tokens[:, -2] = drawn[0][row, asked], drawn[1][row, asked]
        key, full = 1 + asked * self._entry, np.ones(rows, np.int64)
        return assemble(
            Ragged(tokens.reshape(-1), full * self.max_length),
            {
                "key": key,
                "value": key + self._entry - 1,
                "divider": full * (self.max_length - 4),
                "query": full * (self.max_length - 3),
                "answer": full * (self.max_length - 2),
            },
            candidates=drawn[1],
            num_pairs=pairs,
        ), rows

    def solve(self, input_ids, parents=()):
        """Return the value that stands `gap + 1` after the query's occurrence in the list."""
        divider = list(input_ids).index(EOS)
        listed, query = list(input_ids[1:divider]), input_ids[divider + 1]
        if query not in listed:
            return ()
        return (int(listed[listed.index(query) + self._entry - 1]),)

    def derive(self, tokens, examples, token):
        """Apply the rule to many documents."""
        documents = tokens.reshape(-1, self.max_length)
        listed = documents[:, 1:-4].reshape(len(documents), -1, self._entry)
        return among(listed[:, :, 0] == documents[:, -3:-2], listed[:, :, -1], token)

    def heuristic_floor(self, dataset):
        """Return the accuracy of guessing among the values of the list."""
        return {"in_context_guess": 1 / self.config.num_pairs}
