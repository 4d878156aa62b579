"""Figures about how far a Result's numbers carry: controls, parts of the examples, estimates.

Pure functions, like those of `patchbench.report.figures`.

Use:

    controls(result).show()
    strata(result).show()
"""

from math import isfinite
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from patchbench.report.estimates import bars, chosen_run, words
from patchbench.report.palette import DASHES, GREY, SERIES, SYMBOLS, axis, label, layout
from patchbench.report.verdict import strongest
from patchbench.sites import Site
from patchbench.statistics import Estimate
from patchbench.strata import BEYOND
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.results import Result


def controls(
    result: "Result", *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return the controls that should be near 0, with their intervals; None without any."""
    found = [
        control
        for control in chosen_run(result, corruption, direction)["soft_controls"]
        if control["attrib"]["value"] is not None
    ]
    if not found:
        return None
    effects = [Estimate.from_json(control["attrib"]) for control in found]
    limits = [v for e in effects for v in (e.value, e.low, e.high) if isfinite(v)]
    sites = [str(control["site"]).split(" ")[-1] for control in found]
    names = [
        f"{label(control['control'])}<br><sup>@{label(Site.parse(site).position)}</sup>"
        for control, site in zip(found, sites, strict=True)
    ]
    figure = go.Figure(
        go.Scatter(
            x=[e.value for e in effects],
            y=names,
            mode="markers",
            marker={"color": GREY, "size": 9, "symbol": "diamond"},
            error_x=bars(effects),
            hovertext=[f"{name}<br>{words(e)}" for name, e in zip(names, effects, strict=True)],
            hoverinfo="text",
        )
    )
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_layout(
        **layout(
            f"Controls, to be near 0<br><sup>{label(corruption)} corrupted, {direction}</sup>"
        ),
        height=130 + 45 * len(found),
        xaxis=axis(
            "Attrib",
            range=[1.05 * min(-0.5, *limits), 1.05 * max(1.0, *limits)],
        ),
        yaxis=axis("", autorange="reversed"),
    )
    return figure


def strata(
    result: "Result", *, corruption: str = "key", direction: str = "denoise"
) -> go.Figure | None:
    """Return accuracy and the strongest sites' Attrib by stratum of the examples; None without.

    Lines join the distances; what no heuristic solves is no distance and stands apart.
    """
    run = chosen_run(result, corruption, direction)
    if not run["strata"]:
        return None
    accuracy = {s["stratum"]: Estimate.from_json(s["accuracy"]) for s in result.summary["strata"]}
    names = [s["stratum"] for s in run["strata"]]
    lines = {"accuracy": accuracy}
    for site in strongest(run)[:3]:
        lines[f"Attrib {site}"] = {
            stratum["stratum"]: Estimate.from_json(effect["attrib"])
            for stratum in run["strata"]
            for effect in stratum["effects"]
            if effect["site"] == site
        }
    figure = go.Figure()
    for index, (name, estimates) in enumerate(lines.items()):
        shown = {n: e for n in names if (e := estimates.get(n)) and isfinite(e.value)}
        for joined in (False, True):
            part = {n: e for n, e in shown.items() if (n != BEYOND) == joined}
            if not part:
                continue
            figure.add_scatter(
                x=list(part),
                y=[e.value for e in part.values()],
                error_y=bars(list(part.values())),
                name=label(name),
                legendgroup=name,
                showlegend=joined or len(shown) == len(part),
                offsetgroup=index,
                mode="lines+markers",
                line={"color": SERIES[index % len(SERIES)], "dash": DASHES[index % len(DASHES)]},
                marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 8},
                hovertext=[f"{label(name)}, {n}<br>{words(e)}" for n, e in part.items()],
                hoverinfo="text",
            )
    figure.update_layout(
        **layout(
            f"By part of the examples<br><sup>{label(corruption)} corrupted, {direction}</sup>"
        ),
        height=400,
        # Side by side, so that no interval hides another.
        scattermode="group",
        scattergap=0.7,
        meta={"min_width": 120 + 60 * len(names)},
        xaxis=axis("", type="category", categoryarray=names),
        yaxis=axis("accuracy, Attrib"),
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
    run = chosen_run(result, corruption, direction)
    exact = {
        e["site"]: e["attrib"]
        for e in run["effects"]
        if e["attrib"]["value"] is not None
        and (scores.get(e["site"]) or {"value": None})["value"] is not None
    }
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
        **layout(
            f"First order against exact<br><sup>{label(corruption)} corrupted, {direction}; "
            "dotted: equal</sup>",
            showlegend=False,
        ),
        height=380,
        xaxis=axis("exact Attrib"),
        yaxis=axis("first-order Attrib"),
    )
    return figure
