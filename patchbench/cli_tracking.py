"""The options that send a command's Results to Weights & Biases or trackio, and `patchbench log`.

Use:

    def command(wandb: Wandb = None, wandb_mode: WandbMode = None, …) -> None:
        tracking = tracking_of(wandb, wandb_entity, wandb_name, wandb_group, wandb_tags,
                               wandb_mode, track)            # before the work; None: not asked for
        …
        send(results, tracking, folders)                     # after it is on disk
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchbench.cli_options import names
from patchbench.common import UserError, printable

if TYPE_CHECKING:
    from patchbench.comparing import Comparison
    from patchbench.results import Result
    from patchbench.tracking import Tracking

_PANEL = "Tracking"


def _option(text: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=_PANEL)


Wandb = Annotated[str | None, _option("Log to this project of Weights & Biases.", "PROJECT")]
WandbEntity = Annotated[str | None, _option("User or team.  [default: WANDB_ENTITY]")]
WandbName = Annotated[
    str | None, _option("Of the run.  [default: WANDB_NAME, else the model's or the folder's]")
]
WandbGroup = Annotated[
    str | None, _option("Of the runs.  [default: WANDB_RUN_GROUP, else one for several]")
]
WandbTags = Annotated[str | None, _option("By comma.  [default: WANDB_TAGS]")]
WandbMode = Annotated[
    str | None, _option("online, offline or disabled.  [default: WANDB_MODE, else online]")
]
Track = Annotated[
    str | None,
    _option(
        "wandb, or trackio: a local dashboard; without --wandb in the project of WANDB_PROJECT.  "
        "[default: wandb with --wandb]"
    ),
]


def tracking_of(
    project: str | None,
    entity: str | None,
    name: str | None,
    group: str | None,
    tags: str | None,
    mode: str | None,
    track: str | None,
) -> "Tracking | None":
    """Return what the options ask for, checked before any work; None for no tracking."""
    if project is None and track is None:
        if any((entity, name, group, tags, mode)):
            raise UserError(
                "--wandb-… without --wandb",
                "name the project with --wandb PROJECT, or take WANDB_PROJECT's with --track wandb",
            )
        return None
    from patchbench.tracking import Tracking

    return Tracking(
        project=project or os.environ.get("WANDB_PROJECT") or "patchbench",
        entity=entity,
        name=name,
        group=group,
        tags=names(tags or ""),
        mode=mode,
        tracker=track or "wandb",
    )


def send(
    results: "Mapping[str, Result]",
    tracking: "Tracking | None",
    folders: Mapping[str, Path] | None = None,
    comparison: "Comparison | None" = None,
    group: str | None = None,
) -> None:
    """Log the Results, if that was asked for, and tell on stderr where they are.

    The arguments are those of `patchbench.tracking.log_results`.
    """
    if tracking is None:
        return
    from patchbench.tracking import log_results

    lines = log_results(results, tracking, folders=folders, comparison=comparison, group=group)
    for line in lines:
        typer.echo(printable(line), err=True)


def log(
    runs: Annotated[
        list[str], typer.Argument(help="Folders of Results, folders that hold some, or globs.")
    ],
    wandb: Wandb = None,
    wandb_entity: WandbEntity = None,
    wandb_name: WandbName = None,
    wandb_group: WandbGroup = None,
    wandb_tags: WandbTags = None,
    wandb_mode: WandbMode = None,
    track: Track = None,
) -> None:
    """Send finished runs to Weights & Biases or trackio."""
    tracking = tracking_of(
        wandb, wandb_entity, wandb_name, wandb_group, wandb_tags, wandb_mode, track
    )
    if tracking is None:
        raise UserError("nowhere to log to", "pass --wandb PROJECT or --track trackio")
    from patchbench.finding import find_results, load_results

    send(load_results(runs), tracking, find_results(runs))
