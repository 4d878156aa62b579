"""The command `patchbench selftest`: verdicts on models whose mechanism is known.

Use:

    patchbench selftest --seeds 2
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from patchbench.common import ControlError


def selftest(
    seeds: Annotated[int, typer.Option(min=1, help="Rotations and tasks of each model.")] = 1,
    n: Annotated[int, typer.Option("--n", "-n", min=16, help="Examples.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Check the verdict on hand-built models whose mechanism is known."""
    from patchbench.report import terminal
    from patchbench.selftest import run

    with terminal.progress_bar("models", quiet=quiet or as_json) as progress:
        outcomes = list(run(seeds=seeds, n=n, progress=progress))
    if as_json:
        content = [
            asdict(o) | {"verdict": o.verdict.to_json(), "passed": o.passed} for o in outcomes
        ]
        typer.echo(json.dumps(content, indent=2))
    else:
        terminal.print_rows(
            [
                {
                    "model": o.name,
                    "symbols": o.symbols,
                    "width": o.width,
                    "seed": o.seed,
                    "accuracy": f"{o.accuracy.value:.2f}",
                    "verdict": str(o.verdict),
                    "": "ok" if o.passed else f"expected: {o.expected}",
                }
                for o in outcomes
            ]
        )
    wrong = [o for o in outcomes if not o.passed]
    if wrong:
        raise ControlError(f"{len(wrong)} of {len(outcomes)} verdicts are wrong: {wrong[0].name}")
