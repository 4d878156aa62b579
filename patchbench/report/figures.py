"""Figures of one Result, for the report, notebooks and loggers alike.

Each is a pure function of a Result and returns a plotly figure; one that the Result has nothing for
is None. Below the gate effects are drawn in grey.

Use:

    heat_map(result, "block_input").show()
    for name, figure in figures(result).items():
        ...
"""

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from patchbench.common import UserError
from patchbench.report.palette import (
    DASHES,
    DIVERGING,
    GREY,
    GREYED,
    SERIES,
    SYMBOLS,
    axis,
    color,
    label,
    layout,
    translucent,
)
from patchbench.report.tokens import token_strip
from patchbench.report.verdict import strongest
from patchbench.sites import Position, Site, grid_site
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.results import Result


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

    The scale is centred at 0 and reaches to 1 at least; cells carry their number.
    """
    run = _run(result, corruption, direction)
    metric = run["primary"]
    every = result.table(component, corruption, direction, metric)
    layers = list(dict.fromkeys(layer for layer, _ in every))
    positions = list(dict.fromkeys(position for _, position in every))
    # A corruption that changes nothing has no ratio.
    table = {place: effect for place, effect in every.items() if not isnan(effect.value)}
    effects = [[table.get((layer, position)) for position in positions] for layer in layers]
    most = max([1.0, *(abs(e.value) for e in table.values())])
    below = bool(run["reasons"])
    q_values = {e["site"]: e.get("q_value") for e in run["effects"]}
    figure = go.Figure(
        go.Heatmap(
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
                    _hover(
                        Site(layer, component, Position.parse(p)), table.get((layer, p)), q_values
                    )
                    for p in positions
                ]
                for layer in layers
            ],
            hoverinfo="text",
            zmin=-most,
            zmax=most,
            colorscale=GREYED if below else DIVERGING,
            colorbar={"title": {"text": "Attrib"}, "tickvals": [-1, 0, 1], "thickness": 12},
            xgap=1,
            ygap=1,
        )
    )
    figure.update_layout(
        **layout(_title(f"{component} by layer and position", run, metric)),
        height=150 + 30 * max(3, len(layers)),
        xaxis=axis("", type="category"),
        yaxis=axis("layer", type="category", autorange="reversed"),
    )
    return figure


def profile(
    result: "Result", component: str, *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return Attrib over the layers, a line with its interval's band for each position.

    None for fewer than two layers.
    """
    run = _run(result, corruption, direction)
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
        x, upper = list(line), [e.high for e in line.values()]
        lower = [e.low for e in line.values()]
        figure.add_scatter(
            x=[*x, *reversed(x)],
            y=[*upper, *reversed(lower)],
            fill="toself",
            fillcolor=translucent(shade),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=position,
        )
        figure.add_scatter(
            x=x,
            y=[e.value for e in line.values()],
            name=label(position),
            legendgroup=position,
            mode="lines+markers",
            line={"color": shade, "dash": DASHES[place.offset % len(DASHES)]},
            marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 7},
            hovertext=[
                f"L{layer} {label(position)}<br>{estimate_words(e)}" for layer, e in line.items()
            ],
            hoverinfo="text",
        )
    figure.add_hline(y=1, line={"color": GREY, "width": 1, "dash": "dot"})
    figure.update_layout(
        **layout(_title(f"{component} over the layers", run, metric)),
        height=380,
        xaxis=axis("layer", dtick=max(1, len(layers) // 12)),
        yaxis=axis("Attrib"),
    )
    return figure


def controls(
    result: "Result", *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return the controls that should be near 0, with their intervals; None without any."""
    found = _run(result, corruption, direction)["soft_controls"]
    if not found:
        return None
    effects = [Estimate.from_json(control["attrib"]) for control in found]
    sites = [str(control["site"]).split(" ")[-1] for control in found]
    names = [
        f"{control['control']}<br><sup>@{label(Site.parse(site).position)}</sup>"
        for control, site in zip(found, sites, strict=True)
    ]
    figure = go.Figure(
        go.Scatter(
            x=[e.value for e in effects],
            y=names,
            mode="markers",
            marker={"color": GREY, "size": 9, "symbol": "diamond"},
            error_x=estimate_bars(effects),
            hovertext=[
                f"{name}<br>{estimate_words(e)}" for name, e in zip(names, effects, strict=True)
            ],
            hoverinfo="text",
        )
    )
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_layout(
        **layout("Controls, to be near 0"),
        height=130 + 45 * len(found),
        xaxis=axis(
            "Attrib",
            range=[min(-0.5, *(e.low for e in effects)), max(1.0, *(e.high for e in effects))],
        ),
        yaxis=axis("", autorange="reversed"),
    )
    return figure


def strata(
    result: "Result", *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return accuracy and the strongest sites' Attrib by stratum of the examples; None without."""
    run = _run(result, corruption, direction)
    if not run["strata"]:
        return None
    accuracy = {s["stratum"]: Estimate.from_json(s["accuracy"]) for s in result.summary["strata"]}
    names = [s["stratum"] for s in run["strata"]]
    lines = {"accuracy": [accuracy.get(name) for name in names]}
    for site in strongest(run)[:3]:
        by = [{e["site"]: e["attrib"] for e in s["effects"]} for s in run["strata"]]
        lines[f"Attrib {site}"] = [Estimate.from_json(e[site]) if site in e else None for e in by]
    figure = go.Figure()
    for index, (name, estimates) in enumerate(lines.items()):
        shown = [(n, e) for n, e in zip(names, estimates, strict=True) if e is not None]
        figure.add_scatter(
            x=[n for n, _ in shown],
            y=[e.value for _, e in shown],
            error_y=estimate_bars([e for _, e in shown]),
            name=label(name),
            mode="lines+markers",
            line={"color": SERIES[index % len(SERIES)], "dash": DASHES[index % len(DASHES)]},
            marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 8},
            hovertext=[f"{label(name)}, {n}<br>{estimate_words(e)}" for n, e in shown],
            hoverinfo="text",
        )
    figure.update_layout(
        **layout(f"By part of the examples, {corruption} corrupted"),
        height=380,
        xaxis=axis("", type="category"),
        yaxis=axis(""),
    )
    return figure


def attribution_scatter(
    result: "Result", *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return first-order scores against exact Attrib; None where no site has both."""
    estimated = result.summary.get("attribution")
    if estimated is None:
        return None
    scored = run_of(estimated["runs"], corruption, direction)
    scores = {s["site"]: s["attrib"] for s in (scored["scores"] if scored else ())}
    run = _run(result, corruption, direction)
    exact = {e["site"]: e["attrib"] for e in run["effects"] if e["site"] in scores}
    if not exact:
        return None
    x = [exact[site]["value"] for site in exact]
    y = [scores[site]["value"] for site in exact]
    ends = [min(0.0, *x, *y), max(1.0, *x, *y)]
    figure = go.Figure(
        go.Scatter(
            x=ends, y=ends, mode="lines", line={"color": GREY, "dash": "dot"}, hoverinfo="skip"
        )
    )
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"color": SERIES[0], "size": 9},
        hovertext=[
            f"{label(site)}<br>exact {exact[site]['value']:.3f}, first order "
            f"{scores[site]['value']:.3f}"
            for site in exact
        ],
        hoverinfo="text",
    )
    figure.update_layout(
        **layout("First order against exact", showlegend=False),
        height=380,
        xaxis=axis("exact Attrib"),
        yaxis=axis("first-order Attrib"),
    )
    return figure


def _run(result: "Result", corruption: str, direction: str) -> dict[str, Any]:
    run = run_of(result.summary["runs"], corruption, direction)
    if run is None:
        known = [f"{run['corruption']}, {run['direction']}" for run in result.summary["runs"]]
        raise UserError(
            f"the {corruption} corrupted, {direction}, was not measured", f"there is: {known}"
        )
    return run


def _title(what: str, run: Mapping[str, Any], metric: str) -> str:
    by = " by logit difference" if metric == "logit_diff" else ""
    gate = " (below the gate: grey)" if run["reasons"] else ""
    which = f"{run['corruption']} corrupted, {run['direction']}{gate}"
    return f"Attrib of {label(what)}{by}<br><sup>{which}</sup>"


def _layer(layer: int | None) -> str:
    return "–" if layer is None else f"L{layer}"


def estimate_words(estimate: Estimate) -> str:
    """Return an estimate with its interval and n, for a hover."""
    value, low, high = (round(v, 3) + 0.0 for v in (estimate.value, estimate.low, estimate.high))
    return f"{value:.3f} [{low:.3f}, {high:.3f}], n {estimate.n}"


def _hover(site: Site, effect: Estimate | None, q_values: Mapping[str, float | None]) -> str:
    if effect is None:
        return f"{label(site)}<br>no value"
    q = q_values.get(str(site))
    return f"{label(site)}<br>{estimate_words(effect)}" + ("" if q is None else f"<br>q {q:.2g}")


def estimate_bars(estimates: list[Estimate]) -> dict[str, Any]:
    """Return plotly's error bars of intervals."""
    return {
        "type": "data",
        "array": [e.high - e.value for e in estimates],
        "arrayminus": [e.value - e.low for e in estimates],
        "thickness": 1.2,
    }
