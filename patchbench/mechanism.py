"""From effects to a label: which mechanism the rows show, decided on interval bounds.

Use:

    verdict = decide(rows, run, model=provenance["model"])     # run: of a Result's summary
    verdict.label, verdict.sites, verdict.sentence

A site *carries* the effect where its Attrib is above a half at the lower end of the interval and it
is among the discoveries of the grid; it *does not* where the upper end is below it. Anything
between is undecided, and then there is no label. With the key corrupted, and the residual stream
entering each layer but the first as `boundary`:

| label                    | what the rows must show                                             |
|--------------------------|---------------------------------------------------------------------|
| induction                | at some boundary the value (or a token behind it) carries, and      |
|                          | neither the key nor the query does                                  |
| conv-bound induction     | no value carries at any boundary; a short convolution's output      |
|                          | carries behind the value, or at it with the value corrupted as well |
| direct retrieval, early  | no value carries; at every boundary the key or the query does, and  |
|                          | the query from the first half of the layers on                      |
| direct retrieval, late   | likewise, the query only in the second half or behind the last layer |
| distributed              | at some boundary no position carries, and all together do           |
| not solved               | accuracy is not above the task's floor                              |

At the value itself the convolution's output holds the value in any case, and with the key corrupted
shows only that the key has come there: rows with the value corrupted tell whether the convolution
joins the two or shifts the key into a memory that does. A corruption of the value or a swap changes
the very token that is fetched; that it carries the effect shows no association, so only the layer
of its arrival is given.

The two kinds of retrieval and `distributed` say that nothing binds before, and are not given to a
model whose short convolutions were not looked at, at the value and two tokens behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import pyarrow as pa

from patchbench.grid import HALF, Grid, place, unseen_convolutions
from patchbench.sites import Site
from patchbench.soft_controls import carrying
from patchbench.statistics import RESAMPLES, Estimate

LABELS = (
    "induction",
    "conv-bound induction",
    "direct retrieval, early",
    "direct retrieval, late",
    "distributed",
)
NOT_SOLVED = "not solved"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one corruption and direction show.

    Attributes:
        label: one of `LABELS`, `NOT_SOLVED`, or None where the rows decide for none.
        sentence: what they show, in one sentence.
        metric: that the effects are of.
        sites: those that decided it, with their Attrib.
        appears: the layer that the association enters at the value, None if none was seen.
        arrives: the layer that the answer enters at the query; the number of layers if only behind
            the last.
        generalises: what held-out pairs add to it; empty if nothing.
    """

    label: str | None
    sentence: str
    corruption: str
    direction: str
    metric: str = "p"
    sites: Mapping[str, Estimate]
    appears: Estimate | None = None
    arrives: Estimate | None = None
    generalises: str = ""

    def __str__(self) -> str:
        return self.label or "no verdict"

    @property
    def is_mechanism(self) -> bool:
        """Whether it names a mechanism."""
        return self.label in LABELS

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        data = {name: getattr(self, name) for name in _PLAIN}
        for name in ("appears", "arrives"):
            value = getattr(self, name)
            data[name] = value and value.to_json()
        return data | {"sites": {name: value.to_json() for name, value in self.sites.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Verdict":
        """Undo `to_json`."""
        values: dict[str, Any] = {name: data[name] for name in _PLAIN}
        for name in ("appears", "arrives"):
            values[name] = data[name] and Estimate.from_json(data[name])
        values["sites"] = {name: Estimate.from_json(value) for name, value in data["sites"].items()}
        return cls(**values)


# What a short convolution that nobody looked at would be taken for.
_WITHOUT_BINDING = ("direct retrieval, early", "direct retrieval, late", "distributed")

_PLAIN = ("label", "sentence", "corruption", "direction", "metric", "generalises")


def decide(
    rows: pa.Table,
    run: Mapping[str, Any],
    *,
    model: Mapping[str, Any],
    solved: bool = True,
    with_value: Mapping[str, Any] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Verdict:
    """Return what one run shows.

    Args:
        rows: of `patchbench.effects.ROW_SCHEMA`.
        run: one of a summary's `runs`.
        model: its provenance; `num_layers` and `components` are read.
        solved: whether the accuracy is above the floor.
        with_value: the run of the same direction with the value corrupted, if there is one.
        seed: of the bootstrap.
        resamples: of the bootstrap.
    """
    from patchbench import wording

    blank = Verdict(
        label=None, sentence="", corruption=run["corruption"], direction=run["direction"], sites={}
    )
    if run["reasons"]:
        label = None if solved else NOT_SOLVED
        return replace(blank, label=label, sentence=wording.below_the_gate(run))
    layers = [Site.parse(e["site"].split(" ")[-1]).layer or 0 for e in run["effects"]]
    num_layers = model.get("num_layers") or max(layers) + 1
    grid = Grid.of(rows, run, num_layers=num_layers, seed=seed, resamples=resamples)
    arrives = grid.first_layer("query", default=num_layers)
    blank = replace(blank, metric=grid.metric, arrives=arrives)
    if run["corruption"] != "key":
        return replace(blank, sentence=wording.only_arrival(grid, blank))
    label, deciding, why = _label(grid, arrives, with_value)
    if label in _WITHOUT_BINDING and (unseen := unseen_convolutions(grid, model)):
        label, why = None, f"{unseen}, and may bind the pair"
    if against := carrying(run.get("soft_controls", ())):
        name, site = against[0]["control"], against[0]["site"]
        label, deciding, why = None, [], f"the control {name!r} at {site} carries more than half"
    appears = grid.first_layer("value", default=None)
    verdict = replace(
        blank,
        label=label,
        appears=appears if label in ("induction", "conv-bound induction") else None,
        sites={str(grid.sites[i]): grid.effects[i] for i in deciding},
    )
    return replace(verdict, sentence=wording.sentence(verdict, grid, run, model=model, why=why))


def _label(
    grid: Grid, arrives: Estimate | None, with_value: Mapping[str, Any] | None
) -> tuple[str | None, list[int], str]:
    """Return the label, the deciding sites, and why there is no label."""
    boundaries = grid.boundaries()
    if not boundaries and grid.num_layers > 1:
        return None, [], "the residual stream between the layers was not looked at"
    every = [index for at in boundaries.values() for index in at]
    values = [index for index in every if place(grid.sites[index]) == "value"]
    joined = _joined(grid, with_value)
    stored = [index for index in values if grid.carries(index)]
    # Where the key or the query carries as much, the value is not the way that it takes.
    against = {layer: _not_alone(grid, at) for layer, at in boundaries.items()}
    alone = [index for index in stored if against[grid.boundary(index) or 0] is None]
    if stored and not alone:
        best = _strongest(grid, stored)
        rival, why = against[grid.boundary(best) or 0] or (None, "")
        return None, [best] if rival is None else [best, rival], f"{grid.sites[best]} and {why}"
    stored = alone
    if at_value := [index for index in stored if grid.sites[index].position.offset == 0]:
        return "induction", [_strongest(grid, at_value)], ""
    if stored:
        best = _strongest(grid, stored)
        earlier = [i for i in joined if (grid.sites[i].layer or 0) < (grid.boundary(best) or 0)]
        if earlier:
            return "conv-bound induction", [_strongest(grid, earlier), best], ""
        return "induction", [best], ""
    if unsure := [index for index in values if not grid.lacks(index)]:
        return None, unsure[:1], _unsure(grid, unsure[0])
    missing = [
        layer
        for layer, at in boundaries.items()
        if not any(str(grid.sites[index].position) == "value" for index in at)
    ]
    if missing:
        return None, [], f"the value was not looked at entering layer {missing[0]}"
    if joined:
        most = [max(values, key=lambda index: grid.effects[index].value)] if values else []
        return "conv-bound induction", [_strongest(grid, joined), *most], ""
    return _retrieval(grid, boundaries, arrives)


def _not_alone(grid: Grid, at: Sequence[int]) -> tuple[int | None, str] | None:
    """Return what keeps the value of a boundary from being the way: a site, and why; or None.

    The key and the query must both lack the effect: where one of them carries it too, there are two
    ways that each suffice, and where one is undecided or was not looked at there may be.
    """
    for kind in ("key", "query"):
        mine = [index for index in at if place(grid.sites[index]) == kind]
        if not mine:
            return None, f"the {kind} may both carry it: the {kind} was not looked at there"
        for index in mine:
            if grid.carries(index):
                both = "each carry more than half, as two ways that each suffice do"
                return index, f"{grid.sites[index]} {both}"
            if not grid.lacks(index):
                return index, f"{grid.sites[index]} may both carry it: {_unsure(grid, index)}"
    return None


def _unsure(grid: Grid, index: int) -> str:
    if isnan(grid.effects[index].low):
        return f"{grid.sites[index]} has no interval"
    if grid.effects[index].low > HALF:
        return f"{grid.sites[index]} is above a half, and no discovery of the grid"
    return f"the interval at {grid.sites[index]} includes a half"


def _joined(grid: Grid, with_value: Mapping[str, Any] | None) -> list[int]:
    """Return the convolutions' outputs that hold key and value: see the module."""
    also = {}
    if with_value is not None:
        name = "attrib_logit_diff" if with_value["primary"] == "logit_diff" else "attrib"
        also = {e["site"]: Estimate.from_json(e[name]) for e in with_value["effects"]}
    found = []
    for index, site in enumerate(grid.sites):
        if site.component != "conv_output" or place(site) != "value" or not grid.carries(index):
            continue
        too = also.get(str(site))
        if site.position.offset > 0 or (too is not None and too.low > HALF):
            found.append(index)
    return found


def _retrieval(
    grid: Grid, boundaries: Mapping[int, list[int]], arrives: Estimate | None
) -> tuple[str | None, list[int], str]:
    """Return the label where nothing is stored at the value: see `_label`."""
    deciding = []
    for layer, at in boundaries.items():
        carrying = [index for index in at if grid.carries(index)]
        ends = [index for index in carrying if place(grid.sites[index]) in ("key", "query")]
        if ends:
            deciding.append(_strongest(grid, ends))
            continue
        if carrying:
            site = grid.sites[_strongest(grid, carrying)]
            return None, carrying[:1], f"{site} carries it, which is neither key, value nor query"
        if unsure := [index for index in at if not grid.lacks(index)]:
            return None, unsure[:1], _unsure(grid, unsure[0])
        places = {place(grid.sites[index]) for index in at}
        if missing := {"key", "query"} - places:
            return None, [], f"the {min(missing)} was not looked at entering layer {layer}"
        parts = [index for index in at if grid.found[index] and grid.effects[index].low > 0]
        if parts and grid.together(parts).low > HALF:
            return "distributed", sorted(parts, key=lambda i: -grid.effects[i].value), ""
        total = grid.together(at)
        return (
            None,
            [],
            (
                f"entering layer {layer} the positions looked at carry {total} together, and the "
                "rest is elsewhere"
            ),
        )
    if not boundaries:  # a single layer
        start = [i for i, site in enumerate(grid.sites) if place(site) == "key" and site.layer == 0]
        start = [i for i in start if grid.carries(i)]
        if not start:
            return None, [], "the residual stream entering the only layer was not looked at"
        return "direct retrieval, early", [_strongest(grid, start)], ""
    return _early_or_late(grid, list(boundaries), arrives, deciding)


def _early_or_late(
    grid: Grid, layers: Sequence[int], arrives: Estimate | None, deciding: list[int]
) -> tuple[str | None, list[int], str]:
    if arrives is None:
        return None, [], "the query was not looked at"
    # Layers that were not looked at may have fetched it: from the one behind the last that had not.
    looked = (0, *layers, grid.num_layers)
    before = max(layer for layer in looked if layer < arrives.low)
    first, last = before, int(arrives.high) - 1  # layers that may fetch it
    halves = {2 * layer < grid.num_layers for layer in (first, last)}
    if len(halves) > 1:
        return None, [], f"between layer {first} and {last}, early or late is not decided"
    early = halves.pop()
    kind = "query" if early else "key"
    shown = [index for index in deciding if place(grid.sites[index]) == kind] or deciding
    return (
        f"direct retrieval, {'early' if early else 'late'}",
        shown[:1] if early else shown[-1:],
        "",
    )


def _strongest(grid: Grid, indices: Sequence[int]) -> int:
    return max(indices, key=lambda index: grid.effects[index].low)
