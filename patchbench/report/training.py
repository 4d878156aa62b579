"""A training in the terminal: a bar with loss, accuracy, rate and time left, and a closing table.

Use:

    with training_bar(quiet=False) as (progress, measuring):
        trained = train(spec, task, out=out, progress=progress, steps=2000)
    print_trained(trained)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from patchbench.report.console import make_console
from patchbench.report.terminal import print_result, show_interval
from patchbench.training.config import shown_rate

if TYPE_CHECKING:
    from patchbench.evaluation import Progress as Measuring
    from patchbench.training import Progress as Callback
    from patchbench.training import Trained


@contextmanager
def training_bar(*, quiet: bool) -> "Iterator[tuple[Callback | None, Measuring | None]]":
    """Yield `train`'s two callbacks, which draw on stderr, if that is a terminal."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield None, None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[known]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars: dict[float | str, Any] = {}

        def bar(key: float | str, label: str, done: int, total: int) -> Any:
            if key not in bars:
                bars[key] = progress.add_task(
                    label, total=total, completed=done, speed="", known=""
                )
            return bars[key]

        def show(rate: float, done: int, total: int, known: dict[str, float]) -> None:
            key = bar(rate, f"lr {shown_rate(rate)}", done, total)
            speed = progress.tasks[key].speed
            progress.update(
                key,
                completed=done,
                speed="" if speed is None else f"{speed:.0f}/s",
                known=_known(known),
            )

        def show_measuring(done: int, total: int) -> None:
            progress.update(bar("", "patching", done, total), completed=done, total=total)

        yield show, show_measuring


def print_trained(trained: "Trained", *, quiet: bool = False) -> None:
    """Print how the training went, then the Result on test."""
    console = make_console()
    console.print(
        f"trained {trained.steps} steps with learning rate {shown_rate(trained.rate)}"
        + (f"; {trained.stopped}" if trained.stopped else "")
    )
    if len(trained.grid) > 1:
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        for name in ("rate", "dev loss", "dev accuracy", "steps"):
            table.add_column(name, justify="right")
        for line in trained.grid:
            style = "bold" if line["rate"] == trained.rate else ""
            cells = ("diverged", "–") if line["diverged"] else (
                f"{line['dev_loss']:.4f}",
                f"{line['dev_accuracy']:.3f}",
            )  # fmt: skip
            table.add_row(shown_rate(line["rate"]), *cells, str(line["steps"]), style=style)
        console.print(table)
    if trained.before is not None:
        console.print(
            f"accuracy {show_interval(trained.before.summary['accuracy'])} before, "
            f"{show_interval(trained.result.summary['accuracy'])} after"
        )
    print_result(trained.result, quiet=quiet)


def _known(known: dict[str, float]) -> str:
    parts = [f"loss {known['loss']:.3f}"] if "loss" in known else []
    name = "dev_accuracy" if "dev_accuracy" in known else "accuracy"
    if name in known:
        parts.append(f"{'dev acc' if name == 'dev_accuracy' else 'acc'} {known[name]:.3f}")
    return " ".join(parts)
