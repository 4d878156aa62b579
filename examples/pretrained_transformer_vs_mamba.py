"""A pretrained Transformer beside a pretrained Mamba: where does each keep the association?

    python examples/pretrained_transformer_vs_mamba.py
    python examples/pretrained_transformer_vs_mamba.py --mamba state-spaces/mamba-1.4b --n 256
    python examples/pretrained_transformer_vs_mamba.py --task kv_retrieval --set wording=sentence

Where the hub is out of reach, other models stand in for the default ones, and the output says so:
SmolLM2 from PyPI, and the small Mamba that comes with patchbench. That one was trained on symbols
and reads no words, so it is asked the task that it was trained on. Below the gate no effects are
shown, whichever model it is.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

import patchbench as pb
from patchbench.adapters import LoadedModel
from patchbench.adapters.bundled import find_bundled
from patchbench.cli_options import calm_libraries, overrides_of
from patchbench.comparing import compare
from patchbench.demo import bundled_task
from patchbench.report import terminal
from patchbench.report.compare import print_compared
from patchbench.tasks import Task

ATTENTION, MAMBA = "EleutherAI/pythia-70m", "state-spaces/mamba-130m"
STAND_INS = {ATTENTION: "SmolLM2-135M-Instruct.Q4_1.gguf", MAMBA: "patchbench/ar-mamba"}
COMPONENTS = ("block_input", "conv_output")  # the second where there is a short convolution
POSITIONS = ["key", "value", "value+1", "value+2", "query", "answer-1"]


def main(
    attention: Annotated[str | None, typer.Option(help=f"Transformer, else {ATTENTION}.")] = None,
    mamba: Annotated[str | None, typer.Option(help=f"Mamba, else {MAMBA}.")] = None,
    task: Annotated[str, typer.Option(help="ar or kv_retrieval, in words.")] = "ar",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Of the task.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Items.", min=1)] = 32,
    depths: Annotated[int, typer.Option(help="Layers to look at.", min=2)] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for Results with reports.")] = None,
) -> None:
    """Evaluate a Transformer and a Mamba on one recall task, and compare them."""
    calm_libraries()
    in_words = pb.load_task(task, **({"num_pairs": 4} | overrides_of(settings)))
    models = {"attention": load(attention, ATTENTION), "mamba": load(mamba, MAMBA)}
    results = {}
    for side, loaded in models.items():
        results[side] = measure(loaded, in_words, n, depths)
        terminal.print_result(results[side])
        if out is not None:
            results[side].save(out / side, report=True)
    print_compared(compare(results, positions=("key", "value", "answer-1")))


def load(name: str | None, default: str) -> LoadedModel:
    """Load the model that was named; without a name the default, or what stands in for it."""
    try:
        return pb.load_model(name or default)
    except pb.UserError as error:
        if name is not None:
            raise
        typer.echo(f"{error.what}: {STAND_INS[default]} stands in for it")
        return pb.load_model(STAND_INS[default])


def measure(loaded: LoadedModel, task: Task, n: int, depths: int) -> pb.Result:
    """Evaluate a model at so many depths; a bundled one on its own task."""
    if find_bundled(loaded.name) is not None:
        task = bundled_task(loaded.name)
        typer.echo(f"{loaded.name} reads no words: it is asked {task.name}, in symbols of its own")
    last = loaded.hook_map.num_layers - 1
    there = {component for _, component in loaded.hook_map.points}
    return pb.evaluate(
        loaded,
        task,
        n=n,
        layers=sorted({last * step // (depths - 1) for step in range(depths)}),
        components=[component for component in COMPONENTS if component in there],
        positions=POSITIONS,
    )


if __name__ == "__main__":
    try:
        typer.run(main)
    except pb.UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
