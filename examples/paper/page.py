"""Write the page of the paper's claims, `README.md` beside this file, from what was collected.

Use (after `collect.py`; figures need `playwright` and an installed Chromium):

    python examples/paper/page.py
    python examples/paper/page.py --no-figures
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import plotly.graph_objects as go
import typer
from claims import claims
from measures import SIGNS, Alone, Claim, Pools
from pictures import draw
from remarks import REMARKS

from patchbench.common import UserError
from patchbench.pooling import Pooled, pool
from patchbench.report.comparison_figures import accuracy_scatter, mechanism_triangle
from patchbench.report.pooled import agreement
from patchbench.report.training_figures import read_dynamics, training_dynamics
from patchbench.results import Result
from patchbench.statistics import Estimate
from patchbench.sweeping.folder import SweepFolder, read_sweep

HERE = Path(__file__).parent
SCALES = {
    "mini": "Small tasks: `ar` with 8 pairs of 64 keys and 64 values, `atr/easy` with sentences of "
    "up to 44 tokens; width 64, the settings of `patchbench train --preset mini`.",
    "paper": "The paper's own tasks and trainings, at width 64.",
}
_WIDTH = re.compile(r"-w\d+$")


def main(
    results: Annotated[Path, typer.Option(help="What was collected.")] = HERE / "results",
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = HERE,
    figures: Annotated[bool, typer.Option(help="Draw the figures again.")] = True,
) -> None:
    """Write the page."""
    text = [(HERE / "intro.md").read_text(encoding="utf-8").rstrip()]
    for scale, what in SCALES.items():
        folders = sweeps(results / scale)
        pools = {name: pooled for f in folders.items() for name, pooled in pools_of(*f).items()}
        text += [f"## Scale `{scale}`", what]
        if not pools:
            text.append("Not run.")
            continue
        text += [legend(), claims_table(claims(scale), pools), remarks(scale)]
        drawn = figures_of(scale, folders)
        if figures:
            draw(drawn, out / "figures")
        text += [f"![{alt(name)}](figures/{name}.png)" for name in drawn]
        text += ["### Every model", models_table(pools)]
    file = out / "README.md"
    file.write_text("\n\n".join(filter(None, text)) + "\n", encoding="utf-8")
    typer.echo(f"written: {file}")


def sweeps(folder: Path) -> dict[str, SweepFolder]:
    """Return what was collected at a scale, by recipe."""
    files = sorted(folder.glob("*/sweep.json"))
    return {file.parent.name: read_sweep(file.parent) for file in files}


def pools_of(recipe: str, folder: SweepFolder) -> dict[tuple[str, str], Pooled | Alone]:
    """Return the seeds of each variant together, or the one that there is."""
    groups: dict[str, dict[str, Result]] = {}
    for run in folder.runs.values():
        groups.setdefault(run.group, {})[run.name] = folder.result(run.name)
    if len({_WIDTH.sub("", group) for group in groups}) < len(groups):
        raise UserError(f"{recipe} has a variant at several widths", "collect those of one width")
    return {
        (recipe, _WIDTH.sub("", group)): pool(results)
        if len(results) > 1
        else Alone(*next(iter(results.items())))
        for group, results in groups.items()
    }


def legend() -> str:
    """Return what the signs mean."""
    return "\n".join(f"- {sign}: {meaning}" for sign, meaning in SIGNS.items())


def claims_table(every: tuple[Claim, ...], pools: Pools) -> str:
    """Return a Markdown table: a line per measure, with the paper's number, the limit and ours."""
    lines = ["| claim | measure | limit | paper | here (95 % over seeds) | |", "|---" * 6 + "|"]
    for claim in every:
        text = claim.text
        for measure in claim.measures:
            value = measure.value(pools)
            lines.append(
                f"| {text} | {measure.name} | {measure.limit} | {measure.paper} "
                f"| {shown(value)}{few(measure.seeds(pools))} | {measure.judge(pools)} |"
            )
            text = ""
    return "\n".join(lines)


def few(seeds: int) -> str:
    """Return what is to be said of a number from fewer seeds than the page promises."""
    return {1: ", one seed", 2: ", two seeds"}.get(seeds, "")


def shown(value: Estimate | None) -> str:
    """Return a number with its interval."""
    if value is None:
        return ""
    number, low, high = (round(x, 2) + 0.0 for x in (value.value, value.low, value.high))
    return f"{number:.2f} [{low:.2f}, {high:.2f}]"


def models_table(pools: Pools) -> str:
    """Return a Markdown table: a line per variant, with its seeds and what they agree on."""
    lines = ["| recipe | model | accuracy of each seed | floor | verdict |", "|---" * 5 + "|"]
    for (recipe, variant), pooled in pools.items():
        each = list(pooled.results.values())
        accuracies = ", ".join(f"{one.accuracy.value:.3f}" for one in each)
        floor = sum(one.summary["floor"] for one in each) / len(each)
        if isinstance(pooled, Alone):
            verdict = f"{pooled.result.verdict} in the one seed"
        else:
            verdict = agreement(pooled.summary["verdict"], "seeds")
        lines.append(f"| {recipe} | {variant} | {accuracies} | {floor:.2f} | {verdict} |")
    return "\n".join(lines)


def remarks(scale: str) -> str:
    """Return what is to be said where it differs from the paper."""
    return "\n".join(f"- {text}" for text in REMARKS.get(scale, ()))


def figures_of(scale: str, folders: Mapping[str, SweepFolder]) -> dict[str, go.Figure]:
    """Return the figures of a scale by their file's name."""
    found: dict[str, go.Figure | None] = {}
    for recipe, folder in folders.items():
        results = {name: folder.result(name) for name in folder.runs}
        place = f"{scale}-{recipe}"
        found[f"{place}-triangle"] = mechanism_triangle(results)
        found[f"{place}-accuracy"] = accuracy_scatter(results)
        for run in folder.runs.values():
            dynamics = read_dynamics(folder.run(run.name))
            if run.training["seed"] == 0 and dynamics is not None:
                found[f"{place}-dynamics-{run.group}"] = training_dynamics(dynamics)
    return {name: figure for name, figure in found.items() if figure is not None}


def alt(name: str) -> str:
    """Return the words for who does not see a figure."""
    return name.replace("-", " ").replace("_", " ")


if __name__ == "__main__":
    typer.run(main)
