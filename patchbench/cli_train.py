"""The command `patchbench train`: it parses, calls `patchbench.training` and prints.

Use:

    app.command()(train)      # by patchbench.cli
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import patchbench
from patchbench.common import UserError

_LIST = "list"


def train(
    arch: Annotated[
        str | None,
        typer.Option("--arch", "-a", help="Architecture, or several by comma; list shows them."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="Task: see `patchbench tasks`.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the model and its Result.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps; or --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over a fixed set.")] = None,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 64,
    layers: Annotated[int | None, typer.Option(help="Layers (default: 2).")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads per mixer (default: 1).")] = None,
    init: Annotated[str | None, typer.Option(help="normal or pytorch (default: normal).")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the mixers or of the model."),
    ] = None,
    init_from: Annotated[
        str | None, typer.Option(help="Hub id or folder of weights to start from.")
    ] = None,
    lr: Annotated[str, typer.Option(help="Learning rate; auto chooses by dev loss.")] = "1e-3",
    lr_grid: Annotated[
        str, typer.Option(help="The rates that auto tries, by comma.")
    ] = "3e-4,1e-3,3e-3,1e-2",
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = 32,
    warmup: Annotated[float, typer.Option(help="Share of the steps below 1, else steps.")] = 0.1,
    schedule: Annotated[str, typer.Option(help="constant, linear or cosine.")] = "cosine",
    data: Annotated[str, typer.Option(help="fixed (a set, repeated) or fresh.")] = "fixed",
    train_n: Annotated[int, typer.Option(help="Rows of the fixed set.")] = 100_032,
    dev_n: Annotated[int, typer.Option(help="Rows of dev.")] = 512,
    test_n: Annotated[int, typer.Option(help="Rows of test, for the Result.")] = 1024,
    stop_at: Annotated[
        float | None, typer.Option(help="Stop when dev accuracy reaches this.")
    ] = None,
    log_every: Annotated[
        int | None, typer.Option(help="Steps between dev evaluations (default: 1/40 of all).")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints (default: --log-every).")
    ] = None,
    dynamics_every: Annotated[
        int | None,
        typer.Option(help="Steps between interchange metrics; 0: none (default: 1/20 of all)."),
    ] = None,
    dynamics_n: Annotated[int, typer.Option(help="Rows of dev for them.")] = 64,
    dynamics_components: Annotated[
        str, typer.Option(help="Hook points for them, by comma.")
    ] = "block_input",
    clip: Annotated[float, typer.Option(help="Largest gradient norm; 0: any.")] = 1.0,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 0.0,
    precision: Annotated[str, typer.Option(help="float32, or bfloat16 (mixed).")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the weights and the data's order.")] = 0,
    task_seed: Annotated[
        int | None, typer.Option(help="Seed of the task (default: --seed).")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a field of the task's config."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cpu.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads (default: PyTorch's choice).")
    ] = None,
    report_to: Annotated[
        str | None, typer.Option(help="Loggers of transformers, by comma, as in wandb.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a model on a task; the same command again goes on where a killed one was."""
    from patchbench import cli

    if arch == _LIST:
        _print_architectures(as_json=as_json)
        return
    if task is None or out is None:
        raise UserError(f"{'--task' if task is None else '--out'} is missing", "name one")
    settings: dict[str, Any] = {
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr if lr == "auto" else _number(lr),
        "lr_grid": [_number(rate) for rate in cli._names(lr_grid)],
        "warmup": warmup,
        "schedule": schedule,
        "data": data,
        "train_n": train_n,
        "dev_n": dev_n,
        "test_n": test_n,
        "stop_at": stop_at,
        "log_every": log_every,
        "checkpoint_every": checkpoint_every,
        "dynamics_every": dynamics_every,
        "dynamics_n": dynamics_n,
        "dynamics_components": cli._names(dynamics_components),
        "clip": clip,
        "weight_decay": weight_decay,
        "precision": precision,
        "seed": seed,
    }
    options, changes = cli._overrides(option), cli._overrides(overrides)
    cli._calm_libraries()
    cli._set_threads(threads)
    from patchbench.report.training import print_trained, training_bar
    from patchbench.training import ModelSpec, TrainConfig
    from patchbench.training import train as run

    TrainConfig.of(settings)  # before data are made for nothing
    spec = ModelSpec(
        arch=arch,
        width=width,
        layers=layers,
        heads=heads,
        init=init,
        options=options,
        init_from=init_from,
    )
    loaded_task = patchbench.load_task(
        task, seed=seed if task_seed is None else task_seed, **changes
    )
    try:
        with training_bar(quiet=quiet or as_json) as progress:
            trained = run(
                spec,
                loaded_task,
                out=out,
                overwrite=overwrite,
                device=device,
                progress=progress,
                command=cli._command_line(),
                report_to=cli._names(report_to or ""),
                **settings,
            )
    except KeyboardInterrupt:
        typer.echo(
            "patchbench: interrupted; the same command goes on from the last checkpoint", err=True
        )
        raise typer.Exit(130) from None
    if as_json:
        content = {
            "rate": trained.rate,
            "steps": trained.steps,
            "stopped": trained.stopped,
            "grid": trained.grid,
            "result": trained.result.summary,
        }
        typer.echo(json.dumps(content, indent=2))
    else:
        print_trained(trained, quiet=quiet)
        typer.echo(f"written: {out}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"learning rate {text!r}", "a number or auto is needed") from None


def _print_architectures(*, as_json: bool) -> None:
    from patchbench.adapters import MIXERS, PRESETS
    from patchbench.report import terminal

    rows = []
    for name in sorted({*PRESETS, *MIXERS}):
        pattern = PRESETS[name].pattern if name in PRESETS else ({"name": name},)
        layers = [
            " ".join(str(v) if k == "name" else f"{k}={v}" for k, v in layer.items())
            for layer in pattern
        ]
        rows.append({"name": name, "layers": ", ".join(layers)})
    terminal.print_rows(rows, as_json=as_json)
