"""The commands `patchbench recipes` and `patchbench sweep`.

Use:

    app.command()(recipes)        # by patchbench.cli
    app.command()(sweep)
"""

import json
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbench.cli_options import (
    Interrupted,
    Json,
    Overrides,
    Quiet,
    calm_libraries,
    command_line,
    names,
    overrides_of,
)
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
from patchbench.common import UserError, near_names

if TYPE_CHECKING:
    from patchbench.recipes import SweepConfig
    from patchbench.sweeping import Executor, Swept
    from patchbench.sweeping.folder import SweepFolder
    from patchbench.sweeping.job import Outcome
    from patchbench.tracking import Tracking

EXECUTORS = ("local", "ray")


def recipes(as_json: Json = False) -> None:
    """List the recipes of `patchbench sweep`."""
    calm_libraries()
    from patchbench.recipes import list_recipes
    from patchbench.report import terminal

    terminal.print_rows([asdict(info) for info in list_recipes()], as_json=as_json)


def sweep(
    recipe: Annotated[str, typer.Argument(help="See `patchbench recipes`.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the runs.")] = None,
    scale: Annotated[
        str, typer.Option(help="mini (minutes per run on one core) or paper (the paper's own).")
    ] = "mini",
    arch: Annotated[
        str | None, typer.Option("--arch", "-a", help="By comma.  [default: the recipe's]")
    ] = None,
    widths: Annotated[str | None, typer.Option(help="By comma.  [default: the scale's]")] = None,
    lrs: Annotated[
        str | None,
        typer.Option(help="Learning rates by comma; dev chooses.  [default: the scale's]"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="By comma.  [default: 0,1,2]")] = None,
    train: Annotated[
        list[str] | None,
        typer.Option("--train", metavar="NAME=VALUE", help="Override a setting of the training."),
    ] = None,
    overrides: Overrides = None,
    only: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Runs to do, as in 'mamba-*'.")
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local (processes of this machine) or ray (a cluster).")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time.  [default: one per core, or what GPUs hold]")
    ] = None,
    runs_per_gpu: Annotated[int, typer.Option(help="Runs that share one GPU.")] = 1,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster.  [default: one of its own]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cpu.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads of each run.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell which runs there are, and do none.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Add report.html to each run: figures, to be opened offline.")
    ] = True,
    wandb: Wandb = None,
    wandb_entity: WandbEntity = None,
    wandb_name: WandbName = None,
    wandb_group: WandbGroup = None,
    wandb_tags: WandbTags = None,
    wandb_mode: WandbMode = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do the runs of a recipe; the same command again goes on where a killed one was."""
    tracking = tracking_of(
        wandb, wandb_entity, wandb_name, wandb_group, wandb_tags, wandb_mode, track
    )
    if executor not in EXECUTORS:
        raise UserError(f"unknown executor {executor!r}", near_names(executor, EXECUTORS))
    if address is not None and executor != "ray":
        raise UserError("--address is of a Ray cluster", "add --executor ray, or drop it")
    if device not in ("auto", "cpu"):
        raise UserError(f"device {device!r}", "training takes auto or cpu")
    if out is None and not dry_run:
        raise UserError("--out is missing", "name a folder, or ask with --dry-run")
    choice: dict[str, Any] = {
        "scale": scale,
        "archs": None if arch is None else names(arch),
        "widths": None if widths is None else _numbers("--widths", widths, int),
        "rates": None if lrs is None else _numbers("--lrs", lrs, float),
        "seeds": None if seeds is None else _numbers("--seeds", seeds, int),
        "training": overrides_of(train, "--train"),
        "overrides": overrides_of(overrides),
    }
    calm_libraries()
    from patchbench.recipes import RECIPES

    config = RECIPES[recipe](**{name: value for name, value in choice.items() if value})
    if only is not None:
        config = config.only(only)
    if dry_run:
        _print_plan(config, out, as_json=as_json)
        return
    assert out is not None
    at = _executor(executor, address, workers, threads, device, runs_per_gpu)
    swept = _sweep(config, out, at, tracking, report=report, quiet=quiet, as_json=as_json)
    _print(swept, out, as_json=as_json)
    if swept.failed:
        raise typer.Exit(1)


def _sweep(
    config: "SweepConfig",
    out: Path,
    executor: "Executor",
    tracking: "Tracking | None",
    *,
    report: bool,
    quiet: bool,
    as_json: bool,
) -> "Swept":
    from patchbench.report.sweep import live_table
    from patchbench.sweeping import sweep as run

    def show(folder: "SweepFolder", outcome: "Outcome") -> None:
        if outcome.error is not None:
            return
        if report:
            _write_report(folder, outcome.name)
        if tracking is None:
            return
        results = {outcome.name: folder.result(outcome.name)}
        folders = {outcome.name: folder.run(outcome.name) / "result"}
        try:
            send(results, tracking, folders, group=f"{config.recipe} {folder.path.resolve().name}")
        except UserError as mistake:  # the other runs go on
            typer.echo(
                f"{outcome.name} is not logged ({mistake}): `patchbench log {out}` logs it later",
                err=True,
            )

    try:
        swept = run(
            config,
            out=out,
            executor=executor,
            command=command_line(),
            show=partial(live_table, quiet=quiet or as_json),
            on_done=show,
        )
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; the same command goes on from the last checkpoints"
        ) from None
    if report:  # also of what was finished when an earlier sweep was killed
        for name in swept.finished:
            _write_report(swept.folder, name)
    if tracking is not None and swept.skipped:
        typer.echo(
            f"{len(swept.skipped)} of the runs were finished before and are not logged now: "
            f"`patchbench log {out}` logs all of them",
            err=True,
        )
    return swept


def _write_report(folder: "SweepFolder", name: str) -> None:
    """Write the page of a finished run, if it has none."""
    from patchbench.report.html import FILE, write_report
    from patchbench.report.training_figures import read_dynamics

    place = folder.run(name)
    if not (place / FILE).exists():
        write_report(folder.result(name), place / FILE, dynamics=read_dynamics(place))


def _executor(
    name: str,
    address: str | None,
    workers: int | None,
    threads: int,
    device: str,
    runs_per_gpu: int,
) -> "Executor":
    counts: dict[str, Any] = {"workers": workers, "threads": threads, "runs_per_gpu": runs_per_gpu}
    if name == "ray":
        from patchbench.sweeping.on_ray import RayExecutor

        return RayExecutor(address=address, device=device, **counts)
    from patchbench.sweeping import LocalExecutor

    return LocalExecutor(device=device, **counts)


def _print_plan(config: "SweepConfig", out: Path | None, *, as_json: bool) -> None:
    from patchbench.report.sweep import planned, print_planned
    from patchbench.sweeping.folder import SweepFolder

    for group in config.groups().values():
        group[0].check()
    finished: list[str] = []
    if out is not None:
        folder = SweepFolder.open(out, config)
        finished = [run.name for run in config.runs if folder.finished(run.name)]
    if as_json:
        typer.echo(
            json.dumps({"recipe": config.recipe, "runs": planned(config, finished)}, indent=2)
        )
    else:
        print_planned(config, finished)


def _print(swept: "Swept", out: Path, *, as_json: bool) -> None:
    from patchbench.report.pooled import agreement
    from patchbench.report.sweep import print_swept
    from patchbench.sweeping.outcomes import lines, pooled

    runs, together = lines(swept), pooled(swept)
    if as_json:
        summaries = {name: group.summary for name, group in together.items()}
        typer.echo(json.dumps({"runs": runs, "groups": summaries}, indent=2))
        return
    print_swept(
        runs,
        [
            {
                "group": name,
                "accuracy": str(group.accuracy),
                "verdict": agreement(group.summary["verdict"], "seeds"),
            }
            for name, group in together.items()
        ],
    )
    typer.echo(f"written: {out}")


def _numbers(flag: str, text: str, kind: type) -> list[Any]:
    """Parse "16,32"."""
    found: list[Any] = []
    with suppress(ValueError):
        found = [kind(part) for part in names(text)]
    if not found or len(set(found)) < len(found):
        words = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{flag} {text!r}", f"different {words} by comma are needed")
    return found
