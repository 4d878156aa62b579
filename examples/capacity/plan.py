"""Write the capacity plan, `README.md` beside this file, from what was measured.

Use (after `measure.py`):

    python examples/capacity/plan.py
    python examples/capacity/plan.py --core-dollars 0.02

What a run of the grid takes is its steps times the measured seconds of one, at each learning rate;
how long the grid takes on so many cores is a simulation of the sweep's scheduler: the runs begin in
the order of the recipe, each on the next free core, and durations scatter as measured.
"""

import heapq
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Annotated, Any

import typer
from measure import ARCHITECTURES, FILE, WIDTHS

HERE = Path(__file__).parent
# The paper's grid: of each task the training steps, and the task that costs the same per step.
TASKS: Mapping[str, tuple[str, int]] = {
    "AR": ("ar", 50_016),
    "AR, reversed": ("ar", 50_016),
    "AR, held-out pairs": ("ar", 50_016),
    "ATR easy": ("atr/easy", 100_032),
    "ATR medium": ("atr/medium", 100_032),
    "ATR large vocabulary": ("atr/large_vocab", 100_032),
    "ATR sibling": ("atr/sibling", 100_032),
    "ATR held-out pairs": ("atr/easy", 100_032),
}
RATES, SEEDS = 7, 3
MACHINES = {"a laptop, 8 cores": 8, "a node, 64 cores": 64}
DRAWS = 20


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the grid: one training per learning rate, one after the other.

    Attributes:
        arch: of the model.
        width: of the model.
        task: of `TASKS`.
        seconds: of one core.
    """

    arch: str
    width: int
    task: str
    seconds: float


def main(
    measurements: Annotated[Path, typer.Option(help="What `measure.py` wrote.")] = FILE,
    out: Annotated[Path, typer.Option(help="The page.")] = HERE / "README.md",
    core_dollars: Annotated[float, typer.Option(help="Price of a core for an hour.")] = 0.04,
    scatter: Annotated[
        float, typer.Option(help="Standard deviation of the log of a run's duration.")
    ] = 0.2,
) -> None:
    """Write the page."""
    found = json.loads(measurements.read_text(encoding="utf-8"))
    costs = Costs(found["points"])
    grid = [
        Run(arch=arch, width=width, task=task, seconds=costs.run(arch, width, task))
        for _ in range(SEEDS)
        for task in TASKS
        for arch in ARCHITECTURES
        for width in WIDTHS
    ]
    text = (HERE / "page.md").read_text(encoding="utf-8")
    text = text.format(
        date=found["date"],
        torch=found["torch"],
        machine=found["machine"],
        throughput=throughput(grid, core_dollars),
        growth=growth(costs),
        core_dollars=f"{core_dollars:g}",
        scatter=f"{100 * scatter:.0f}",
        runs=f"{len(grid):,}",
        trainings=f"{len(grid) * RATES:,}",
        total=f"{sum(run.seconds for run in grid) / 3600:,.0f}",
        machines=machines(grid, core_dollars, scatter),
        gpu=gpu(grid),
    )
    out.write_text(text, encoding="utf-8")
    typer.echo(f"written: {out}")


class Costs:
    """What was measured, by what was asked."""

    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self.points = points

    def find(self, kind: str, **wanted: Any) -> float:
        """Return the seconds of the one point that was measured so; layers are two."""
        asked = {"kind": kind, **({"layers": 2, "num_pairs": None} if kind == "step" else {})}
        asked |= wanted
        found = [p for p in self.points if all(p.get(k) == v for k, v in asked.items())]
        if len(found) != 1:
            raise LookupError(f"{len(found)} measurements of {asked}: run measure.py")
        return found[0]["seconds"]

    def step(self, arch: str, width: int, task: str, **more: Any) -> float:
        """Return the seconds of a training step."""
        return self.find("step", arch=arch, width=width, task=task, **more)

    def run(self, arch: str, width: int, task: str) -> float:
        """Return the seconds of a run of the grid, all rates and the evaluation on test."""
        same, steps = TASKS[task]
        # The other architectures' evaluations were not measured: a small part of a run.
        evaluated = self.find("evaluation", arch="mamba", sites=8, items=1024)
        return RATES * steps * self.step(arch, width, same) + evaluated


def simulate(seconds: Sequence[float], cores: int, scatter: float, seed: int) -> float:
    """Return when the last run ends, in seconds.

    Args:
        seconds: of each run, in the order in which they begin.
        cores: each does one run at a time.
        scatter: standard deviation of the log of a run's duration, which keeps its mean.
        seed: of the scatter.
    """
    draw = random.Random(seed)
    free = [0.0] * cores
    for expected in seconds:
        taken = expected * exp(draw.gauss(-scatter * scatter / 2, scatter))
        heapq.heapreplace(free, free[0] + taken)
    return max(free)


def throughput(grid: Sequence[Run], core_dollars: float) -> str:
    """Return a table: trainings per core-hour and per dollar, by architecture at width 64."""
    lines = [
        "| width 64 | AR: per core-hour | per dollar | ATR easy: per core-hour | per dollar |",
        "|---" * 5 + "|",
    ]
    for arch in ARCHITECTURES:
        cells = []
        for task in ("AR", "ATR easy"):
            run = next(r for r in grid if (r.arch, r.width, r.task) == (arch, 64, task))
            hourly = 3600 * RATES / run.seconds
            cells += [f"{hourly:.1f}", f"{hourly / core_dollars:.0f}"]
        lines.append(f"| {arch} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def growth(costs: Costs) -> str:
    """Return a table: how cost grows, in factors from one measured size to the next."""
    rows: list[tuple[str, Sequence[int], str, Callable[[str, int], float]]] = [
        (
            "width",
            WIDTHS,
            "a step on AR",
            lambda arch, size: costs.step(arch, size, "ar"),
        ),
        (
            "pairs (two tokens each)",
            sizes(costs, "num_pairs"),
            "a step on AR",
            lambda arch, size: costs.step(arch, 64, "ar", num_pairs=size),
        ),
        (
            "layers",
            sizes(costs, "layers"),
            "a step on AR",
            # Two layers of width 64 are a point of the grid.
            lambda arch, size: costs.step(arch, 64, "ar", layers=size),
        ),
        (
            "sites",
            sizes(costs, "sites"),
            "an evaluation, 256 items",
            lambda arch, size: costs.find("evaluation", arch=arch, sites=size, items=256),
        ),
        (
            "items",
            sizes(costs, "items"),
            "an evaluation, 8 sites",
            lambda arch, size: costs.find("evaluation", arch=arch, sites=8, items=size),
        ),
    ]
    lines = ["| more of | sizes | what | attention | Mamba |", "|---" * 5 + "|"]
    for name, asked, what, read in rows:
        shown = []
        for arch in ("attention", "mamba"):
            seconds = [read(arch, size) for size in asked]
            power = log(seconds[-1] / seconds[-2]) / log(asked[-1] / asked[-2])
            unit, scale = ("s", 1) if seconds[-1] > 1 else ("ms", 1000)
            times = ", ".join(f"{float(f'{scale * s:.2g}'):g}" for s in seconds)
            shown.append(f"{times} {unit}; at the end as size^{power:.1f}")
        lines.append(f"| {name} | {', '.join(map(str, asked))} | {what} | {' | '.join(shown)} |")
    return "\n".join(lines)


def sizes(costs: Costs, name: str) -> list[int]:
    """Return the sizes that were measured."""
    return sorted({point[name] for point in costs.points if name in point})


def machines(grid: Sequence[Run], core_dollars: float, scatter: float) -> str:
    """Return a table: how long the grid takes, and what it costs, by the simulated scheduler."""
    orders = {
        "in the recipe's order": [run.seconds for run in grid],
        "longest first": sorted((run.seconds for run in grid), reverse=True),
    }
    lines = [
        "| machine | runs begin | days (± over draws) | cores busy | dollars |",
        "|---" * 5 + "|",
    ]
    total = sum(run.seconds for run in grid)
    for machine, cores in MACHINES.items():
        for order, seconds in orders.items():
            ends = [simulate(seconds, cores, scatter, seed) for seed in range(DRAWS)]
            mean = sum(ends) / DRAWS
            spread = sqrt(sum((end - mean) ** 2 for end in ends) / (DRAWS - 1))
            lines.append(
                f"| {machine} | {order} | {mean / 86400:.1f} ± {spread / 86400:.1f} "
                f"| {100 * total / (mean * cores):.0f} % "
                f"| {mean / 3600 * cores * core_dollars:,.0f} |"
            )
    return "\n".join(lines)


def gpu(grid: Sequence[Run]) -> str:
    """Return how long the grid takes on a GPU that does the work of so many cores."""
    total = sum(run.seconds for run in grid)
    worth = (8, 32, 128)
    cores = " | ".join(f"{number} cores" for number in worth)
    days = " | ".join(f"{total / number / 86400:.1f}" for number in worth)
    return "\n".join(
        [
            f"| the runs that share it do the work of | {cores} |",
            "|---" * (1 + len(worth)) + "|",
            f"| the grid takes, days | {days} |",
        ]
    )


if __name__ == "__main__":
    typer.run(main)
