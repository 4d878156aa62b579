"""Figures of one Result, for the report, notebooks and loggers alike.

Each is a pure function of a Result and returns a plotly figure; one that the Result has nothing for
is None. Below the gate effects are drawn in grey.

Use:

    heat_map(result, "block_input").show()
    for name, figure in figures(result).items():
        ...
"""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from patchbench.report.estimates import add_line, chosen_run, words
from patchbench.report.palette import (
    DIVERGING,
    GREY,
    GREYED,
    SYMBOLS,
    axis,
    color,
    dash,
    label,
    layout,
)
from patchbench.report.reliability_figures import attribution_scatter, controls, strata
from patchbench.report.tokens import token_strip
from patchbench.sites import Position, Site, grid_site
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.results import Result

_MOST = 2.0
_TALL = 24


def figures(result: "Result") -> dict[str, go.Figure]:
    """Return every figure that the Result has something for, by a stable name."""
    found: dict[str, go.Figure | None] = {"example": token_strip(result)}
    for run in result.summary["runs"]:
        which = {"corruption": run["corruption"], "direction": run["direction"]}
        name = f"{run['corruption']}/{run['direction']}"
        for component in grid_components(result, **which):
            found[f"heat_map/{name}/{component}"] = heat_map(result, component, **which)
            found[f"profile/{name}/{component}"] = profile(result, component, **which)
        found[f"controls/{name}"] = controls(result, **which)
        found[f"strata/{name}"] = strata(result, **which)
        found[f"attribution/{name}"] = attribution_scatter(result, **which)
    return {name: figure for name, figure in found.items() if figure is not None}


def grid_components(result: "Result", corruption: str, direction: str) -> list[str]:
    """Return the components with effects by layer and position, in the order asked for."""
    chosen = result.rows.filter(
        (result.rows["corruption"].to_numpy() == corruption)
        & (result.rows["direction"].to_numpy() == direction)
        & result.rows["control"].is_null().to_numpy()
    )
    sites = map(grid_site, chosen["site"].unique().to_pylist())
    known = dict.fromkeys(site.component for site in sites if site is not None)
    asked = [name for name in result.config.get("components") or () if name in known]
    return list(dict.fromkeys([*asked, *known]))


def heat_map(
    result: "Result", component: str, *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure:
    """Return Attrib by layer (downwards) and position, with intervals in the hover.

    The scale is centred at 0 and reaches to 1 at least and to 2 at most; cells carry their number.
    Positions behind the read-out are placebos and grey.
    """
    run = chosen_run(result, corruption, direction)
    metric = run["primary"]
    every = result.table(component, corruption, direction, metric)
    layers = list(dict.fromkeys(layer for layer, _ in every))
    positions = list(dict.fromkeys(position for _, position in every))
    # A corruption that changes nothing has no ratio.
    table = {place: effect for place, effect in every.items() if isfinite(effect.value)}
    most = min(_MOST, max([1.0, *(abs(e.value) for e in table.values())]))
    q_values = {e["site"]: e.get("q_value") for e in run["effects"]}
    figure = go.Figure()
    for placebo in (False, True):
        shown = {place for place in table if _is_placebo(place[1]) == placebo}
        if not shown and (placebo or table):
            continue
        effects = [
            [table[at] if (at := (layer, p)) in shown else None for p in positions]
            for layer in layers
        ]
        figure.add_heatmap(
            x=[label(position) for position in positions],
            y=[_layer(layer) for layer in layers],
            z=[[None if e is None else e.value for e in row] for row in effects],
            text=[
                ["" if e is None else f"{round(e.value, 2) + 0.0:.2f}" for e in row]
                for row in effects
            ],
            texttemplate="%{text}",
            hovertext=[
                [
                    _hover(Site(layer, component, Position.parse(p)), effect, q_values)
                    for p, effect in zip(positions, row, strict=True)
                ]
                for layer, row in zip(layers, effects, strict=True)
            ],
            hoverinfo="text",
            hoverongaps=False,
            zmin=-most,
            zmax=most,
            colorscale=GREYED if run["reasons"] or placebo else DIVERGING,
            colorbar={"title": {"text": "Attrib"}, "tickvals": [-1, 0, 1], "thickness": 12},
            showscale=not placebo,
            xgap=1,
            ygap=1,
        )
    figure.update_layout(
        **layout(_title(f"{component} by layer and position", run, metric)),
        height=130 + (30 if len(layers) <= _TALL else 20) * max(3, len(layers)),
        # Where a page is narrower, the figure is scrolled.
        meta={"min_width": 150 + 36 * len(positions)},
        xaxis=axis("", type="category", categoryarray=[label(p) for p in positions]),
        yaxis=axis("layer", type="category", autorange="reversed"),
    )
    return figure


def profile(
    result: "Result", component: str, *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return Attrib over the layers, a line with its interval's band for each position.

    None for fewer than two layers.
    """
    run = chosen_run(result, corruption, direction)
    metric = run["primary"]
    table = result.table(component, corruption, direction, metric)
    layers = [layer for layer in dict.fromkeys(layer for layer, _ in table) if layer is not None]
    if len(layers) < 2:
        return None
    figure = go.Figure()
    for index, position in enumerate(dict.fromkeys(position for _, position in table)):
        line = {layer: table[layer, position] for layer in layers if (layer, position) in table}
        place = Position.parse(position)
        shade = GREY if run["reasons"] else color(place.role)
        add_line(
            figure,
            line,
            name=position,
            shade=shade,
            dash=dash(place.offset),
            symbol=SYMBOLS[index % len(SYMBOLS)],
            before="L",
        )
    first, last = min(layers), max(layers)
    span = last - first
    pad = 0.04 * span
    figure.add_hline(y=1, line={"color": GREY, "width": 1, "dash": "dot"})
    figure.update_layout(
        **layout(_title(f"{component} over the layers", run, metric)),
        height=380,
        xaxis=axis("layer", tick0=0, dtick=max(1, -(-span // 10)), range=[first - pad, last + pad]),
        yaxis=axis("Attrib"),
    )
    return figure


def _title(what: str, run: Mapping[str, Any], metric: str) -> str:
    by = ", by logit difference" if metric == "logit_diff" else ""
    gate = " (below the gate: grey)" if run["reasons"] else ""
    which = f"{run['corruption']} corrupted, {run['direction']}{by}{gate}"
    return f"Attrib of {label(what)}<br><sup>{which}</sup>"


def _is_placebo(position: str) -> bool:
    """Whether a position lies behind the read-out, where no patch can change it."""
    place = Position.parse(position)
    return place.role == "answer" and place.offset >= 0


def _layer(layer: int | None) -> str:
    return "–" if layer is None else f"L{layer}"


def _hover(site: Site, effect: Estimate | None, q_values: Mapping[str, float | None]) -> str:
    if effect is None:
        return f"{label(site)}<br>no value"
    q = q_values.get(str(site))
    return f"{label(site)}<br>{words(effect)}" + ("" if q is None else f"<br>q {q:.2g}")
