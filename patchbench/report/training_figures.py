"""Figures of a training: when a model learned to recall, and when its mechanism came.

Use:

    table = read_dynamics("runs/m")                # None for a folder without a training
    training_dynamics(table).show()
"""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq

from patchbench.common import UserError
from patchbench.report.estimates import add_line
from patchbench.report.palette import GREY, SYMBOLS, axis, color, dash, label, layout
from patchbench.sites import Position
from patchbench.statistics import Estimate

FILE = "dynamics.parquet"
_LOSS, _ACCURACY = "loss", "dev_accuracy"
# Before anything is learned Attrib is a ratio of noise, in whose range the rest would be a line.
_LEAST, _MOST = -0.5, 1.5
_NEEDED = {"step", "layer", "component", "position", "n", _LOSS, _ACCURACY} | {
    f"attrib{end}" for end in ("", "_low", "_high")
}


def read_dynamics(folder: str | Path) -> pa.Table | None:
    """Return what was measured during a training; None where there is nothing.

    Args:
        folder: of the training, or of the Result in it.

    Raises:
        UserError: the file is damaged.
    """
    folder = Path(folder)
    path = (folder.parent if folder.name == "result" else folder) / FILE
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        table = None
    if table is None or not set(table.column_names) >= _NEEDED:
        raise UserError(f"{path} is damaged", "train again, or remove it")
    return table


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
    for name, shade, right in ((_ACCURACY, "#56B4E9", False), (_LOSS, GREY, True)):
        steps = [step for step in sorted(logged) if logged[step][name] is not None]
        values = [logged[step][name] for step in steps]
        said = name.replace("_", " ")
        figure.add_scatter(
            x=steps,
            y=values,
            name=said,
            mode="lines",
            line={"color": shade, "dash": "dot" if right else "dash"},
            yaxis="y2" if right else "y",
            hovertext=[f"step {s}<br>{said} {v:.3f}" for s, v in zip(steps, values, strict=True)],
            hoverinfo="text",
        )
    for index, position in enumerate(dict.fromkeys(row["position"] for row in rows)):
        place = Position.parse(position)
        line = {
            row["step"]: Estimate(
                *(row[f"attrib{end}"] for end in ("", "_low", "_high")), n=row["n"]
            )
            for row in rows
            if row["position"] == position and row["layer"] == layer and row["attrib"] is not None
        }
        add_line(
            figure,
            line,
            name=f"Attrib@{position}",
            shade=color(place.role),
            dash=dash(place.offset),
            symbol=SYMBOLS[index % len(SYMBOLS)],
            before="step ",
        )
    where = "" if layer is None else f"L{layer}."
    figure.update_layout(
        **layout(f"When it is learned<br><sup>Attrib of {where}{label(component)}</sup>"),
        height=420,
        xaxis=axis("step"),
        yaxis=axis("accuracy, Attrib", range=_range(rows)),
        yaxis2=axis(
            "loss",
            overlaying="y",
            side="right",
            showgrid=False,
            rangemode="tozero",
            tickmode="auto",  # round numbers of its own, not where the other axis has some
            automargin=False,  # two axes and a legend that ask for room never come to an end
        ),
    )
    figure.update_layout(margin={"r": 60})
    return figure


def _range(rows: list[dict[str, Any]]) -> list[float]:
    """Return what is shown of Attrib: all of it, but not far beyond 0 and 1."""
    found = [row["attrib"] for row in rows if row["attrib"] is not None]
    low, high = min([0.0, *found]), max([1.0, *found])
    return [max(low - 0.1, _LEAST), min(high + 0.1, _MOST)]
