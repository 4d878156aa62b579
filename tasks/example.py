"""The row that every task makes: tokens, roles, the answer, and three corrupted twins.

| column      | type                         | meaning                                         |
|-------------|------------------------------|-------------------------------------------------|
| input_ids   | list<int32>                  | the whole document, the answer included         |
| labels      | list<int32>                  | −100, but for what is to be learnt (not shifted) |
| roles       | struct of int32              | where bos, key, value, divider, query, answer are |
| answer      | int32                        | token id; it is read out at `roles.answer` − 1  |
| candidates  | list<int32>                  | the answers that stand in the context           |
| corruptions | struct of {input_ids, answer} | key, value, swap: equal length, equal roles    |
| metadata    | struct                       | see `METADATA`                                  |

A corruption's `answer` is what the task's rule gives on the corrupted context, −1 if it gives
nothing definite; a corruption that could not be built has `input_ids` [] and `answer` −1.

The answer is always to be learnt; a task with many queries in a document labels all of them.

A task builds many rows at once as `Examples`, whose columns are NumPy arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from patchbench.tasks.ragged import Ragged

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

ROLES = ("bos", "key", "value", "divider", "query", "answer")
CORRUPTIONS = ("key", "value", "swap")
IGNORED = -100

# What the metadata say of a row.
METADATA: Mapping[str, str] = {
    "query_kind": "string",  # what is asked: "key", "value"; "parent", "child", "sibling"
    "distance": "int32",  # |value − key| in tokens
    "depth": "int32",  # nonterminals on the tree's longest path; 0 without a tree
    "answer_is_next_token": "bool",  # "copy the token after the query's occurrence" is right
    "answer_is_rightmost": "bool",  # "copy the context's last token" is right
    "num_pairs": "int32",  # pairs that could have been asked
    "num_answers": "int32",  # different tokens that the rule accepts
}


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """One corrupted twin of each example.

    Attributes:
        tokens: flat, in the shape of the clean tokens; where the twin could not be built, whatever.
        exists: whether it could be built: (rows,).
        answer: the counterfactual answer or −1: (rows,).
    """

    tokens: np.ndarray
    exists: np.ndarray
    answer: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Many rows as columns.

    Attributes:
        tokens: the documents.
        parents: of each token the position of its parent, −1 without one; empty rows if the task
            has no trees.
        roles: role → (rows,) positions.
        candidates: the answers in each context.
        corruptions: name → corrupted twins; empty while the corruptions are not yet built.
        metadata: column → (rows,), the columns of `METADATA`.
        kinds: the words behind `metadata["query_kind"]`, which holds their indices.
        labels: of each token, flat; None labels the answer alone.
    """

    tokens: Ragged
    parents: Ragged
    roles: Mapping[str, np.ndarray]
    candidates: Ragged
    corruptions: Mapping[str, Corruption]
    metadata: Mapping[str, np.ndarray]
    kinds: tuple[str, ...]
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answer(self) -> np.ndarray:
        """The answers: (rows,)."""
        return self.tokens.at(self.roles["answer"])

    @property
    def query(self) -> np.ndarray:
        """The queried tokens: (rows,)."""
        return self.tokens.at(self.roles["query"])

    @cached_property
    def in_context(self) -> np.ndarray:
        """Whether each token is a symbol of the context, between `bos` and `divider`."""
        first, length = self.roles["bos"] + 1, self.roles["divider"] - self.roles["bos"] - 1
        # +1 where a context starts, −1 where it ends, summed along the flat array.
        edges = np.zeros(len(self.tokens.values) + 1, np.int8)
        edges[self.tokens.starts + first] = 1
        edges[self.tokens.starts + first + length] = -1
        return np.cumsum(edges[:-1], dtype=np.int8).view(bool)

    def select(self, mask: np.ndarray) -> "Examples":
        """Return the rows where `mask` is true."""
        if mask.all():
            return self
        flat = np.repeat(mask, self.tokens.lengths)
        tokens = Ragged(self.tokens.values[flat], self.tokens.lengths[mask])
        has_trees = len(self.parents.values) > 0
        return replace(
            self,
            tokens=tokens,
            parents=tokens.with_values(self.parents.values[flat])
            if has_trees
            else self.parents.select(mask),
            roles={name: column[mask] for name, column in self.roles.items()},
            candidates=self.candidates.select(mask),
            corruptions={
                name: Corruption(
                    tokens=c.tokens[flat], exists=c.exists[mask], answer=c.answer[mask]
                )
                for name, c in self.corruptions.items()
            },
            metadata={name: column[mask] for name, column in self.metadata.items()},
            labels=None if self.labels is None else self.labels[flat],
        )

    def to_arrow(self) -> "pa.Table":
        """Return the rows as an Arrow table of the schema above."""
        import pyarrow as pa

        def integers(column: np.ndarray) -> pa.Array:
            return pa.array(column.astype(np.int32))

        def struct(columns: Mapping[str, pa.Array]) -> pa.StructArray:
            return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))

        labels = self.labels
        if labels is None:
            labels = np.full(len(self.tokens.values), IGNORED, np.int32)
            labels[self.tokens.starts + self.roles["answer"]] = self.answer
        kind = pa.DictionaryArray.from_arrays(
            integers(self.metadata["query_kind"]), pa.array(self.kinds)
        )
        metadata: dict[str, pa.Array] = {"query_kind": kind.dictionary_decode()}
        for name, dtype in list(METADATA.items())[1:]:
            column = self.metadata[name]
            metadata[name] = pa.array(column) if dtype == "bool" else integers(column)
        metadata["parents"] = self.parents.to_arrow()
        return pa.table(
            {
                "input_ids": self.tokens.to_arrow(),
                "labels": self.tokens.with_values(labels).to_arrow(),
                "roles": struct({role: integers(self.roles[role]) for role in ROLES}),
                "answer": integers(self.answer),
                "candidates": self.candidates.to_arrow(),
                "corruptions": struct(
                    {
                        name: struct(
                            {
                                "input_ids": self.tokens.with_values(c.tokens)
                                .emptied(c.exists)
                                .to_arrow(),
                                "answer": integers(c.answer),
                            }
                        )
                        for name, c in self.corruptions.items()
                    }
                ),
                "metadata": struct(metadata),
            }
        )


def features() -> "datasets.Features":
    """Return the schema of every task's rows."""
    from datasets import Features, List, Value

    def tokens() -> List:
        return List(Value("int32"))

    return Features(
        {
            "input_ids": tokens(),
            "labels": tokens(),
            "roles": {role: Value("int32") for role in ROLES},
            "answer": Value("int32"),
            "candidates": tokens(),
            "corruptions": {
                name: {"input_ids": tokens(), "answer": Value("int32")} for name in CORRUPTIONS
            },
            "metadata": {
                **{name: Value(dtype) for name, dtype in METADATA.items()},
                "parents": tokens(),
            },
        }
    )
