"""A Result in the terminal: at most 80 columns, tables on stdout, progress on stderr.

Use:

    with progress_bar("patching", quiet=False) as progress:
        result = evaluate(model, task, progress=progress)
    print_result(result)
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from patchbench.report.beside import print_beside
from patchbench.report.console import make_console
from patchbench.report.verdict import print_found, print_metrics, print_strata, print_verdict
from patchbench.sites import Site, grid_site
from patchbench.statistics import Estimate
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.adapters import LoadedModel
    from patchbench.results import Result

# Columns of "0.98 ±0.03" beside the layer that fit into WIDTH.
MOST_COLUMNS = 5


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f}/s", style="progress.data.speed")


@contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (done, total) that draws a bar with rate and time left on stderr.

    Where stderr is no terminal, a file for example, there is no bar.
    """
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def spinner(label: str, *, quiet: bool) -> Iterator[None]:
    """Show that something of unknown length is under way, on stderr if that is a terminal."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(escape(label), total=None)
        yield


def print_line(text: str) -> None:
    """Print plain text, wrapped."""
    make_console().print(escape(text))


def print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool = False) -> None:
    """Print dicts with equal keys as a table, or as JSON."""
    console = make_console()
    if as_json:
        console.print_json(json.dumps(list(rows)))
        return
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(rows[0] if rows else ()):
        table.add_column(name.replace("_", " "), no_wrap=index == 0)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    console.print(table)


def print_sites(loaded: "LoadedModel", *, as_json: bool = False) -> None:
    """Print the components of each layer; equal layers share a line."""
    hook_map = loaded.hook_map
    groups: list[tuple[list[int | None], list[str]]] = []
    for layer in (None, *range(hook_map.num_layers)):
        components = hook_map.components(layer)
        if not components:
            continue
        if groups and groups[-1][1] == components and groups[-1][0] != [None]:
            groups[-1][0].append(layer)
        else:
            groups.append(([layer], components))
    if as_json:
        content = [
            {"layer": layer, "components": names} for layers, names in groups for layer in layers
        ]
        make_console().print_json(json.dumps(content))
        return
    console = make_console()
    console.print(f"{escape(loaded.name)}  ({hook_map.origin}: {escape(hook_map.model_type)})")
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("layers", no_wrap=True)
    table.add_column("components")
    for layers, names in groups:
        if layers == [None]:
            label = "–"
        else:
            label = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
        table.add_row(label, ", ".join(names))
    console.print(table)
    for note in [*loaded.notes, *hook_map.notes]:
        console.print(f"note: {escape(note)}")


def print_result(result: "Result", *, quiet: bool = False) -> None:
    """Print what was run, the gate, the controls and Attrib by layer × position."""
    console = make_console()
    summary = result.summary
    model, task = summary["model"], summary["task"]
    console.print(
        f"[bold]{escape(model['name'])}[/]  {_count(model['num_parameters'])} parameters, "
        f"{model['dtype']}, {model['device']}"
    )
    console.print(
        f"[bold]{escape(task['name'])}[/]  {task['split']}, {summary['n']} items, "
        f"template {task['template']}, {task['shots']} shots"
    )
    console.print(
        f"accuracy {show_interval(summary['accuracy'])} over the vocabulary, "
        f"{show_interval(summary['accuracy_in_context'])} among in-context values"
    )
    console.print(f"floor    {summary['floor']:.3f} without recall ({task['floor']})")
    beyond = summary["accuracy_beyond_heuristics"]
    if 0 < beyond["n"] < summary["n"]:
        console.print(
            f"accuracy {show_interval(beyond)} on the {beyond['n']} items no heuristic solves"
        )
    agreement = result.provenance.get("engine", {}).get("selfcheck")
    if agreement:
        console.print(
            f"engine   {agreement['engine']}, within {agreement['difference']:.0e} of "
            f"{agreement['reference']} on {agreement['rows']} rows"
        )
    for run in summary["runs"]:
        _print_run(console, result, run)
    for corruption in dict.fromkeys(run["corruption"] for run in summary["runs"]):
        print_metrics(console, [run for run in summary["runs"] if run["corruption"] == corruption])
    print_verdict(console, result.verdict)
    print_beside(console, summary)
    if not quiet:
        for note in result.provenance["notes"]:
            console.print(f"note: {escape(note)}")


def _print_run(console: Console, result: "Result", run: dict[str, Any]) -> None:
    corruption, direction = run["corruption"], run["direction"]
    console.print()
    console.print(
        f"[bold]{corruption} corrupted, {direction}[/]  p(answer) clean "
        f"{show_interval(run['p_clean'])}, corrupted {show_interval(run['p_corrupted'])}"
    )
    console.print(
        "controls " + ", ".join(f"{c['control']} off by {c['error']:.0e}" for c in run["controls"])
    )
    if run["reasons"]:
        console.print(
            f"[yellow]below the gate, so no effects are shown:[/] {'; '.join(run['reasons'])}"
        )
        return
    near = (
        f"{c['control']} @{Site.parse(c['site'].split(' ')[-1]).position} "
        f"{cell(Estimate.from_json(c['attrib']))}"
        if c["control"] == "shuffled source"  # of which there are two
        else f"{c['control']} {cell(Estimate.from_json(c['attrib']))}"
        for c in run["soft_controls"]
    )
    console.print(f"to be near 0: {', '.join(near)}")
    print_found(console, run)
    estimated = result.summary.get("attribution")
    plain, others = _split(effect["site"] for effect in run["effects"])
    asked = result.config["components"]
    for component in dict.fromkeys([*(name for name in asked if name in plain), *plain]):
        grid = result.table(component, corruption, direction, run["primary"])
        print_grid(console, f"Attrib of {component}{_by(run)}", grid)
    if others:
        key = "attrib_logit_diff" if run["primary"] == "logit_diff" else "attrib"
        found = {effect["site"]: Estimate.from_json(effect[key]) for effect in run["effects"]}
        _print_list(console, "Attrib", {name: found[name] for name in others})
    print_strata(console, result.summary, run)
    if estimated is not None:
        print_scores(console, estimated, corruption, direction)


def _by(run: Mapping[str, Any]) -> str:
    return " by logit difference" if run["primary"] == "logit_diff" else ""


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the components that have a place in a grid, and the names of all other sites."""
    components, others = {}, []
    for name in names:
        if (site := grid_site(name)) is None:
            others.append(name)
        else:
            components[site.component] = None
    return list(components), others


def _print_list(console: Console, title: str, effects: "dict[str, Estimate]") -> None:
    """Print single heads, and sites that are patched together or from elsewhere, one a line."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("patched", overflow="fold")
    table.add_column(title, justify="right", no_wrap=True)
    for name, effect in effects.items():
        table.add_row(escape(name), cell(effect))
    console.print(table)


def print_scores(
    console: Console, estimated: dict[str, Any], corruption: str, direction: str
) -> None:
    """Print the first-order scores of all sites, and how far they are from exact numbers."""
    run = run_of(estimated["runs"], corruption, direction)
    if run is None:
        return
    grids: dict[str, dict[tuple[int | None, str], Estimate]] = {}
    others: dict[str, Estimate] = {}
    for score in run["scores"]:
        estimate = Estimate.from_json(score["attrib"])
        if (site := grid_site(score["site"])) is None:
            others[score["site"]] = estimate
        else:
            place = site.layer, str(site.position)
            grids.setdefault(site.component, {})[place] = estimate
    steps = estimated["ig_steps"]
    way = f"gradient over {steps} steps" if steps else "gradient at the base"
    for component, grid in grids.items():
        print_grid(console, f"first order ({way}): estimated Attrib of {component}", grid)
    if others:
        console.print(f"first order ({way}): estimated Attrib of what stands by itself")
        _print_list(console, "estimated", others)
    if against := run["against_exact"]:
        rank = against["rank_correlation"]
        console.print(
            f"first order against exact on {against['n']} sites: rank correlation "
            f"{'none' if rank is None else format(rank, '.2f')}, largest error "
            f"{against['largest_error']:.2g} at {escape(against['site'])}"
        )


def print_grid(
    console: Console, title: str, grid: Mapping[tuple[int | None, str], Estimate]
) -> None:
    """Print layer × position; more positions than fit come in further tables below."""
    layers = list(dict.fromkeys(layer for layer, _ in grid))
    positions = list(dict.fromkeys(position for _, position in grid))
    console.print(f"{title}, ± the wider side of its 95 % interval")
    # A whole sweep has more positions than a model that one looks at has layers.
    if len(layers) <= MOST_COLUMNS and len(positions) > 2 * MOST_COLUMNS:
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("position", no_wrap=True)
        for layer in layers:
            table.add_column("–" if layer is None else f"L{layer}", justify="right", no_wrap=True)
        for position in positions:
            table.add_row(position, *(cell(grid.get((layer, position))) for layer in layers))
        console.print(table)
        return
    for start in range(0, len(positions), MOST_COLUMNS):
        shown = positions[start : start + MOST_COLUMNS]
        table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("layer", justify="right", no_wrap=True)
        for position in shown:
            table.add_column(position, justify="right", no_wrap=True)
        for layer in layers:
            cells = (cell(grid.get((layer, position))) for position in shown)
            table.add_row("–" if layer is None else str(layer), *cells)
        console.print(table)


def cell(estimate: Estimate | None) -> Text:
    """Bold where most of the effect is restored for sure, dim where perhaps none is."""
    if estimate is None or not isfinite(estimate.value):
        return Text("–")
    if not isfinite(estimate.low + estimate.high):
        return Text(_two_digits(estimate.value), style="dim")
    side = max(estimate.high - estimate.value, estimate.value - estimate.low)
    style = "bold" if estimate.low > 0.5 else "" if estimate.low > 0 else "dim"
    return Text(f"{_two_digits(estimate.value)} ±{_two_digits(side)}", style=style)


def _two_digits(value: float) -> str:
    """Format without the sign of a negative zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _count(number: int) -> str:
    """Format as 134.5 M or 52.3 k."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def show_interval(estimate: Mapping[str, Any]) -> str:
    """Format as 0.438 [0.323, 0.559]."""
    return escape(str(Estimate.from_json(estimate)))
