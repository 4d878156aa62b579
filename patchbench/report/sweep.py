"""A sweep in the terminal: a live table of its runs, and what they came to.

Use:

    swept = sweep(config, out=out, executor=executor, show=partial(live_table, quiet=False))
    print_swept(swept)
    print_planned(config)                           # of a dry run
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from patchbench.report.console import make_console
from patchbench.sweeping.monitor import FAILED, FINISHED, RUNNING, WAITING

if TYPE_CHECKING:
    from patchbench.recipes import RunConfig, SweepConfig
    from patchbench.sweeping.monitor import Monitor

_EVERY = 1.0  # seconds between looks at the disk
_ROWS = 12
_COLOURS = {RUNNING: "cyan", FAILED: "red", FINISHED: "green", WAITING: "dim"}


@contextmanager
def live_table(monitor: "Monitor", *, quiet: bool) -> Iterator[None]:
    """Show the runs at work on stderr, if that is a terminal, until the block ends."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with Live(
        console=console,
        get_renderable=lambda: _seen(monitor, console),
        refresh_per_second=1 / _EVERY,
        transient=True,
    ):
        yield


def _seen(monitor: "Monitor", console: Console) -> Group:
    monitor.look()
    rows = max(1, min(_ROWS, console.height - 5))
    return Group(run_table(monitor, rows), Text(status_line(monitor), style="bold"))


def run_table(monitor: "Monitor", rows: int) -> Table:
    """Return the runs at work, then those that failed, then what comes next."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("run", overflow="ellipsis", no_wrap=True)
    for name in ("steps", "", "dev acc"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    order = {RUNNING: 0, FAILED: 1, WAITING: 2, FINISHED: 3}
    states = sorted(monitor.states.items(), key=lambda item: order[item[1].status])
    for name, state in states[:rows]:
        share = state.done / state.total
        accuracy = "" if state.dev_accuracy is None else f"{state.dev_accuracy:.3f}"
        table.add_row(
            escape(name),
            f"{state.done:,} of {state.total:,}",
            f"{share:.0%}",
            accuracy,
            Text(state.status, style=_COLOURS[state.status]),
        )
    if len(states) > rows:
        table.add_row(f"and {len(states) - rows} more", "", "", "", "")
    return table


def status_line(monitor: "Monitor") -> str:
    """Return "3 of 21 finished, 2 running, 140 steps/s, 0:12:03 gone, at most 1:20:00 left"."""
    parts = [f"{monitor.count(FINISHED)} of {len(monitor.runs)} finished"]
    for status in (RUNNING, FAILED):
        if count := monitor.count(status):
            parts.append(f"{count} {status}")
    if monitor.speed:
        parts.append(f"{monitor.speed:.0f} steps/s")
    parts.append(f"{clock(monitor.seconds)} gone")
    left = monitor.seconds_left()
    if left is not None:
        parts.append(f"at most {clock(left)} left")
    return ", ".join(parts)


def clock(seconds: float) -> str:
    """Return "1:02:03"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def print_planned(config: "SweepConfig", finished: Sequence[str] = ()) -> None:
    """Print the runs of a sweep that is not begun."""
    console = make_console()
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "task"):
        table.add_column(name, overflow="fold")
    for name in ("rates", "steps", "minutes"):
        table.add_column(name, justify="right")
    for line in planned(config, finished):
        minutes = "" if line["cpu_seconds"] is None else f"{line['cpu_seconds'] / 60:.1f}"
        table.add_row(
            escape(line["run"]) + (" (finished)" if line["finished"] else ""),
            escape(line["task"]),
            str(len(line["rates"])),
            f"{line['steps']:,}",
            minutes,
        )
    console.print(table)
    rest = [run for run in config.runs if run.name not in finished]
    known = [run.estimate for run in rest if run.estimate is not None]
    console.print(
        f"{len(rest)} of {len(config.runs)} runs to do"
        + (
            f"; {len(known)} of them took {clock(sum(known))} of one core where they were recorded"
            if known
            else "; nobody has recorded how long they take"
        )
    )


def planned(config: "SweepConfig", finished: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one line per run, ready for JSON."""
    return [_planned(run, run.name in finished) for run in config.runs]


def _planned(run: "RunConfig", finished: bool) -> dict[str, Any]:
    training = run.train_config()
    return {
        "run": run.name,
        "group": run.group,
        "task": run.task,
        "rates": list(training.rates),
        "steps": training.total_steps * len(training.rates),
        "cpu_seconds": run.estimate,
        "finished": finished,
    }


def print_swept(lines: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    """Print what each run came to, each group's seeds together, and why runs failed."""
    console = make_console()
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("lr", "steps", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for line in lines:
        if line["error"] is None:
            cells = f"{line['rate']:g}", str(line["steps"]), f"{line['accuracy']['value']:.3f}"
            table.add_row(escape(line["run"]), *cells, line["verdict"] or "no verdict")
        else:
            table.add_row(escape(line["run"]), "", "", "", Text("failed", style="red"))
    console.print(table)
    if groups:
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("seeds together", overflow="fold")
        table.add_column("accuracy over seeds", justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for group in groups:
            table.add_row(escape(group["group"]), group["accuracy"], escape(group["verdict"]))
        console.print(table)
    for line in lines:
        if line["error"] is not None:
            console.print(f"[red]failed[/] {escape(line['run'])}: {escape(line['error'])}")
