"""A leaderboard as a table in the terminal and as one sortable page for any static host.

Use:

    print_leaderboard(board)
    write_leaderboard_page(board, "index.html")
"""

from pathlib import Path
from typing import TYPE_CHECKING

import rich.box
from rich.markup import escape
from rich.table import Table

from patchbench.common import atomic_write
from patchbench.report.console import make_console
from patchbench.report.terminal import cell

if TYPE_CHECKING:
    from patchbench.leaderboard import Leaderboard


def print_leaderboard(board: "Leaderboard") -> None:
    """Print a line per Result."""
    console = make_console()
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, name in enumerate(("model", "task", "accuracy", "verdict", "date")):
        table.add_column(name, overflow="fold", justify="right" if index == 2 else "left")
    for entry in board.entries:
        table.add_row(
            escape(entry.model), escape(entry.task), cell(entry.accuracy), entry.verdict, entry.date
        )
    console.print(table)


def write_leaderboard_page(board: "Leaderboard", path: str | Path) -> None:
    """Write the page, in whole or not at all; the same entries give the same bytes.

    Raises:
        UserError: it cannot be written.
    """
    from patchbench.report.html import interval_text
    from patchbench.report.page import Block, PageTable, render_page

    table = PageTable(
        header=[
            *("model", "task", "accuracy", "mechanism"),
            *(f"Attrib@{position}" for position in board.positions),
            *("size", "layer", "items", "seed", "date", "version"),
        ],
        rows=[
            [
                entry.model,
                entry.task,
                interval_text(entry.accuracy.to_json(), 2),
                entry.verdict,
                *(
                    interval_text(entry.attrib[p].to_json() if p in entry.attrib else None, 2)
                    for p in board.positions
                ),
                f"{entry.parameters / 1e6:.3f} M",
                str(entry.layer),
                str(entry.n),
                str(entry.seed),
                entry.date,
                entry.version,
            ]
            for entry in board.entries
        ],
    )
    lines = [
        f"Attrib of block_input at each model's layer, {board.corruption} corrupted, denoised: 0 "
        "where putting the clean activation back restores nothing, 1 where it restores all. "
        "In brackets 95 % intervals. Models below the gate have no effects. A click on a column's "
        "name sorts by it."
    ]
    count = len(board.entries)
    title = f"patchbench leaderboard: {count} Result{'s' if count != 1 else ''}"
    blocks = [Block("Results", lines=lines, tables=[table])]
    html = render_page(title, results={}, blocks=blocks, wide=True)
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(html, encoding="utf-8")
