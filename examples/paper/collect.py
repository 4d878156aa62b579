"""Copy what a sweep left into `results/`, without weights: settings, Results, and the dynamics.

Use (after `patchbench sweep paper_ar --out runs/ar`):

    python examples/paper/collect.py runs/ar --as paper_ar --scale mini

Only finished runs are taken, beside what had been collected of the same recipe and scale: a run
that is there already is replaced, the others stay. `rm -r` the recipe's folder to begin anew.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from patchbench.common import atomic_write
from patchbench.sweeping.folder import read_sweep

RESULTS = Path(__file__).parent / "results"
KEPT = ("training.json", "dynamics.parquet")


def main(
    sweep: Annotated[Path, typer.Argument(help="Folder of a sweep.")],
    recipe: Annotated[str, typer.Option("--as", help="The recipe that it is of.")],
    scale: Annotated[str, typer.Option(help="mini or paper.")] = "mini",
    to: Annotated[Path, typer.Option(help="Where to.")] = RESULTS,
) -> None:
    """Copy the finished runs of a sweep."""
    folder = read_sweep(sweep)
    names = [name for name in folder.runs if folder.finished(name)]
    place = to / scale / recipe
    for name in names:
        source, target = folder.run(name), place / "runs" / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(
            source / "result", target / "result", ignore=shutil.ignore_patterns("*.html")
        )
        for file in KEPT:
            if (source / file).is_file():
                shutil.copy(source / file, target / file)
    content = json.loads((sweep / "sweep.json").read_text(encoding="utf-8"))
    place.mkdir(parents=True, exist_ok=True)
    listing = place / "sweep.json"
    before = json.loads(listing.read_text(encoding="utf-8")) if listing.is_file() else {"runs": {}}
    content["runs"] = before["runs"] | {name: content["runs"][name] for name in names}
    with atomic_write(listing) as file:
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    left = len(folder.runs) - len(names)
    typer.echo(f"{len(names)} runs in {place}" + (f"; {left} are not finished" if left else ""))


if __name__ == "__main__":
    typer.run(main)
