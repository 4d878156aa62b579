"""Figures of many Results, and of one training run: what models differ in, and when it came.

Pure functions, like those of `patchbench.report.figures`.

Use:

    mechanism_triangle({"ar-mamba": result, …}).show()
    training_dynamics(pyarrow.parquet.read_table("runs/m/dynamics.parquet")).show()
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import pyarrow as pa

from patchbench.common import UserError
from patchbench.comparing import effects_at, middle_layer
from patchbench.report.figures import estimate_bars, estimate_words
from patchbench.report.palette import (
    DASHES,
    GREY,
    SERIES,
    SYMBOLS,
    axis,
    color,
    label,
    layout,
    translucent,
)
from patchbench.sites import Position
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.results import Result

_CORNERS = ("key", "value", "query")
_LABELLED = 12


def mechanism_triangle(
    results: "Mapping[str, Result]", *, layer: int | None = None, corruption: str = "key"
) -> go.Figure | None:
    """Return the models in a triangle of Key, Value and Query; None if none can be placed.

    A model's place are the shares of its three effects in their sum, where a negative effect counts
    as none. Offsets of a role (`value+1`) count for the role. A model whose effects add up to less
    than 0.1 has its association elsewhere and is not placed.
    """
    figure = go.Figure()
    for index, (name, result) in enumerate(results.items()):
        effects = _at(result, layer, corruption)
        sums = dict.fromkeys(_CORNERS, 0.0)
        for position, effect in effects.items():
            role = Position.parse(position).role
            if role in sums:
                sums[role] += max(0.0, effect.value)
        total = sum(sums.values())
        if total < 0.1:
            continue
        key, value, query = (sums[role] / total for role in _CORNERS)
        figure.add_scatterternary(
            a=[value],
            b=[key],
            c=[query],
            name=label(name),
            mode="markers",
            cliponaxis=False,
            marker={
                "size": 12,
                "symbol": SYMBOLS[index % len(SYMBOLS)],
                "color": SERIES[index % len(SERIES)],
            },
            hovertext=f"{label(name)}<br>key {key:.2f}, value {value:.2f}, query {query:.2f}",
            hoverinfo="text",
        )
    if not figure.data:
        return None
    sides = {"aaxis": "value", "baxis": "key", "caxis": "query"}
    which = "the middle layer" if layer is None else f"layer {layer}"
    figure.update_layout(
        **layout(
            f"Where the association is, entering {which}<br>"
            f"<sup>shares of Attrib, {label(corruption)} corrupted</sup>"
        ),
        height=480,
        ternary={
            "bgcolor": "rgba(0,0,0,0)",
            **{
                side: {
                    "title": {"text": text, "font": {"color": color(text)}},
                    "gridcolor": "rgba(128,128,128,0.25)",
                    "tickvals": [0.25, 0.5, 0.75],
                }
                for side, text in sides.items()
            },
        },
    )
    return figure


def accuracy_scatter(
    results: "Mapping[str, Result]",
    *,
    position: str = "value",
    layer: int | None = None,
    corruption: str = "key",
) -> go.Figure | None:
    """Return accuracy against Attrib at a position: equal accuracy, unequal mechanism.

    Models below the gate, of which there is no effect, stand in grey at 0. None without any model.
    """
    figure = go.Figure()
    for index, (name, result) in enumerate(results.items()):
        effect = _at(result, layer, corruption).get(position)
        accuracy = result.accuracy
        few = len(results) <= _LABELLED
        words = "below the gate" if effect is None else estimate_words(effect)
        figure.add_scatter(
            x=[accuracy.value],
            y=[0.0 if effect is None else effect.value],
            error_x=estimate_bars([accuracy]),
            error_y=None if effect is None else estimate_bars([effect]),
            name=label(name),
            mode="markers+text" if few else "markers",
            text=[label(name)] if few else None,
            textposition="top center",
            marker={
                "size": 11,
                "symbol": SYMBOLS[index % len(SYMBOLS)],
                "color": GREY if effect is None else SERIES[index % len(SERIES)],
            },
            hovertext=(
                f"{label(name)}<br>accuracy {estimate_words(accuracy)}<br>"
                f"Attrib@{label(position)} {words}"
            ),
            hoverinfo="text",
        )
    if not figure.data:
        return None
    figure.update_layout(
        **layout("Accuracy alone misleads", showlegend=False),
        height=420,
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
    bars: dict[str, list[Estimate | None]] = {
        "accuracy": [results[width].accuracy for width in widths]
    }
    for position in positions:
        bars[f"Attrib@{position}"] = [
            _at(results[width], None, "key").get(position) for width in widths
        ]
    shades = (GREY, *(color(Position.parse(position).role) for position in positions))
    patterns = ("", "/", "x", ".", "-", "+")
    figure = go.Figure()
    for index, (name, estimates) in enumerate(bars.items()):
        shown = [(w, e) for w, e in zip(widths, estimates, strict=True) if e is not None]
        figure.add_bar(
            x=[str(width) for width, _ in shown],
            y=[e.value for _, e in shown],
            error_y=estimate_bars([e for _, e in shown]),
            name=label(name),
            marker={
                "color": shades[index],
                "pattern": {"shape": patterns[index % len(patterns)]},
            },
            hovertext=[f"{label(name)}, width {w}<br>{estimate_words(e)}" for w, e in shown],
            hoverinfo="text",
        )
    figure.update_layout(
        **layout("By the width of the short convolution (0: none)", barmode="group"),
        height=400,
        xaxis=axis("width", type="category"),
        yaxis=axis(""),
    )
    return figure


def training_dynamics(table: pa.Table, *, component: str = "block_input") -> go.Figure | None:
    """Return accuracy, loss and Attrib by site over the steps of a training run.

    The loss has its own axis at the right. None without a row of the component.

    Args:
        table: of `patchbench.training.dynamics.SCHEMA`.
        component: whose sites are drawn, at the middle layer.
    """
    rows = [row for row in table.to_pylist() if row["component"] == component]
    if not rows:
        return None
    layers = sorted({row["layer"] for row in rows if row["layer"] is not None})
    layer = layers[len(layers) // 2] if layers else None
    figure = go.Figure()
    logged = {row["step"]: row for row in rows}
    for name, shade, right in (
        ("dev_accuracy", "#56B4E9", False),
        ("loss", GREY, True),
    ):
        steps = [step for step in sorted(logged) if logged[step][name] is not None]
        figure.add_scatter(
            x=steps,
            y=[logged[step][name] for step in steps],
            name=name.replace("_", " "),
            line={"color": shade, "dash": "dot" if right else "dash"},
            yaxis="y2" if right else "y",
        )
    for index, position in enumerate(dict.fromkeys(row["position"] for row in rows)):
        line = [
            row
            for row in rows
            if row["position"] == position and row["layer"] == layer and row["attrib"] is not None
        ]
        if not line:
            continue
        place = Position.parse(position)
        shade, x = color(place.role), [row["step"] for row in line]
        figure.add_scatter(
            x=[*x, *reversed(x)],
            y=[r["attrib_high"] for r in line] + [r["attrib_low"] for r in reversed(line)],
            fill="toself",
            fillcolor=translucent(shade),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_scatter(
            x=x,
            y=[row["attrib"] for row in line],
            name=f"Attrib@{label(position)}",
            mode="lines+markers",
            line={"color": shade, "dash": DASHES[place.offset % len(DASHES)]},
            marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 6},
        )
    where = "" if layer is None else f"L{layer}."
    figure.update_layout(
        **layout(f"When it is learned<br><sup>Attrib of {where}{label(component)}</sup>"),
        height=420,
        xaxis=axis("step"),
        yaxis=axis("accuracy, Attrib"),
        yaxis2=axis("loss", overlaying="y", side="right", showgrid=False, rangemode="tozero"),
    )
    return figure


def _at(result: "Result", layer: int | None, corruption: str) -> dict[str, Estimate]:
    at = middle_layer(result) if layer is None else layer
    return effects_at(result, at, corruption=corruption)
