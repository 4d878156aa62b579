"""Pooled Results in the terminal: each run on a line, the verdict's agreement, effects over seeds.

Use:

    print_pooled(pool(load_results(["runs/mamba-*"])))
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
from rich.markup import escape
from rich.table import Table

from patchbench.report.console import make_console
from patchbench.report.terminal import print_grid
from patchbench.report.verdict import print_found
from patchbench.sites import Position, grid_site
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.pooling import Pooled


def print_pooled(pooled: "Pooled") -> None:
    """Print the runs, what they agree on, and the effects."""
    console, summary = make_console(), pooled.summary
    task = summary["task"]
    console.print(
        f"[bold]{len(pooled.results)} runs[/] of {escape(task['name'])} ({task['split']}) pooled: "
        + _kinds(summary)
    )
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    names = ["seed", "grammar"] if summary["grammars"] else ["seed"]
    for name in (*names, "n", "accuracy", "floor"):
        table.add_column(name, justify="right", overflow="fold" if name == "seed" else "ellipsis")
    table.add_column("verdict")
    for one in summary["results"]:
        seed = Path(one["seed"]).name  # a model's folder, where the training is not recorded
        table.add_row(
            escape(one["name"]),
            *([escape(seed), one["grammar"]] if summary["grammars"] else [escape(seed)]),
            str(one["n"]),
            f"{one['accuracy']['value']:.3f}",
            f"{one['floor']:.3f}",
            one["verdict"] or "no verdict",
        )
    console.print(table)
    console.print(
        f"accuracy {escape(str(pooled.accuracy))} over the vocabulary, "
        f"{escape(str(Estimate.from_json(summary['accuracy_in_context'])))} among in-context values"
    )
    for run in summary["runs"]:
        console.print()
        console.print(
            f"[bold]{run['corruption']} corrupted, {run['direction']}[/]  "
            f"{len(run['above_gate'])} of {len(pooled.results)} runs above the gate; "
            + agreement(run["verdict"], _runs(summary))
        )
        if run["effects"]:
            print_found(console, run)
        for title, grid in _grids(run).items():
            print_grid(console, title, grid)
    verdict = summary["verdict"]
    share = escape(str(pooled.agreement))
    console.print(f"verdict  [bold]{agreement(verdict, _runs(summary))}[/], agreement {share}")


def agreement(verdict: Mapping[str, Any], what: str) -> str:
    """Return "induction in 2 of 3 seeds, no verdict in 1"."""
    (first, count), *others = verdict["labels"].items()
    text = f"{first} in {count} of {verdict['of']} {what}"
    return ", ".join([text, *(f"{label} in {count}" for label, count in others)])


def _kinds(summary: Mapping[str, Any]) -> str:
    seeds, grammars = summary["seeds"], summary["grammars"]
    text = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return text + (f", {grammars} grammar{'s' if grammars > 1 else ''}" if grammars else "")


def _runs(summary: Mapping[str, Any]) -> str:
    return "seeds" if summary["seeds"] == len(summary["results"]) else "runs"


def _grids(run: Mapping[str, Any]) -> dict[str, dict[tuple[int | None, str], Estimate]]:
    """Return the effects of single sites by component."""
    key = "attrib_logit_diff" if run["primary"] == "logit_diff" else "attrib"
    by = " by the logit difference" if run["primary"] == "logit_diff" else ""
    grids: dict[str, dict[tuple[int | None, str], Estimate]] = {}
    for effect in run["effects"]:
        if (site := grid_site(effect["site"])) is not None:
            grid = grids.setdefault(f"pooled Attrib of {site.component}{by}", {})
            grid[site.layer, str(site.position)] = Estimate.from_json(effect[key])
    return {title: dict(sorted(grid.items(), key=_place)) for title, grid in grids.items()}


def _place(item: tuple[tuple[int | None, str], Estimate]) -> tuple[int, Any]:
    (layer, position), _ = item
    return -1 if layer is None else layer, Position.parse(position)
