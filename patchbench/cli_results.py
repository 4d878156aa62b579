"""`patchbench show`, `compare` and `pool`: what finished runs say.

Nothing is computed by a model here; everything comes from the folders of Results.
"""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from patchbench.cli_options import Json, Quiet, names
from patchbench.cli_tracking import (
    Track,
    Wandb,
    WandbEntity,
    WandbGroup,
    WandbMode,
    WandbName,
    WandbTags,
    send,
    tracking_of,
)
from patchbench.common import UserError, printable
from patchbench.common.files import check_writable

Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page, to be opened offline.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace --html.")]


def show(
    run: Annotated[Path, typer.Argument(help="Folder of a Result, or of a training run.")],
    html: Html = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print a finished run: its table and its verdict."""
    _check_html(html, overwrite)
    from patchbench.finding import find_results
    from patchbench.report import terminal
    from patchbench.results import Result

    found = find_results([str(run)])
    if len(found) > 1:
        raise UserError(f"{run} holds {len(found)} Results", "use `patchbench compare`")
    (folder,) = found.values()
    result = Result.load(folder)
    if as_json:
        typer.echo(json.dumps(result.summary, indent=2))
    else:
        terminal.print_result(result, quiet=quiet)
    if html is not None:
        from patchbench.report.html import write_report
        from patchbench.report.training_figures import read_dynamics

        write_report(result, html, dynamics=read_dynamics(folder))
        typer.echo(f"written: {html}", err=as_json)


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of Results, folders that hold some, or globs.")
    ],
    reference: Annotated[
        str | None,
        typer.Option(help="The run that differences are from.  [default: the most accurate]"),
    ] = None,
    corruption: Annotated[str, typer.Option(help="key, value or swap.")] = "key",
    component: Annotated[str, typer.Option(help="Hook point.")] = "block_input",
    positions: Annotated[str, typer.Option(help="By comma.")] = "key,value,query",
    layer: Annotated[
        int | None, typer.Option(help="[default: the middle one of each model]")
    ] = None,
    html: Html = None,
    overwrite: Overwrite = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of tables.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX instead.")] = False,
    wandb: Wandb = None,
    wandb_entity: WandbEntity = None,
    wandb_name: WandbName = None,
    wandb_group: WandbGroup = None,
    wandb_tags: WandbTags = None,
    wandb_mode: WandbMode = None,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Put finished runs side by side, with the intervals of their differences."""
    if as_csv + as_latex + as_json > 1:
        raise UserError("--csv, --latex and --json exclude one another", "pass one of them")
    tracking = tracking_of(
        wandb, wandb_entity, wandb_name, wandb_group, wandb_tags, wandb_mode, track
    )
    _check_html(html, overwrite)
    from patchbench.comparing import compare as compare_results
    from patchbench.finding import find_results, load_results
    from patchbench.report import compare as shown

    results = load_results(runs)
    comparison = compare_results(
        results,
        reference=reference,
        corruption=corruption,
        component=component,
        positions=names(positions),
        layer=layer,
    )
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2))
    elif as_csv:
        typer.echo(shown.as_frame(comparison).to_csv(index=False), nl=False)
    elif as_latex:
        typer.echo(shown.as_latex(comparison), nl=False)
    else:
        shown.print_compared(comparison)
    if as_csv or as_latex:
        for warning in comparison.warnings:
            typer.echo(f"warning: {printable(warning)}", err=True)
    if html is not None:
        shown.write_comparison_page(comparison, results, html)
        typer.echo(f"written: {html}", err=as_json or as_csv or as_latex)
    send(results, tracking, find_results(runs), comparison)


def pool(
    runs: Annotated[
        list[str],
        typer.Argument(help="Runs of one experiment that differ in the seed: as for `compare`."),
    ],
    seed: Annotated[int, typer.Option(help="Of the bootstrap.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Pool runs of several seeds: effects over seeds, and how many agree on the verdict."""
    from patchbench.finding import load_results
    from patchbench.pooling import pool as pooled_of
    from patchbench.report.pooled import print_pooled

    pooled = pooled_of(load_results(runs), seed=seed)
    if as_json:
        typer.echo(json.dumps(pooled.summary, indent=2))
    else:
        print_pooled(pooled)


def leaderboard(
    folders: Annotated[
        list[str], typer.Argument(help="Folders that hold Results at any depth, or globs.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page, as in index.html.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    corruption: Annotated[str, typer.Option(help="key, value or swap.")] = "key",
    positions: Annotated[str, typer.Option(help="By comma.")] = "key,value,query",
    layer: Annotated[
        int | None, typer.Option(help="[default: the middle one of each model]")
    ] = None,
    as_json: Json = False,
) -> None:
    """List all Results of some folders, each once, as a sortable page for any static host."""
    _check_html(out, overwrite)
    from patchbench.leaderboard import leaderboard as collect
    from patchbench.report.leaderboard import print_leaderboard, write_leaderboard_page

    board = collect(folders, corruption=corruption, positions=names(positions), layer=layer)
    for warning in board.warnings:
        typer.echo(f"warning: {printable(warning)}", err=True)
    if as_json:
        typer.echo(json.dumps(board.to_json(), indent=2))
    elif out is None:
        print_leaderboard(board)
    if out is not None:
        write_leaderboard_page(board, out)
        typer.echo(f"written: {out}", err=as_json)


def _check_html(html: Path | None, overwrite: bool) -> None:
    """Check that a page can be written, before the work."""
    if html is None:
        return
    if os.path.isdir(html):
        raise UserError(f"{html} is a folder", "name a file, for example report.html")
    if os.path.lexists(html) and not overwrite:
        raise UserError(f"{html} exists", "name another file, or pass --overwrite")
    if not os.path.isdir(html.absolute().parent):
        raise UserError(f"{html.parent} is no folder", "make it first")
    check_writable(html, overwrite=True)
