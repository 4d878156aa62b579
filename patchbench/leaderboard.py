"""All Results below some folders as one table, the same whichever way the folders are merged.

Use:

    board = leaderboard(["runs/"])
    board.entries[0].model, board.entries[0].accuracy, board.warnings

A Result that is found twice counts once: what tells two apart is what they say (settings, origin,
numbers), never where they lie. The order depends on nothing else either, so a page made again from
the same Results is the same page.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from patchbench.common import UserError
from patchbench.comparing import (
    POSITIONS,
    check_corruption,
    check_layer,
    effects_at,
    has_corruption,
    is_above,
    layers_of,
    middle_layer,
)
from patchbench.finding import find_results
from patchbench.results import Result
from patchbench.sites import Position
from patchbench.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One Result.

    Attributes:
        id: a digest of what it says.
        model: its name.
        parameters: their number.
        task: its name.
        seed: of the task.
        n: items.
        accuracy: over the vocabulary.
        verdict: in words.
        layer: whose input the effects are of.
        attrib: by position; empty below the gate.
        date: when it was made, in UTC: 2026-12-02.
        version: of patchbench.
    """

    id: str
    model: str
    parameters: int
    task: str
    seed: int
    n: int
    accuracy: Estimate
    verdict: str
    layer: int
    attrib: dict[str, Estimate]
    date: str
    version: str

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        by = {position: estimate.to_json() for position, estimate in self.attrib.items()}
        return asdict(self) | {"accuracy": self.accuracy.to_json(), "attrib": by}


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The entries, by task and the best accuracy first, and what could not be read.

    Attributes:
        entries: each Result once.
        positions: of the effects.
        corruption: of the effects.
        warnings: a line for each damaged Result, and for positions that none has.
    """

    entries: Sequence[Entry]
    positions: Sequence[str]
    corruption: str
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            "corruption": self.corruption,
            "positions": list(self.positions),
            "entries": [entry.to_json() for entry in self.entries],
        }


def leaderboard(
    folders: Sequence[str | Path],
    *,
    corruption: str = "key",
    positions: Sequence[str] = POSITIONS,
    layer: int | None = None,
) -> Leaderboard:
    """Collect the Results below `folders`.

    Args:
        folders: of Results, or with some at any depth, or globs.
        corruption: of the effects, which are denoised.
        positions: of the effects, which are of `block_input`.
        layer: of the effects; by default each model's middle one.

    Raises:
        UserError: one of the folders holds no Result, all Results are damaged, or none has the
            corruption or the layer.
    """
    positions = [str(Position.parse(position)) for position in positions]
    entries: dict[str, Entry] = {}
    warnings, layers, known, above = [], set(), False, False
    for path in find_results([str(folder) for folder in folders]).values():
        try:
            result = Result.load(path)
            entry = _entry(result, corruption, positions, layer)
        except UserError as error:
            warnings.append(f"left out: {error}")
            continue
        entries[entry.id] = entry
        layers |= layers_of(result)
        known |= has_corruption(result, corruption)
        above |= is_above(result, corruption)
    if not entries:
        raise UserError("no Result can be read", warnings[0].removeprefix("left out: "))
    check_corruption(corruption, known)
    check_layer(layer, layers)
    found = {position for entry in entries.values() for position in entry.attrib}
    if above and (nowhere := [position for position in positions if position not in found]):
        warnings.append(f"no Result has an Attrib of block_input at {', '.join(nowhere)}")
    ordered = sorted(entries.values(), key=lambda e: (e.task, -e.accuracy.value, e.model, e.id))
    return Leaderboard(
        entries=ordered, positions=tuple(positions), corruption=corruption, warnings=warnings
    )


def _entry(result: Result, corruption: str, positions: Sequence[str], layer: int | None) -> Entry:
    summary, provenance = result.summary, result.provenance
    at = middle_layer(result) if layer is None else layer
    effects = effects_at(result, at, corruption=corruption)
    says = json.dumps([result.config, provenance, summary], sort_keys=True)
    return Entry(
        id=hashlib.sha256(says.encode()).hexdigest()[:16],
        model=summary["model"]["name"],
        parameters=summary["model"]["num_parameters"],
        task=summary["task"]["name"],
        seed=summary["task"]["seed"],
        n=summary["n"],
        accuracy=result.accuracy,
        verdict=str(result.verdict),
        layer=at,
        attrib={position: effects[position] for position in positions if position in effects},
        date=str(provenance.get("created") or "")[:10],
        version=str(provenance.get("patchbench") or ""),
    )
