"""Held-out pairs and the untrained twin, in the terminal and as sections of a page.

Use:

    print_beside(console, result.summary)
    blocks += beside_blocks(result.summary)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patchbench.report.verdict import strongest
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.report.page import Block

_COLUMNS = ("test", "dev", "test − dev")
_NOT_RECORDED = "which pairs its training asked is not on record"


def print_beside(console: Console, summary: Mapping[str, Any]) -> None:
    """Print what the summary has of either."""
    for line in _twin_lines(summary):
        console.print(escape(line))
    found = summary.get("held_out")
    if not found:
        return
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("held-out pairs", overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, test, dev, difference in _held_out_rows(summary, found, strongest):
        outcome = found["outcomes"].get(name, "")
        style = "bold" if outcome in ("lower", "higher") else ""
        table.add_row(*map(escape, (name, test, dev, difference)), style=style)
    console.print(table)
    for line in _held_out_lines(found):
        console.print(escape(line))


def beside_blocks(summary: Mapping[str, Any]) -> "list[Block]":
    """Return the sections of a page."""
    from patchbench.report.page import Block, PageTable

    blocks = []
    if lines := _twin_lines(summary):
        blocks.append(Block("Untrained twin", lines=lines))
    if found := summary.get("held_out"):

        def every(run: Mapping[str, Any]) -> list[str]:
            return [effect["site"] for effect in run["effects"]]

        rows = [list(row) for row in _held_out_rows(summary, found, every)]
        table = PageTable(header=["held-out pairs", *_COLUMNS], rows=rows)
        blocks.append(Block("Held-out pairs", lines=_held_out_lines(found), tables=[table]))
    return blocks


def _twin_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the untrained twin's accuracy, and its Attrib at the model's strongest sites."""
    twin = summary.get("untrained")
    if not twin:
        return []
    accuracy = Estimate.from_json(twin["accuracy"])
    lines = [f"untrained twin (seed {twin['seed']}): accuracy {accuracy}"]
    for other in twin["runs"]:
        which = f"{other['corruption']} corrupted, {other['direction']}"
        if other["reasons"]:
            lines.append(f"{which}: below the gate: {'; '.join(other['reasons'])}")
            continue
        run = run_of(summary["runs"], other["corruption"], other["direction"])
        effects = {e["site"]: Estimate.from_json(e["attrib"]) for e in other["effects"]}
        names = [name for name in strongest(run or other) if name in effects]
        lines.append(f"{which}: {', '.join(f'{name} {effects[name]}' for name in names)}")
    return lines


def _held_out_rows(
    summary: Mapping[str, Any], found: Mapping[str, Any], sites: Any
) -> list[tuple[str, str, str, str]]:
    """Return accuracy and the effects of some sites of each run: on test, on dev, apart."""
    rows = [_row("accuracy", found["accuracy"])]
    for run, other in zip(summary["runs"], found["runs"], strict=True):
        effects = {effect["site"]: effect for effect in other["effects"]}
        which = (run["corruption"], run["direction"])
        shown = which == (summary["verdict"]["corruption"], summary["verdict"]["direction"])
        # Those of the verdict by their names alone.
        more = "" if shown else f", {', '.join(which)}"
        rows += [
            _row(f"{s}{more}", effects[s]) for s in (sites(run) if effects else ()) if s in effects
        ]
    return rows


def _row(name: str, item: Mapping[str, Any]) -> tuple[str, str, str, str]:
    test, dev = (
        "–" if item[s] is None else f"{round(item[s], 3) + 0.0:.3f}" for s in ("test", "dev")
    )
    difference = item["difference"]
    text = "–" if difference["value"] is None else str(Estimate.from_json(difference))
    return name, test, dev, text


def _held_out_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [found["reading"]] if found["reading"] else []
    if not found["recorded"]:
        lines.append(f"note: {_NOT_RECORDED}: they are held out only if it had this task and seed")
    return lines
