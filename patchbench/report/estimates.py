"""How figures find, say and draw estimates: value and interval, and nothing where there is none.

Use:

    figure.add_scatter(x=[e.value], error_x=bars([e]), hovertext=words(e))
    add_line(figure, {0: estimate, 1: other}, name="value", shade="#E69F00")
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from patchbench.common import UserError
from patchbench.report.palette import label, translucent
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.results import Result


def chosen_run(result: "Result", corruption: str, direction: str) -> dict[str, Any]:
    """Return the run of a corruption and direction.

    Raises:
        UserError: it was not measured.
    """
    run = run_of(result.summary["runs"], corruption, direction)
    if run is None:
        known = [f"{run['corruption']}, {run['direction']}" for run in result.summary["runs"]]
        raise UserError(
            f"the {corruption} corrupted, {direction}, was not measured",
            f"there is: {'; '.join(known)}",
        )
    return run


def words(estimate: Estimate) -> str:
    """Return an estimate with its interval and n, for a hover."""
    if not isfinite(estimate.value):
        return "no value"
    value, low, high = (round(v, 3) + 0.0 for v in (estimate.value, estimate.low, estimate.high))
    interval = f" [{low:.3f}, {high:.3f}]" if isfinite(low) and isfinite(high) else ""
    return f"{value:.3f}{interval}, n {estimate.n}"


def bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return plotly's error bars of intervals; of no length where there is no interval."""

    def length(side: float) -> float:
        return side if isfinite(side) else 0.0

    return {
        "type": "data",
        "array": [length(e.high - e.value) for e in estimates],
        "arrayminus": [length(e.value - e.low) for e in estimates],
        "thickness": 1.2,
    }


def add_line(
    figure: go.Figure,
    line: Mapping[Any, Estimate],
    *,
    name: str,
    shade: str,
    dash: str = "solid",
    symbol: str = "circle",
    before: str = "",
) -> None:
    """Draw estimates as a line with markers, and their intervals as a band behind it.

    Points without a value are left out, and of a line without any point nothing is drawn.

    Args:
        figure: drawn into.
        line: by x, in its order.
        name: in the legend; any text.
        shade: of both, as in "#E69F00".
        dash: of the line.
        symbol: of the markers.
        before: put before x in the hover, as in "L" of "L3".
    """
    line = {x: e for x, e in line.items() if isfinite(e.value)}
    if not line:
        return
    banded = {x: e for x, e in line.items() if isfinite(e.low) and isfinite(e.high)}
    figure.add_scatter(
        x=[*banded, *reversed(banded)],
        y=[*(e.high for e in banded.values()), *(e.low for e in reversed(banded.values()))],
        fill="toself",
        fillcolor=translucent(shade),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
        legendgroup=name,
    )
    figure.add_scatter(
        x=list(line),
        y=[e.value for e in line.values()],
        name=label(name),
        legendgroup=name,
        mode="lines+markers",
        line={"color": shade, "dash": dash},
        marker={"symbol": symbol, "size": 7},
        hovertext=[f"{before}{x} {label(name)}<br>{words(e)}" for x, e in line.items()],
        hoverinfo="text",
    )
