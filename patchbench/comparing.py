"""Results side by side: what each reached, and how much they differ, with intervals.

Use:

    comparison = compare(load_results(["runs/*", "sweep/"]), positions=("key", "value", "query"))
    comparison.rows[1].differences["accuracy"], comparison.warnings

Results on the same items (the same rows of the same dataset) are compared item by item: both are
resampled with the same draws, which leaves out what the items have in common. Others are taken as
independent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench.common import UserError, near_names
from patchbench.effects import columns, select
from patchbench.results import Result
from patchbench.sites import Position, single_site
from patchbench.statistics import RESAMPLES, Estimate, interval, ratio_draws
from patchbench.summary import run_of

ACCURACY = "accuracy"
POSITIONS = ("key", "value", "query")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One Result in a comparison.

    Attributes:
        name: of the run.
        model: its name.
        task: its name.
        layer: whose input the effects are of.
        accuracy: over the vocabulary.
        verdict: in words.
        attrib: by position; empty below the gate.
        differences: from the reference: "accuracy" and the positions that both have; empty for the
            reference itself.
        paired: whether they are item by item; None for the reference.
    """

    name: str
    model: str
    task: str
    layer: int
    accuracy: Estimate
    verdict: str
    attrib: Mapping[str, Estimate]
    differences: Mapping[str, Estimate] = field(default_factory=dict)
    paired: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        by = {
            name: {key: estimate.to_json() for key, estimate in getattr(self, name).items()}
            for name in ("attrib", "differences")
        }
        return plain | {"accuracy": self.accuracy.to_json()} | by


_PLAIN = ("name", "model", "task", "layer", "verdict", "paired")
_SHOWN = ("reference", "corruption", "component", "layer")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several Results side by side.

    Attributes:
        rows: the best accuracy first.
        reference: the name of the one that the differences are from.
        corruption: of the effects.
        component: of the effects.
        positions: of the effects.
        layer: of the effects; None for each model's middle one.
        warnings: in what the Results are not comparable.
    """

    rows: Sequence[ComparisonRow]
    reference: str
    corruption: str
    component: str
    positions: Sequence[str]
    layer: int | None = None
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        plain = {name: getattr(self, name) for name in _SHOWN}
        lists = {"positions": list(self.positions), "warnings": list(self.warnings)}
        return plain | lists | {"rows": [row.to_json() for row in self.rows]}


def compare(
    results: Mapping[str, Result],
    *,
    reference: str | None = None,
    corruption: str = "key",
    component: str = "block_input",
    positions: Sequence[str] = POSITIONS,
    layer: int | None = None,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Compare Results, denoised.

    Args:
        results: by name, at least two.
        reference: the one that the differences are from; by default the most accurate.
        corruption: of the effects.
        component: of the effects.
        positions: of the effects.
        layer: of the effects; by default each model's middle one.
        resamples: of the bootstrap.

    Raises:
        UserError: fewer than two, no such reference, or not one has the corruption, the component
            or the layer.
    """
    if len(results) < 2:
        raise UserError(f"{len(results)} Result to compare", "name at least two")
    positions = [str(Position.parse(position)) for position in positions]
    _check_component(results, component)
    check_layer(layer, (number for result in results.values() for number in layers_of(result)))
    lacking = [name for name, result in results.items() if not has_corruption(result, corruption)]
    check_corruption(corruption, len(lacking) < len(results))
    names = sorted(results, key=lambda name: -results[name].accuracy.value)
    reference = names[0] if reference is None else reference
    if reference not in results:
        raise UserError(f"there is no run {reference!r}", f"one of {', '.join(results)}")
    taken = {
        name: _Side(result, corruption, component, positions, layer)
        for name, result in results.items()
    }
    rows = []
    for name in names:
        differences, paired = {}, None
        if name != reference:
            paired = taken[name].items == taken[reference].items
            differences = _differences(taken[name], taken[reference], paired, resamples)
        rows.append(taken[name].row(name, differences, paired))
    warnings = _warnings(results)
    if lacking:
        warnings.append(f"without the {corruption} corrupted and denoised: {', '.join(lacking)}")
    nowhere = [p for p in positions if not any(p in side.attrib for side in taken.values())]
    if nowhere and any(is_above(result, corruption) for result in results.values()):
        warnings.append(f"no run has an Attrib of {component} at {', '.join(nowhere)}")
    return Comparison(
        rows=rows,
        reference=reference,
        corruption=corruption,
        component=component,
        positions=positions,
        layer=layer,
        warnings=warnings,
    )


class _Side:
    """What one Result brings into a comparison."""

    def __init__(
        self,
        result: Result,
        corruption: str,
        component: str,
        positions: Sequence[str],
        layer: int | None,
    ) -> None:
        self.result = result
        self.layer = middle_layer(result) if layer is None else layer
        measured = measured_rows(result)
        # One row of each example, by its number.
        numbers, first = np.unique(measured["example"].to_numpy(), return_index=True)
        self.correct = measured["correct"].to_numpy()[first].astype(float)
        # What Results on the same items have in common.
        self.items = (result.provenance["dataset"]["sha256"], numbers.tobytes())
        self.parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.parts[ACCURACY] = self.correct, np.ones_like(self.correct)
        effects = effects_at(result, self.layer, corruption=corruption, component=component)
        self.attrib = {p: effects[p] for p in positions if p in effects}
        sites = {p: f"L{self.layer}.{component}@{p}" for p in self.attrib}
        if sites:
            chosen = select(measured, corruption, "denoise")
            _, top, bottom = columns(chosen, sites=list(sites.values()))
            for index, position in enumerate(sites):
                self.parts[position] = top[:, index], bottom[:, index]

    def row(
        self, name: str, differences: Mapping[str, Estimate], paired: bool | None
    ) -> ComparisonRow:
        """Return its row."""
        return ComparisonRow(
            name=name,
            model=self.result.summary["model"]["name"],
            task=self.result.summary["task"]["name"],
            layer=self.layer,
            accuracy=self.result.accuracy,
            verdict=str(self.result.verdict),
            attrib=self.attrib,
            differences=differences,
            paired=paired,
        )


def _differences(one: _Side, reference: _Side, paired: bool, resamples: int) -> dict[str, Estimate]:
    """Return how much more one has than the reference, for what both have."""
    found = {}
    for name in [name for name in one.parts if name in reference.parts]:
        drawn, values, n = [], [], []
        for number, side in enumerate((one, reference)):
            top, bottom = (part[:, None] for part in side.parts[name])
            rng = np.random.default_rng(0 if paired else number)
            value, draws, count = ratio_draws(top, bottom, rng=rng, resamples=resamples)
            values.append(float(value[0]))
            drawn.append(draws)
            n.append(int(count[0]))
        low, high = interval(drawn[0] - drawn[1])[:, 0]
        found[name] = Estimate(values[0] - values[1], float(low), float(high), n=min(n))
    return found


def middle_layer(result: Result) -> int:
    """Return the measured layer that is nearest to the middle of the model: 1 of 2 layers.

    It is never layer 0, whose input has only met the embedding.
    """
    middle = max(1, (result.provenance["model"].get("num_layers") or 2) // 2)
    return min(
        layers_of(result) - {0}, key=lambda layer: (abs(layer - middle), layer), default=middle
    )


def effects_at(
    result: Result, layer: int, *, corruption: str = "key", component: str = "block_input"
) -> dict[str, Estimate]:
    """Return the denoised Attrib of a layer's component by position; {} below the gate."""
    run = run_of(result.summary["runs"], corruption, "denoise")
    start = f"L{layer}.{component}@"
    return {
        effect["site"].removeprefix(start): Estimate.from_json(effect["attrib"])
        for effect in (run["effects"] if run else ())
        if effect["site"].startswith(start) and single_site(effect["site"])
    }


def _check_component(results: Mapping[str, Result], component: str) -> None:
    """Raise `UserError` if not one Result has a component at all."""
    known = {
        name
        for result in results.values()
        for name in measured_rows(result)["component"].unique().to_pylist()
    }
    if component not in known:
        raise UserError(f"no run has the component {component!r}", near_names(component, known))


def check_layer(layer: int | None, known: Iterable[int]) -> None:
    """Raise `UserError` if a layer that is asked for was measured nowhere."""
    measured = sorted(set(known))
    if layer is not None and layer not in measured:
        raise UserError(f"no run has layer {layer}", f"measured: {', '.join(map(str, measured))}")


def check_corruption(corruption: str, known: bool) -> None:
    """Raise `UserError` if a corruption is known to no run."""
    if not known:
        raise UserError(
            f"no run has the {corruption} corrupted and denoised", "name another --corruption"
        )


def layers_of(result: Result) -> set[int]:
    """Return the layers that were measured, without those of the controls alone."""
    found = measured_rows(result)["layer"].unique().to_pylist()
    return {layer for layer in found if layer is not None}


def measured_rows(result: Result) -> pa.Table:
    """Return the rows that are of no control."""
    return result.rows.filter(pc.field("control").is_null())


def is_above(result: Result, corruption: str) -> bool:
    """Whether a Result has effects of a corruption to show."""
    run = run_of(result.summary["runs"], corruption, "denoise")
    return run is not None and not run["reasons"]


def has_corruption(result: Result, corruption: str) -> bool:
    """Return whether a Result has a corruption, denoised."""
    return run_of(result.summary["runs"], corruption, "denoise") is not None


def _warnings(results: Mapping[str, Result]) -> list[str]:
    """Return in what the Results differ that makes their numbers hard to compare."""
    asked = {
        "task": lambda r: r.summary["task"]["name"],
        "task's settings": lambda r: repr(sorted(r.provenance["task"]["config"].items())),
        "split": lambda r: r.summary["task"]["split"],
        "template": lambda r: r.summary["task"]["template"],
        "shots": lambda r: r.summary["task"]["shots"],
        "task's seed": lambda r: r.summary["task"]["seed"],
        "number of items": lambda r: r.summary["n"],
        "number of layers": lambda r: r.provenance["model"].get("num_layers"),
        "dtype": lambda r: r.summary["model"]["dtype"],
    }
    found = []
    for name, read in asked.items():
        values = {str(read(result)) for result in results.values()}
        if len(values) > 1:
            shown = f": {', '.join(sorted(values))}" if max(map(len, values)) < 24 else ""
            found.append(f"the runs differ in {name}{shown}")
    return found
