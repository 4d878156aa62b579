"""The report of one Result as a page: verdict, gate, controls, figures, the table, provenance.

Use:

    write_report(result, "report.html")
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import atomic_write
from patchbench.report.beside import beside_blocks
from patchbench.report.figures import figures
from patchbench.report.page import Block, PageTable, render_page
from patchbench.report.training_figures import training_dynamics

if TYPE_CHECKING:
    import pyarrow as pa

    from patchbench.results import Result

FILE = "report.html"
_METRICS = {"attrib": "Attrib (p)", "attrib_logp": "log p", "attrib_logit_diff": "Δlogit"}


def write_report(result: "Result", path: str | Path, *, dynamics: "pa.Table | None" = None) -> None:
    """Write the page, in whole or not at all.

    Args:
        result: to be shown.
        path: of the page.
        dynamics: see `render_report`.

    Raises:
        UserError: it cannot be written.
    """
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(render_report(result, dynamics=dynamics), encoding="utf-8")


def render_report(result: "Result", *, dynamics: "pa.Table | None" = None) -> str:
    """Return the page.

    Args:
        result: to be shown.
        dynamics: of the training that the Result is of, as
            `patchbench.report.training_figures.read_dynamics` gives it.
    """
    summary, drawn = result.summary, figures(result)
    blocks = []
    if "example" in drawn:
        blocks.append(Block("What was asked", figures=[drawn["example"]]))
    for run in summary["runs"]:
        blocks.append(_run(run, drawn))
    blocks += beside_blocks(summary)
    learned = None if dynamics is None else training_dynamics(dynamics)
    if learned is not None:
        blocks.append(Block("The training", figures=[learned]))
    blocks.append(_origin(result))
    model, task = summary["model"], summary["task"]
    facts = [
        ("model", f"{model['name']}, {model['num_parameters']:,} parameters, {model['dtype']}"),
        ("task", f"{task['name']}, {task['split']} split, template {task['template']}"),
        ("items", str(summary["n"])),
        ("accuracy", interval_text(summary["accuracy"])),
        ("… among in-context values", interval_text(summary["accuracy_in_context"])),
        ("floor without recall", f"{summary['floor']:.3f} ({task['floor']})"),
    ]
    beyond = summary.get("accuracy_beyond_heuristics")
    if beyond and 0 < beyond["n"] < summary["n"]:
        facts.append((f"… on the {beyond['n']} no heuristic solves", interval_text(beyond)))
    return render_page(
        f"{model['name']} on {task['name']}",
        results={model["name"]: result},
        facts=facts,
        blocks=blocks,
    )


def interval_text(estimate: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Return "0.98 [0.97, 0.99]", "0.98" where there is no interval, "–" where there is nothing."""
    if estimate is None or estimate["value"] is None:
        return "–"
    known = [estimate[name] for name in ("value", "low", "high") if estimate[name] is not None]
    value, *limits = (f"{round(number, digits) + 0.0:.{digits}f}" for number in known)
    return f"{value} [{', '.join(limits)}]" if len(limits) == 2 else value


def _run(run: Mapping[str, Any], drawn: Mapping[str, Any]) -> Block:
    """Return the section of a corruption and direction."""
    name = f"{run['corruption']}/{run['direction']}"
    lines = [
        f"p(answer) clean {interval_text(run['p_clean'])}, corrupted "
        f"{interval_text(run['p_corrupted'])}, difference {interval_text(run['gap'])}.",
        "Hard controls: "
        + ", ".join(f"{c['control']} off by {c['error']:.0e}" for c in run["controls"])
        + ".",
    ]
    lines.append(
        f"Below the gate, effects in grey: {'; '.join(run['reasons'])}."
        if run["reasons"]
        else "Above the gate: the model does better than the floor, and the corruption costs it."
    )
    tables = []
    if run["effects"]:
        metrics = [key for key in _METRICS if any(e.get(key) for e in run["effects"])]
        tables.append(
            PageTable(
                title=f"All {len(run['effects'])} sites",
                header=["site", *(_METRICS[key] for key in metrics), "q"],
                rows=[
                    [
                        effect["site"],
                        *(interval_text(effect.get(key), 2) for key in metrics),
                        "–" if effect.get("q_value") is None else f"{effect['q_value']:.2g}",
                    ]
                    for effect in run["effects"]
                ],
                closed=len(run["effects"]) > 12,
            )
        )
    chosen = [figure for key, figure in drawn.items() if f"/{name}" in key]
    heading = f"{run['corruption'].capitalize()} corrupted, {run['direction']}"
    return Block(heading, lines=lines, figures=chosen, tables=tables)


def _origin(result: "Result") -> Block:
    provenance = result.provenance
    command = provenance.get("command") or "(called as a library)"
    shown = {key: value for key, value in provenance.items() if key != "example"}
    return Block(
        "How to reproduce",
        lines=[f"note: {note}" for note in provenance["notes"]],
        code=[command],
        folded=[
            ("Settings", json.dumps(result.config, indent=1)),
            ("Where it comes from", json.dumps(shown, indent=1)),
        ],
    )
