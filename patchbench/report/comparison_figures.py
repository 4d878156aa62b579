"""Figures of many Results: what models differ in.

Pure functions, like those of `patchbench.report.figures`.

Use:

    mechanism_triangle({"ar-mamba": result, …}).show()
    accuracy_scatter({"ar-mamba": result, …}, position="value").show()
"""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from patchbench.common import UserError
from patchbench.comparing import effects_at, middle_layer
from patchbench.report.estimates import bars, words
from patchbench.report.palette import GREY, axis, color, label, layout, marker
from patchbench.sites import Position
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.results import Result

_CORNERS = ("key", "value", "query")
_LABELLED = 12
_LONG = 32


def mechanism_triangle(
    results: "Mapping[str, Result]", *, layer: int | None = None, corruption: str = "key"
) -> go.Figure | None:
    """Return the models in a triangle of Key, Value and Query; None if none can be placed.

    A model's place are the shares of its three effects in their sum, where a negative effect counts
    as none. Offsets of a role (`value+1`) count for the role. A model whose effects add up to less
    than 0.1 has its association elsewhere and is not placed.
    """
    figure, left = go.Figure(), []
    for index, (name, result) in enumerate(results.items()):
        effects = _at(result, layer, corruption)
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
    which = "the middle layer" if layer is None else f"layer {layer}"
    figure.update_layout(
        **layout(
            "Where the association is<br>"
            f"<sup>shares of Attrib entering {which}, {label(corruption)} corrupted"
            + (f"; {len(left)} without a place" if left else "")
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
    figure.update_layout(margin={"l": 60, "r": 60, "t": 80, "b": 60})
    return figure


def accuracy_scatter(
    results: "Mapping[str, Result]",
    *,
    position: str = "value",
    layer: int | None = None,
    corruption: str = "key",
) -> go.Figure | None:
    """Return accuracy against Attrib at a position: equal accuracy, unequal mechanism.

    Models below the gate, of which there is no effect, stand in grey at 0; those of which the
    position was not measured are left out. None without any model.
    """
    figure = go.Figure()
    for index, (name, result) in enumerate(results.items()):
        run = run_of(result.summary["runs"], corruption, "denoise")
        effect = _at(result, layer, corruption).get(position)
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
    results: "Mapping[int, Result]", *, positions: tuple[str, ...] = ("key", "value", "query")
) -> go.Figure:
    """Return accuracy and Attrib by the width of the short convolution, with intervals.

    Args:
        results: by width; 0 is no convolution.
        positions: of the residual stream entering the middle layer.

    Raises:
        UserError: there is no Result.
    """
    if not results:
        raise UserError("no Result to compare", "give at least one by its convolution's width")
    widths = sorted(results)
    lines: dict[str, list[Estimate | None]] = {
        "accuracy": [results[width].accuracy for width in widths]
    }
    for position in positions:
        lines[f"Attrib@{position}"] = [
            _at(results[width], None, "key").get(position) for width in widths
        ]
    shades = (GREY, *(color(Position.parse(position).role) for position in positions))
    patterns = ("", "/", "x", ".", "-", "+")
    figure = go.Figure()
    for index, (name, estimates) in enumerate(lines.items()):
        shown = [
            (w, e)
            for w, e in zip(widths, estimates, strict=True)
            if e is not None and isfinite(e.value)
        ]
        figure.add_bar(
            x=[str(width) for width, _ in shown],
            y=[e.value for _, e in shown],
            error_y=bars([e for _, e in shown]),
            name=label(name),
            marker={
                "color": shades[index],
                "pattern": {"shape": patterns[index % len(patterns)]},
            },
            hovertext=[f"{label(name)}, width {w}<br>{words(e)}" for w, e in shown],
            hoverinfo="text",
        )
    figure.update_layout(
        **layout("By the short convolution's width<br><sup>0: none</sup>", barmode="group"),
        height=400,
        xaxis=axis("width", type="category", categoryarray=[str(width) for width in widths]),
        yaxis=axis("accuracy, Attrib"),
    )
    return figure


def _short(name: str) -> str:
    """Return a name that a legend has room for; the hover has it in full."""
    return label(name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 :]}")


def _at(result: "Result", layer: int | None, corruption: str) -> dict[str, Estimate]:
    at = middle_layer(result) if layer is None else layer
    return effects_at(result, at, corruption=corruption)
