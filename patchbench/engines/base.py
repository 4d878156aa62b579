"""What an engine is, and the batches that it takes.

Use:

    for batch in make_batches(dataset, batch_size=32, corruptions=["key"]):
        rows = engine.run(loaded, interventions, batch)

A batch holds documents of one length, so that no model ever sees padding, and everything that the
rows say about an example. It knows nothing of PyTorch: engines differ in how they run a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from patchbench.common import UserError, near_names
from patchbench.interventions import CLEAN, Intervention
from patchbench.sites import Position

if TYPE_CHECKING:
    from datasets import Dataset

    from patchbench.adapters.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples of equal length, T tokens up to and with the answer.

    Attributes:
        index: (B,) row numbers in the dataset.
        clean: (B, T) token ids.
        corrupted: corruption → (B, T); the clean tokens where it could not be built.
        available: corruption → (B,) bool, whether it could.
        positions: role → (B,) index; −1 where an example lacks the role.
        answer: (B,) token ids; read out at `positions["answer"]` − 1.
        counterfactual: corruption → (B,) token ids, −1 where there is none.
        candidates: (B, C) token ids of the in-context answers, padded with −1.
        distance: (B,) tokens between key and value.
        heuristic: (B,) bool, whether a heuristic of the task gets the answer without the rule.
        windows: role → (B, 2), its first token and the one behind its last. If given, measurements
            (not controls) of a position are limited to the examples that have it in its role's.
    """

    index: np.ndarray
    clean: np.ndarray
    corrupted: Mapping[str, np.ndarray]
    available: Mapping[str, np.ndarray]
    positions: Mapping[str, np.ndarray]
    answer: np.ndarray
    counterfactual: Mapping[str, np.ndarray]
    candidates: np.ndarray
    distance: np.ndarray
    heuristic: np.ndarray
    windows: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def length(self) -> int:
        """Tokens of each document."""
        return self.clean.shape[1]

    @property
    def read_out(self) -> np.ndarray:
        """Where each prediction is read: (B,), the token before the answer."""
        return self.positions["answer"] - 1

    def tokens(self, run: str) -> np.ndarray:
        """Return the token ids of "clean" or of a corruption: (B, T).

        Raises:
            UserError: the batch has no such corruption.
        """
        if run == CLEAN:
            return self.clean
        if run not in self.corrupted:
            raise UserError(f"the batch has no corruption {run!r}", near_names(run, self.corrupted))
        return self.corrupted[run]

    def locate(self, position: Position) -> np.ndarray:
        """Return where `position` is in each example: (B,), −1 where it has no such token.

        Raises:
            UserError: no example has the role.
        """
        if position.role not in self.positions:
            raise UserError(
                f"unknown role {position.role!r}", near_names(position.role, self.positions)
            )
        role = self.positions[position.role]
        index = role + position.offset
        return np.where((role >= 0) & (index >= 0) & (index < self.length), index, -1)

    def usable(self, intervention: Intervention) -> np.ndarray:
        """Return which examples have the corruption and all positions: (B,) bool.

        Raises:
            UserError: an unknown corruption or role.
        """
        self.tokens(intervention.corruption)
        usable = np.asarray(self.available[intervention.corruption], bool)
        for site in {*intervention.sites, *intervention.donors}:
            usable = usable & (self.locate(site.position) >= 0)
        if self.windows and intervention.control is None:
            for site in intervention.sites:
                index = self.locate(site.position)
                begin, end = self.windows[site.position.role].T
                usable = usable & (begin <= index) & (index < end)
        return usable

    def select(self, rows: slice) -> "Batch":
        """Return some of the examples."""
        parts = {}
        for item in fields(self):
            value = getattr(self, item.name)
            parts[item.name] = (
                {name: column[rows] for name, column in value.items()}
                if isinstance(value, Mapping)
                else value[rows]
            )
        return Batch(**parts)


@dataclass(kw_only=True)
class Counters:
    """What an engine did so far.

    Attributes:
        forwards: calls of the model.
        forward_rows: documents in them.
        skipped: intervention → examples without a row, for want of the position or corruption.
        notes: what the user should know.
    """

    forwards: int = 0
    forward_rows: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def count(self, forwards: int, *, rows: int) -> None:
        """Count calls of the model with `rows` documents each."""
        self.forwards += forwards
        self.forward_rows += forwards * rows

    def skip(self, intervention: Intervention, count: int) -> None:
        """Count examples for which `intervention` is not defined."""
        if count:
            what = intervention.label
            if intervention.control is not None:  # whose donors have names of their own
                what = f"{intervention.control} at {intervention.sites[0]}"
            label = f"{what} ({intervention.corruption})"
            self.skipped[label] = self.skipped.get(label, 0) + count


class Engine(Protocol):
    """Runs interventions; every engine returns the same numbers.

    Attributes:
        name: as registered.
        counters: what it did since it was made.
    """

    name: str
    counters: Counters

    def run(
        self, loaded: "LoadedModel", interventions: Sequence[Intervention], batch: Batch
    ) -> pa.Table:
        """Return one row per intervention and example, of `patchbench.results.ROW_SCHEMA`.

        An example that lacks the position or the corruption gets no row and is counted. The model
        is left as it was: mode, gradients, and every hook that the engine did not place.

        Raises:
            UserError: an unknown role, corruption or site, or a site that does not fire.
        """
        ...

    def state(self, loaded: "LoadedModel") -> dict[str, Any]:
        """Return what was settled about a model and changes rounding, ready for JSON."""
        ...

    def restore(self, loaded: "LoadedModel", state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned in another process."""
        ...


def make_batches(dataset: "Dataset", batch_size: int, corruptions: Sequence[str]) -> list[Batch]:
    """Return the dataset as batches of equal length, the shortest first.

    Documents end with the answer: what follows it cannot matter to a causal model. The answer
    itself stays, as a place where a patch must do nothing.

    Raises:
        UserError: a corruption that the dataset lacks, or one of another length than its document.
    """
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size}", "at least 1 is needed")
    rows: list[Any] = list(dataset)
    buckets: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        _check(number, row, corruptions)
        buckets.setdefault(row["roles"]["answer"] + 1, []).append(number)
    return [
        _batch(rows, numbers[start : start + batch_size], length, corruptions)
        for length, numbers in sorted(buckets.items())
        for start in range(0, len(numbers), batch_size)
    ]


def _check(number: int, row: dict, corruptions: Sequence[str]) -> None:
    for name in corruptions:
        if name not in row["corruptions"]:
            raise UserError(
                f"the dataset has no corruption {name!r}", near_names(name, row["corruptions"])
            )
        corrupted = row["corruptions"][name]["input_ids"]
        if corrupted and len(corrupted) != len(row["input_ids"]):
            raise UserError(
                f"example {number}: the {name} corruption has {len(corrupted)} tokens, the "
                f"document {len(row['input_ids'])} ({corrupted} against {row['input_ids']})",
                "positions would not correspond; make them equally long",
            )


def _batch(rows: list[dict], numbers: list[int], length: int, corruptions: Sequence[str]) -> Batch:
    chosen = [rows[number] for number in numbers]
    twins = {name: [row["corruptions"][name] for row in chosen] for name in corruptions}
    metadata = [row["metadata"] for row in chosen]
    most = max(len(row["candidates"]) for row in chosen)
    candidates = np.full((len(chosen), most), -1, np.int64)
    for line, row in zip(candidates, chosen, strict=True):
        line[: len(row["candidates"])] = row["candidates"]
    return Batch(
        index=_integers(numbers),
        clean=_integers([row["input_ids"][:length] for row in chosen]),
        corrupted={
            name: _integers(
                [
                    (twin["input_ids"] or row["input_ids"])[:length]
                    for twin, row in zip(pairs, chosen, strict=True)
                ]
            )
            for name, pairs in twins.items()
        },
        available={
            name: np.array([bool(twin["input_ids"]) for twin in pairs])
            for name, pairs in twins.items()
        },
        positions={
            role: _integers([row["roles"][role] for row in chosen]) for role in chosen[0]["roles"]
        },
        answer=_integers([row["answer"] for row in chosen]),
        counterfactual={
            name: _integers([twin["answer"] for twin in pairs]) for name, pairs in twins.items()
        },
        candidates=candidates,
        distance=_integers([item["distance"] for item in metadata]),
        # A task without trees has no shortcut: copying the token behind the key is its rule.
        heuristic=np.array(
            [
                item["depth"] > 0 and (item["answer_is_next_token"] or item["answer_is_rightmost"])
                for item in metadata
            ]
        ),
    )


def _integers(values: Sequence) -> np.ndarray:
    return np.asarray(values, np.int64)
