"""The demo in the terminal: the bundled models side by side.

Use:

    print_demo(demo())
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from patchbench.report.console import make_console
from patchbench.report.terminal import MOST_COLUMNS, cell
from patchbench.report.verdict import print_verdicts
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.results import Result


def print_demo(results: "Mapping[str, Result]", *, quiet: bool = False) -> None:
    """Print what the residual stream and the short convolutions restore in the bundled models."""
    console, first = make_console(), next(iter(results.values())).summary
    console.print(
        f"{len(results)} small models, each on the task that it was trained on "
        f"({escape(first['task']['name'])}), {first['n']} items"
    )
    print_verdicts(console, results)
    positions = next(iter(results.values())).config["positions"][:MOST_COLUMNS]
    _print_component(results, component="block_input", layers=[1], positions=positions)
    _print_component(results, component="conv_output", layers=[0, 1], positions=positions)
    if not quiet:
        console.print(
            f"one of them in full: patchbench evaluate --model patchbench/{next(iter(results))}"
        )


def _print_component(
    results: "Mapping[str, Result]",
    *,
    component: str,
    layers: Sequence[int],
    positions: Sequence[str],
) -> None:
    """Print a line per Result and layer: accuracy, and Attrib of a component at some positions.

    Of each Result the first corruption and direction are shown. One without the component is left
    out; one below the gate has no effects to show, and its reasons stand below.
    """
    shown = {
        name: result for name, result in results.items() if component in result.config["components"]
    }
    if not shown:
        return
    console = make_console()
    run = next(iter(shown.values())).summary["runs"][0]
    console.print(
        f"Attrib of [bold]{component}[/], {run['corruption']} corrupted, {run['direction']}; "
        "± the wider side (95 %)"
    )
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in ("model", "acc.", "L", *positions):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for name, result in shown.items():
        summary = result.summary["runs"][0]
        for number, layer in enumerate(layers):
            first = (escape(name), f"{result.accuracy.value:.2f}") if number == 0 else ("", "")
            sites = [f"L{layer}.{component}@{position}" for position in positions]
            if summary["reasons"]:
                table.add_row(*first)
                break
            table.add_row(*first, str(layer), *_effects(summary, sites))
    console.print(table)
    for name, result in shown.items():
        if reasons := result.summary["runs"][0]["reasons"]:
            console.print(f"[yellow]{escape(name)} is below the gate:[/] {'; '.join(reasons)}")


def _effects(run: dict[str, Any], sites: Sequence[str]) -> list[Text]:
    found = {effect["site"]: Estimate.from_json(effect["attrib"]) for effect in run["effects"]}
    return [cell(found.get(site)) for site in sites]
