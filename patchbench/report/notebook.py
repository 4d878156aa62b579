"""A Result in a notebook's cell: the verdict and the effects, without a script.

Use:

    as_html(result)                           # what Result._repr_html_ gives a notebook
"""

from html import escape
from typing import TYPE_CHECKING

from patchbench.report.html import interval_text

if TYPE_CHECKING:
    from patchbench.results import Result

# More lines are for the report.
_MOST = 40


def as_html(result: "Result") -> str:
    """Return the verdict, the accuracy, and a line for each site of each run."""
    summary = result.summary
    parts = [
        f"<b>{escape(str(result.verdict))}</b>: {escape(result.verdict.sentence)}",
        f"{escape(summary['model']['name'])} on {escape(summary['task']['name'])}, "
        f"{summary['n']} items, accuracy {interval_text(summary['accuracy'])}",
    ]
    for run in summary["runs"]:
        heading = f"{escape(run['corruption'])} corrupted, {escape(run['direction'])}"
        if run["reasons"]:
            parts.append(f"{heading}: below the gate: {escape('; '.join(run['reasons']))}")
            continue
        rows = "".join(
            f"<tr><td>{escape(effect['site'])}</td><td>{interval_text(effect['attrib'])}</td></tr>"
            for effect in run["effects"][:_MOST]
        )
        more = len(run["effects"]) - _MOST
        parts.append(
            f"<table><caption>{heading}</caption><tr><th>site</th><th>Attrib</th></tr>{rows}</table>"
            + (f"and {more} more" if more > 0 else "")
        )
    return "".join(f"<div>{part}</div>" for part in parts)
