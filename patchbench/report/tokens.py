"""The example itself as a strip of tokens: what has which role, and what a corruption changes.

Use:

    token_strip(result).show()
"""

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from patchbench.report.palette import color, label, layout, translucent

if TYPE_CHECKING:
    from patchbench.results import Result

# A row of the strip: on a narrow page a role's name still fits below its token.
TOKENS_A_ROW = 8
_LETTERS = 6


def token_strip(result: "Result") -> go.Figure | None:
    """Return the first example: its tokens, coloured by role, and what each corruption changes.

    None for a Result that holds no example.
    """
    example = result.provenance.get("example")
    if not example:
        return None
    tokens, roles = example["tokens"], {index: name for name, index in example["roles"].items()}
    asked = [run["corruption"] for run in result.summary["runs"]]
    asked = [name for name in dict.fromkeys(asked) if name in example["corruptions"]]
    rows = -(-len(tokens) // TOKENS_A_ROW)
    figure = go.Figure()
    hover = []
    for index, token in enumerate(tokens):
        x, y = index % TOKENS_A_ROW, -(index // TOKENS_A_ROW)
        role = roles.get(index)
        changes = {
            name: other for name in asked if (other := example["corruptions"][name][index]) != token
        }
        figure.add_shape(
            type="rect",
            x0=x - 0.47,
            x1=x + 0.47,
            y0=y - 0.42,
            y1=y + 0.42,
            line={
                "color": "#D55E00" if changes else "rgba(128,128,128,0.5)",
                "width": 2 if changes else 1,
            },
            fillcolor=translucent(color(role), 0.35) if role else "rgba(128,128,128,0.06)",
            layer="below",
        )
        lines = [f"{index}: {label(token)}", *([f"role {label(role)}"] if role else [])]
        lines += [f"{label(name)} corrupted: {label(other)}" for name, other in changes.items()]
        hover.append("<br>".join(lines))
    changed = [
        any(example["corruptions"][name][index] != token for name in asked)
        for index, token in enumerate(tokens)
    ]
    figure.add_scatter(
        x=[index % TOKENS_A_ROW for index in range(len(tokens))],
        y=[-(index // TOKENS_A_ROW) for index in range(len(tokens))],
        mode="text",
        text=[
            f"{label(_short(token))}{'*' if changed[index] else ''}"
            f"<br><span style='font-size:9px'>{label(roles.get(index, ''))}</span>"
            for index, token in enumerate(tokens)
        ],
        hovertext=hover,
        hoverinfo="text",
        showlegend=False,
    )
    figure.update_layout(
        **layout(
            "The first example<br><sup>* and a vermilion frame: what a corruption changes</sup>"
        ),
        height=90 + 52 * rows,
        xaxis={"visible": False, "range": [-0.6, TOKENS_A_ROW - 0.4], "fixedrange": True},
        yaxis={"visible": False, "range": [-rows + 0.4, 0.6], "fixedrange": True},
    )
    figure.update_layout(margin={"l": 10, "r": 10, "t": 60, "b": 10})
    return figure


def _short(token: str) -> str:
    token = token.strip() or "␣"
    return token if len(token) <= _LETTERS else token[: _LETTERS - 1] + "…"
