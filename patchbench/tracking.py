"""Results in Weights & Biases or in trackio, after they are on disk.

Use:

    tracking = Tracking(project="recall", mode="offline")
    for line in log_results({"mamba": result}, tracking):       # one run each
        print(line)                                             # where it is, or what failed

A run has the settings, the scalars in its summary, the table of sites, the figures and the folder
of the Result as an artifact. A server that fails or is slow costs bounded time and a line that says
so, never a Result: a W&B run that cannot start online is recorded offline, for `wandb sync`.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from patchbench.common import UserError, near_names
from patchbench.tracking_content import STEP, Content, compared, measured, training_curves

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from patchbench.comparing import Comparison
    from patchbench.results import Result

TRACKERS = ("wandb", "trackio")
MODES = ("online", "offline", "disabled")
# Seconds that a server may take to begin and to end a run.
BEGIN, END = 20, 60


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where runs go; what is None is left to the tracker and its environment variables.

    Attributes:
        project: of the runs.
        entity: user or team (W&B).
        name: of the run; of several, the first part of their names.
        group: of the runs.
        tags: of the runs (W&B).
        mode: "online", "offline" or "disabled" (W&B).
        tracker: "wandb" or "trackio".
    """

    project: str
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    mode: str | None = None
    tracker: str = "wandb"

    def __post_init__(self) -> None:
        if self.tracker not in TRACKERS:
            raise UserError(f"unknown tracker {self.tracker!r}", near_names(self.tracker, TRACKERS))
        if self.mode not in (None, *MODES):
            raise UserError(f"unknown mode {self.mode!r} of W&B", near_names(self.mode, MODES))
        if not self.project.strip() or set(self.project) & set("/\\#?%:"):
            raise UserError(f"project {self.project!r}", "a name without / \\ # ? % : is needed")
        if self.tracker == "trackio" and (self.entity or self.tags or self.mode):
            raise UserError("trackio has no entity, tags or mode", "drop them")
        if importlib.util.find_spec(self.tracker) is None:
            raise UserError(
                f"{self.tracker} is not installed", f'pip install "patchbench[{self.tracker}]"'
            )


def log_results(
    results: "Mapping[str, Result]",
    tracking: Tracking,
    *,
    folders: Mapping[str, Path] | None = None,
    comparison: "Comparison | None" = None,
    group: str | None = None,
) -> list[str]:
    """Log each Result as a run, several as a group, and a comparison of them as one more.

    A single Result goes into the W&B run that is open, if one is: a training's. What WANDB_RUN_ID
    and WANDB_RESUME say is of a single run: several have ids of their own.

    Args:
        results: by name.
        tracking: where to.
        folders: of the Results on disk; one that is not there is written for the upload.
        comparison: of these Results.
        group: that they belong to with others, where neither `tracking` nor WANDB_RUN_GROUP names
            one.

    Returns:
        A line for each run: where it is, or a warning. Nothing that a tracker raises comes through.
    """
    several = group is not None or len(results) + (comparison is not None) > 1
    if group is None and several:
        created = next(iter(results.values())).provenance.get("created") or "runs"
        group = f"patchbench {created}"
    if tracking.group is not None or _told(tracking, "WANDB_RUN_GROUP"):
        group = tracking.group
    lines = []
    for name, result in results.items():
        content = measured(result, name if several else result.summary["model"]["name"])
        folder = (folders or {}).get(name)
        lines.append(_log(content, tracking, group, several, result=result, folder=folder))
    if comparison is not None:
        lines.append(_log(compared(comparison, results), tracking, group, several))
    return lines


@dataclass(frozen=True, kw_only=True)
class _Run:
    """How a run is sent, and what of it is not in its content."""

    name: str | None
    group: str | None
    several: bool
    figures: "Mapping[str, go.Figure]"
    curves: Sequence[Mapping[str, float]]
    folder: Path | None


def _log(
    content: Content,
    tracking: Tracking,
    group: str | None,
    several: bool,
    *,
    result: "Result | None" = None,
    folder: Path | None = None,
) -> str:
    """Log one run and return the line about it."""
    name = "/".join(filter(None, [tracking.name, content.name])) if several else tracking.name
    if name is None and not _told(tracking, "WANDB_NAME"):
        name = content.name
    try:
        with tempfile.TemporaryDirectory() as temporary:
            if result is not None and (folder is None or not folder.is_dir()):
                folder = Path(temporary) / "result"
                result.save(folder)
            run = _Run(
                name=name,
                group=group,
                several=several,
                figures=(content.figures if result is None else _figures(result, folder)) or {},
                curves=[] if folder is None else training_curves(folder),
                folder=folder,
            )
            log = _to_wandb if tracking.tracker == "wandb" else _to_trackio
            return log(content, tracking, run)
    except Exception as error:  # whatever a tracker does, the Result is safe
        return f"warning: {tracking.tracker}: {content.name} was not logged ({_brief(error)})"


def _told(tracking: Tracking, variable: str) -> bool:
    """Return whether an environment variable tells W&B what no option does."""
    return tracking.tracker == "wandb" and bool(os.environ.get(variable))


def _figures(result: "Result", folder: Path | None) -> "Mapping[str, go.Figure]":
    """Return the figures of a Result, and of the training that it is of."""
    from patchbench.report.figures import figures
    from patchbench.report.training_figures import read_dynamics, training_dynamics

    drawn = figures(result)
    dynamics = None if folder is None else read_dynamics(folder)
    learned = None if dynamics is None else training_dynamics(dynamics)
    return drawn if learned is None else {**drawn, "training_dynamics": learned}


def begin(
    tracking: Tracking, *, name: str | None = None, group: str | None = None, several: bool = False
) -> str | None:
    """Open a W&B run, offline where it cannot be opened online; return a warning about that.

    A training calls it before its first step, so that transformers logs its curves into this run.

    Args:
        tracking: where to.
        name: of the run, if not `tracking`'s.
        group: of the run, if not `tracking`'s.
        several: whether it is one of several, none of which is the one that WANDB_RUN_ID names.
    """
    import wandb

    options: dict[str, Any] = {
        "project": tracking.project,
        "entity": tracking.entity,
        "name": tracking.name if name is None else name,
        "group": group or tracking.group,
        "tags": list(tracking.tags) or None,
        "settings": wandb.Settings(
            silent=True,
            console="off",
            init_timeout=BEGIN,
            login_timeout=BEGIN,
            finish_timeout=END,
            finish_timeout_raises=True,
        ),
    }
    if several:
        options |= {"id": secrets.token_hex(4), "resume": "never"}
    wandb.setup(wandb.Settings(silent=True))  # a login would tell where its key is from
    try:
        wandb.init(mode=cast(Any, tracking.mode), **options)
        return None
    except (wandb.Error, OSError, TimeoutError) as error:
        with contextlib.suppress(Exception):
            wandb.teardown()
        wandb.init(mode="offline", **options)
        # transformers asks the environment whether a login is needed.
        os.environ["WANDB_MODE"] = "offline"
        return f"warning: wandb cannot be reached, recorded offline ({_brief(error)})"


def _to_wandb(content: Content, tracking: Tracking, sent: _Run) -> str:
    import wandb

    warning = None
    if wandb.run is None:
        warning = begin(tracking, name=sent.name, group=sent.group, several=sent.several)
    run = wandb.run
    assert run is not None
    late = False
    try:
        run.config.update(content.config, allow_val_change=True)
        # A training that has just ended has logged its curves by itself.
        if sent.curves and run.summary.get(STEP) is None:
            run.define_metric(STEP)
            run.define_metric("train/*", step_metric=STEP)
            for line in sent.curves:
                run.log(dict(line))
        title, header, rows = content.table
        media: dict[str, Any] = {title: wandb.Table(columns=header, data=rows)}
        media |= {f"figures/{key}": wandb.Plotly(figure) for key, figure in sent.figures.items()}
        run.log(media)
        run.summary.update(content.scalars)
        if sent.folder is not None:
            artifact = wandb.Artifact(f"result-{run.id}", type="patchbench-result")
            for file in sorted(filter(Path.is_file, sent.folder.rglob("*"))):  # add_dir prints
                artifact.add_file(str(file), name=file.relative_to(sent.folder).as_posix())
            run.log_artifact(artifact)
    finally:
        try:
            run.finish()
        except TimeoutError:
            late = True
    if run.disabled:
        return "wandb: disabled, nothing was logged"
    place = Path(run.settings.sync_dir)
    if late:
        return f"warning: wandb was not done after {END} s: `wandb sync {place}` uploads the rest"
    if run.offline:
        return f"{warning or 'wandb: recorded offline'}: `wandb sync {place}` uploads it"
    return f"wandb: {run.url}"


def _to_trackio(content: Content, tracking: Tracking, sent: _Run) -> str:
    import trackio  # pyright: ignore[reportMissingImports]

    with contextlib.redirect_stdout(io.StringIO()):
        trackio.init(
            project=tracking.project,
            name=sent.name,
            group=sent.group,
            config=json.loads(json.dumps(content.config)),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        try:
            for line in sent.curves:
                trackio.log(dict(line), step=int(line[STEP]))
            title, header, rows = content.table
            # It has no figures: its Plotly raises.
            trackio.log({**content.scalars, title: trackio.Table(columns=header, data=rows)})
            if sent.folder is not None:
                label = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"result-{sent.name}")
                trackio.log_artifact(sent.folder, name=label, type="patchbench-result")
        finally:
            trackio.finish()
    return f"trackio: logged; `trackio show --project {tracking.project}` opens it"


@contextlib.contextmanager
def tracked_training(
    tracking: Tracking | None, *, name: str, tell: Callable[[str], None]
) -> Iterator[list[str]]:
    """Open the run that a training's curves go to; yield the loggers for transformers.

    What is open when the training fails is closed.

    Args:
        tracking: where to; trackio gets the curves afterwards.
        name: of the run, where neither `tracking` nor WANDB_NAME has one.
        tell: called with a warning, if the run is not as asked for.
    """
    from patchbench.common.processes import is_main_process

    asked = tracking is not None and tracking.tracker == "wandb" and tracking.mode != "disabled"
    if tracking is None or not asked or not is_main_process():
        yield []
        return
    import wandb

    try:
        known = tracking.name is not None or _told(tracking, "WANDB_NAME")
        warning = begin(tracking, name=None if known else name)
    except Exception as error:  # a tracker that does not work costs no training
        warning = f"warning: wandb: the training is not logged ({_brief(error)})"
    if warning:
        tell(warning)
    try:
        yield [] if wandb.run is None else ["wandb"]
    except BaseException:
        if wandb.run is not None:
            with contextlib.suppress(TimeoutError):
                wandb.run.finish(exit_code=1)
        raise


def _brief(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
