"""Colours and layout that all figures share.

Okabe and Ito's colours are told apart by colour-blind readers; where a reader may have no colour at
all (a greyscale print) the numbers stand in the cells, and lines differ by dash and marker as well.

Use:

    figure.update_layout(**layout(title="…"))
    color("value"), label("<b>name</b>")
"""

import html
from typing import Any

ROLE_COLORS = {
    "bos": "#8C8C8C",
    "key": "#0072B2",
    "value": "#E69F00",
    "divider": "#8C8C8C",
    "query": "#009E73",
    "answer": "#8C8C8C",
}
OTHER = "#CC79A7"
GREY = "#8C8C8C"
INK = "#333333"
# Of many models or sites, in turn.
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
# Of a role itself, and of the tokens around it.
_OFFSETS = {0: "solid", 1: "dash", -1: "dot", 2: "dashdot", -2: "longdash"}
# Vermilion for what makes matters worse, white for nothing, blue for what restores.
DIVERGING = [[0.0, "#D55E00"], [0.5, "#FFFFFF"], [1.0, "#0072B2"]]
GREYED = [[0.0, "#BFBFBF"], [0.5, "#FFFFFF"], [1.0, "#BFBFBF"]]


# Below whatever the axes need, however high it is, and as wide as the figure.
LEGEND = {
    "orientation": "h",
    "xref": "container",
    "yref": "container",
    "xanchor": "left",
    "yanchor": "bottom",
    "x": 0.015,
    "y": 0,
}


def color(role: str) -> str:
    """Return the colour of a role."""
    return ROLE_COLORS.get(role, OTHER)


def dash(offset: int) -> str:
    """Return the dash of a position, by its offset from its role."""
    return _OFFSETS.get(offset, "longdashdot")


def marker(index: int) -> dict[str, str]:
    """Return colour and symbol of one of many; the first 49 have a pair of their own."""
    turn = index // len(SERIES)
    return {
        "color": SERIES[index % len(SERIES)],
        "symbol": SYMBOLS[(index + turn) % len(SYMBOLS)],
    }


def label(text: object) -> str:
    """Return text that plotly draws as it is: a name may look like markup, or like a formula.

    Quotes stay: plotly knows no `&quot;`.
    """
    return html.escape(str(text), quote=False).replace("$", "&#36;")


def translucent(hexadecimal: str, alpha: float = 0.18) -> str:
    """Return the colour of a band around a line."""
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def layout(title: str, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure: it has no background, so that it fits light and dark pages."""
    return {
        "title": {"text": title, "font": {"size": 15}, "x": 0.015, "xref": "container"},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 20, "t": 60, "b": 50},
        "legend": LEGEND,
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}},
        **more,
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis whose lines are seen on light and on dark."""
    return {
        "title": {"text": title},
        "gridcolor": "rgba(128,128,128,0.25)",
        "zerolinecolor": "rgba(128,128,128,0.6)",
        "linecolor": "rgba(128,128,128,0.6)",
        "automargin": True,
        **more,
    }
