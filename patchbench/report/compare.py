"""A comparison of Results: as tables in the terminal, as CSV or LaTeX, and as a page.

Use:

    print_compared(comparison)
    write_comparison_page(comparison, results, "compare.html")
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import rich.box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from patchbench.common import atomic_write
from patchbench.comparing import ACCURACY
from patchbench.report.console import make_console
from patchbench.report.terminal import MOST_COLUMNS, cell

if TYPE_CHECKING:
    import pandas as pd

    from patchbench.comparing import Comparison
    from patchbench.results import Result
    from patchbench.statistics import Estimate


def print_compared(comparison: "Comparison") -> None:
    """Print what each run reached, and then its differences from the reference."""
    console = make_console()
    for warning in comparison.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
    positions = comparison.positions[: MOST_COLUMNS - 1]
    console.print(
        f"Attrib of [bold]{escape(comparison.component)}[/] of layer L, "
        f"{escape(comparison.corruption)} corrupted, denoise; ± the wider side (95 %)"
    )
    table = _table("run", "L", "accuracy", *positions)
    for row in comparison.rows:
        effects = [cell(row.attrib.get(position)) for position in positions]
        table.add_row(escape(row.name), str(row.layer), cell(row.accuracy), *effects)
    console.print(table)
    if len(comparison.positions) > len(positions):
        left = ", ".join(comparison.positions[len(positions) :])
        console.print(f"no room for {escape(left)}: --csv, --json and --html have them")
    verdicts = _table("run", "verdict")
    verdicts.columns[1].justify = "left"
    for row in comparison.rows:
        verdicts.add_row(escape(row.name), row.verdict)
    console.print(verdicts)
    console.print(f"difference from [bold]{escape(comparison.reference)}[/]; bold: not 0")
    table = _table("run", ACCURACY, *positions, "items")
    for row in comparison.rows:
        if row.name == comparison.reference:
            continue
        differences = [_difference(row.differences.get(name)) for name in (ACCURACY, *positions)]
        table.add_row(escape(row.name), *differences, "same" if row.paired else "others")
    console.print(table)


def _table(*names: str) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(names):
        table.add_column(
            name, justify="right" if index else "left", overflow="fold", no_wrap=index > 0
        )
    return table


def _difference(estimate: "Estimate | None") -> Text:
    text = cell(estimate)
    told = estimate is not None and (estimate.low > 0 or estimate.high < 0)
    return Text(text.plain, style="bold" if told else "dim")


def as_frame(comparison: "Comparison") -> "pd.DataFrame":
    """Return a line per run with every estimate and its limits in columns of their own."""
    import pandas as pd

    def limits(name: str, estimate: "Estimate | None") -> dict[str, float | None]:
        if estimate is None:
            return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        return {
            name: estimate.value,
            f"{name}_low": estimate.low,
            f"{name}_high": estimate.high,
        }

    lines = []
    for row in comparison.rows:
        line = {"run": row.name, "model": row.model, "task": row.task, "verdict": row.verdict}
        line |= {"layer": row.layer, "paired": row.paired}
        line |= limits(ACCURACY, row.accuracy)
        for position in comparison.positions:
            line |= limits(f"attrib_{position}", row.attrib.get(position))
        for name in (ACCURACY, *comparison.positions):
            line |= limits(f"difference_{name}", row.differences.get(name))
        lines.append(line)
    return pd.DataFrame(lines)


def as_latex(comparison: "Comparison") -> str:
    """Return a LaTeX table of accuracy, Attrib and verdict by run (it needs booktabs)."""
    import pandas as pd

    def text(estimate: "Estimate | None") -> str:
        if estimate is None:
            return "--"
        side = max(estimate.high - estimate.value, estimate.value - estimate.low)
        return f"${round(estimate.value, 2) + 0.0:.2f} \\pm {side:.2f}$"

    lines = [
        {"run": _tex(row.name), "accuracy": text(row.accuracy)}
        | {_tex(position): text(row.attrib.get(position)) for position in comparison.positions}
        | {"verdict": _tex(row.verdict)}
        for row in comparison.rows
    ]
    return pd.DataFrame(lines).to_latex(index=False, escape=False)


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(sign, sign) for sign in text)


def write_comparison_page(
    comparison: "Comparison", results: "Mapping[str, Result]", path: str | Path
) -> None:
    """Write a page with all runs, in whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    from patchbench.report.comparison_figures import comparison_figures
    from patchbench.report.figures import grid_components, heat_map
    from patchbench.report.html import interval_text
    from patchbench.report.page import Block, PageTable, render_page

    def words(estimate: "Estimate | None") -> str:
        return interval_text(None if estimate is None else estimate.to_json(), 2)

    ordered = {row.name: results[row.name] for row in comparison.rows}
    together = comparison_figures(comparison, results)
    reached = PageTable(
        header=["run", "accuracy", *(f"Attrib@{p}" for p in comparison.positions), "verdict"],
        rows=[
            [
                row.name,
                words(row.accuracy),
                *(words(row.attrib.get(position)) for position in comparison.positions),
                row.verdict,
            ]
            for row in comparison.rows
        ],
    )
    names = (ACCURACY, *comparison.positions)
    differences = PageTable(
        title=f"Difference from {comparison.reference}",
        header=["run", *names, "items"],
        rows=[
            [row.name, *(words(row.differences.get(n)) for n in names), _items(row.paired)]
            for row in comparison.rows
            if row.name != comparison.reference
        ],
    )
    blocks = [
        Block(
            "Side by side",
            figures=list(together.values()),
            tables=[reached, differences],
        )
    ]
    for name, result in ordered.items():
        run = {"corruption": comparison.corruption, "direction": "denoise"}
        if comparison.component in grid_components(result, **run):
            blocks.append(Block(name, figures=[heat_map(result, comparison.component, **run)]))
    html = render_page(
        f"{len(results)} runs compared",
        results=ordered,
        warnings=comparison.warnings,
        blocks=blocks,
    )
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _items(paired: bool | None) -> str:
    return "same" if paired else "others"
