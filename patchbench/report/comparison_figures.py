"""Figures of many Results: what models differ in.

Pure functions, like those of `patchbench.report.figures`.

Use:

    mechanism_triangle({"ar-mamba": result, …}).show()
    accuracy_scatter({"ar-mamba": result, …}, position="value").show()
    for name, figure in comparison_figures(comparison, results).items():
        ...
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, TypedDict

import plotly.graph_objects as go

from patchbench.common import UserError
from patchbench.comparing import ACCURACY, POSITIONS, effects_at, middle_layer
from patchbench.conv_widths import Width, width_families
from patchbench.pooling import pool
from patchbench.report.estimates import bars, words
from patchbench.report.palette import GREY, axis, color, label, layout, marker
from patchbench.sites import Position
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.comparing import Comparison
    from patchbench.results import Result

_CORNERS = ("key", "value", "query")
_LABELLED = 12
_LONG = 32
_PATTERNS = ("", "/", "x", ".", "-", "+")


class _Shown(TypedDict):
    """What all figures of a comparison are of."""

    corruption: str
    component: str
    layer: int | None


def comparison_figures(
    comparison: "Comparison", results: "Mapping[str, Result]"
) -> dict[str, go.Figure]:
    """Return every figure that a comparison has something for, by a stable name.

    Args:
        comparison: whose runs, corruption, component and layer are drawn.
        results: that it is of, by name.
    """
    ordered = {row.name: results[row.name] for row in comparison.rows}
    shown: _Shown = {
        "corruption": comparison.corruption,
        "component": comparison.component,
        "layer": comparison.layer,
    }
    found = {
        "mechanism_triangle": mechanism_triangle(ordered, **shown),
        "accuracy_scatter": accuracy_scatter(ordered, **shown),
    }
    for family, by_width in width_families(ordered).items():
        found[f"conv_widths/{family}"] = conv_width_bars(
            by_width, of=family, positions=comparison.positions, **shown
        )
    return {name: figure for name, figure in found.items() if figure is not None}


def mechanism_triangle(
    results: "Mapping[str, Result]",
    *,
    layer: int | None = None,
    corruption: str = "key",
    component: str = "block_input",
) -> go.Figure | None:
    """Return the models in a triangle of Key, Value and Query; None if none can be placed.

    A model's place are the shares of its three effects in their sum, where a negative effect counts
    as none. Offsets of a role (`value+1`) count for the role. A model whose effects add up to less
    than 0.1 has its association elsewhere and is not placed.
    """
    figure, left = go.Figure(), []
    for index, (name, result) in enumerate(results.items()):
        effects = _at(result, layer, corruption, component)
        sums = dict.fromkeys(_CORNERS, 0.0)
        for position, effect in effects.items():
            role = Position.parse(position).role
            if role in sums and effect.value > 0:  # neither negative nor NaN
                sums[role] += effect.value
        total = sum(sums.values())
        if total < 0.1:
            left.append(name)
            continue
        key, value, query = (sums[role] / total for role in _CORNERS)
        figure.add_scatterternary(
            a=[value],
            b=[key],
            c=[query],
            name=_short(name),
            mode="markers",
            cliponaxis=False,
            marker={"size": 12, **marker(index)},
            hovertext=f"{label(name)}<br>key {key:.2f}, value {value:.2f}, query {query:.2f}",
            hoverinfo="text",
        )
    if not figure.data:
        return None
    sides = {"aaxis": "value", "baxis": "key", "caxis": "query"}
    figure.update_layout(
        **layout(
            "Where the association is<br>"
            f"<sup>{_where(component, layer)}, shares; {label(corruption)} corrupted"
            + (f"<br>{len(left)} without a place" if left else "")
            + "</sup>",
            showlegend=len(list(figure.data)) <= _LABELLED,
        ),
        height=480,
        ternary={
            "bgcolor": "rgba(0,0,0,0)",
            **{
                side: {
                    "title": {"text": text, "font": {"color": color(text)}},
                    "gridcolor": "rgba(128,128,128,0.25)",
                    "linecolor": "rgba(128,128,128,0.6)",
                    "tickvals": [0.25, 0.5, 0.75],
                }
                for side, text in sides.items()
            },
        },
    )
    figure.update_layout(
        margin={"l": 60, "r": 60, "t": 80, "b": 60},
        # A triangle reserves no room for what stands at its corners.
        legend={"xref": "paper", "yref": "paper", "yanchor": "top", "x": 0, "y": -0.15},
    )
    return figure


def accuracy_scatter(
    results: "Mapping[str, Result]",
    *,
    position: str = "value",
    layer: int | None = None,
    corruption: str = "key",
    component: str = "block_input",
) -> go.Figure | None:
    """Return accuracy against Attrib at a position: equal accuracy, unequal mechanism.

    Models below the gate, of which there is no effect, stand in grey at 0; those of which the
    position was not measured are left out. None without any model.
    """
    figure = go.Figure()
    for index, (name, result) in enumerate(results.items()):
        run = run_of(result.summary["runs"], corruption, "denoise")
        effect = _at(result, layer, corruption, component).get(position)
        if effect is not None and not isfinite(effect.value):
            effect = None
        below = run is not None and bool(run["reasons"])
        if effect is None and not below:
            continue
        said = "below the gate" if effect is None else words(effect)
        figure.add_scatter(
            x=[result.accuracy.value],
            y=[0.0 if effect is None else effect.value],
            error_x=bars([result.accuracy]),
            error_y=None if effect is None else bars([effect]),
            name=_short(name),
            mode="markers",
            marker={"size": 11, **marker(index), **({"color": GREY} if effect is None else {})},
            hovertext=(
                f"{label(name)}<br>accuracy {words(result.accuracy)}<br>"
                f"Attrib@{label(position)} {said}"
            ),
            hoverinfo="text",
        )
    if not figure.data:
        return None
    figure.update_layout(
        **layout(
            f"Accuracy alone misleads<br><sup>{label(corruption)} corrupted; grey at 0: below the "
            "gate</sup>",
            showlegend=len(list(figure.data)) <= _LABELLED,
        ),
        height=440,
        xaxis=axis("accuracy", range=[-0.03, 1.08]),
        yaxis=axis(f"Attrib@{label(position)}"),
    )
    return figure


def conv_width_bars(
    results: "Mapping[Width, Sequence[Result]]",
    *,
    of: str = "",
    positions: Sequence[str] = POSITIONS,
    layer: int | None = None,
    corruption: str = "key",
    component: str = "block_input",
) -> go.Figure:
    """Return accuracy and Attrib by the width of the short convolution, with intervals.

    Args:
        results: by width, 0 for no convolution; several of one width are seeds, which are pooled.
        of: what they are, for the title, as in "mamba of width 64".
        positions: of the effects.
        layer: of the effects; by default each model's middle one.
        corruption: of the effects.
        component: of the effects.

    Raises:
        UserError: there is no Result, or those of one width are not seeds of one experiment.
    """
    if not results:
        raise UserError("no Result to compare", "give at least one by its convolution's width")
    widths = sorted(results, key=lambda width: (isinstance(width, str), width))
    reached = {width: _reached(results[width], layer, corruption, component) for width in widths}
    names = [ACCURACY, *positions]
    shades = (GREY, *(color(Position.parse(position).role) for position in positions))
    figure = go.Figure()
    for index, name in enumerate(names):
        shown = {
            width: estimate
            for width in widths
            if (estimate := reached[width].get(name)) is not None and isfinite(estimate.value)
        }
        said = label(name if name == ACCURACY else f"Attrib@{name}")
        figure.add_bar(
            x=[str(width) for width in shown],
            y=[estimate.value for estimate in shown.values()],
            error_y=bars(list(shown.values())),
            name=said,
            marker={
                "color": shades[index],
                "pattern": {"shape": _PATTERNS[index % len(_PATTERNS)]},
            },
            hovertext=[f"{said}, width {w}<br>{words(e)}" for w, e in shown.items()],
            hoverinfo="text",
        )
    seeds = max(map(len, results.values()))
    at = "middle layer" if layer is None else f"L{layer}"
    figure.update_layout(
        **layout(
            "By the convolution's width<br><sup>"
            + "; ".join(filter(None, [label(of), at, f"{label(corruption)} corrupted"]))
            + "</sup>",
            barmode="group",
        ),
        height=400,
        xaxis=axis(
            "width, 0 for none" + (f"; up to {seeds} seeds each" if seeds > 1 else ""),
            type="category",
            categoryarray=[str(width) for width in widths],
        ),
        yaxis=axis(f"accuracy, Attrib of {label(component)}"),
    )
    return figure


def _reached(
    seeds: "Sequence[Result]", layer: int | None, corruption: str, component: str
) -> dict[str, Estimate]:
    """Return accuracy and, by position, the effects, of one Result or of several seeds."""
    first = seeds[0]
    if len(seeds) == 1:
        return {ACCURACY: first.accuracy, **_at(first, layer, corruption, component)}
    pooled = pool(seeds)
    run = run_of(pooled.summary["runs"], corruption, "denoise")
    at = middle_layer(first) if layer is None else layer
    start = f"L{at}.{component}@"
    return {ACCURACY: pooled.accuracy} | {
        effect["site"].removeprefix(start): Estimate.from_json(effect["attrib"])
        for effect in (run["effects"] if run else ())
        if effect["site"].startswith(start)
    }


def _short(name: str) -> str:
    """Return a name that a legend has room for; the hover has it in full."""
    return label(name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 :]}")


def _where(component: str, layer: int | None) -> str:
    return f"Attrib of {label(component)} of {'the middle layer' if layer is None else f'L{layer}'}"


def _at(
    result: "Result", layer: int | None, corruption: str, component: str
) -> dict[str, Estimate]:
    at = middle_layer(result) if layer is None else layer
    return effects_at(result, at, corruption=corruption, component=component)
