"""The command `patchbench train`: it parses, calls `patchbench.training` and prints.

Use:

    app.command()(train)      # by patchbench.cli
"""

import json
import shlex
import signal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import patchbench
from patchbench.cli_options import (
    Interrupted,
    Task,
    Template,
    Tokenizer,
    calm_libraries,
    command_line,
    layers_of,
    names,
    overrides_of,
    set_threads,
)
from patchbench.cli_tracking import (
    Track,
    Wandb,
    WandbEntity,
    WandbGroup,
    WandbMode,
    WandbName,
    WandbTags,
    send,
    tracking_of,
)
from patchbench.common import UserError

_LIST = "list"
# Options by their group in --help.
_model = partial(typer.Option, rich_help_panel="Model")
_data = partial(typer.Option, rich_help_panel="Task and data")
_optimiser = partial(typer.Option, rich_help_panel="Optimiser")
_watching = partial(typer.Option, rich_help_panel="Watching")


def train(
    arch: Annotated[
        str | None,
        typer.Option("--arch", "-a", help="Architecture, or several by comma; list shows them."),
    ] = None,
    task: Task = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the model and its Result.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            help="tiny, mini or paper: settings known for --arch and --task; other options change "
            "them. list shows what they reached.",
        ),
    ] = None,
    steps: Annotated[int | None, _optimiser(help="Optimiser steps; or --epochs.")] = None,
    epochs: Annotated[float | None, _optimiser(help="Passes over a fixed set.")] = None,
    width: Annotated[
        int | None,
        _model(help="Width of the residual stream.  [default: 64]"),
    ] = None,
    layers: Annotated[int | None, _model(help="Layers.  [default: 2]")] = None,
    heads: Annotated[int | None, _model(help="Heads per mixer.  [default: 1]")] = None,
    init: Annotated[str | None, _model(help="normal or pytorch.  [default: normal]")] = None,
    option: Annotated[
        list[str] | None,
        _model(metavar="NAME=VALUE", help="An option of the mixers or of the model."),
    ] = None,
    init_from: Annotated[
        str | None,
        _model(help="Hub id, folder or .gguf file to start from."),
    ] = None,
    lora: Annotated[
        int | None,
        _model(
            metavar="RANK",
            help="Train changes of --init-from's linear maps, of this rank.  [default: weights]",
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    template: Template = "auto",
    lr: Annotated[
        str | None,
        _optimiser(help="Learning rate; auto chooses by dev loss.  [default: 1e-3]"),
    ] = None,
    lr_grid: Annotated[
        str | None,
        _optimiser(help="The rates that auto tries.  [default: 3e-4,1e-3,3e-3,1e-2]"),
    ] = None,
    batch_size: Annotated[
        int | None,
        _optimiser(help="Examples per step.  [default: 32]"),
    ] = None,
    warmup: Annotated[
        float | None,
        _optimiser(help="Share of the steps below 1, else steps.  [default: 0.1]"),
    ] = None,
    schedule: Annotated[
        str | None,
        _optimiser(help="constant, linear or cosine.  [default: cosine]"),
    ] = None,
    data: Annotated[
        str | None,
        _data(help="fixed (a set, repeated) or fresh.  [default: fixed]"),
    ] = None,
    train_n: Annotated[
        int | None,
        _data(help="Rows of the fixed set.  [default: 100032]"),
    ] = None,
    curriculum: Annotated[
        list[str] | None,
        _data(
            metavar="NAME=VALUE:STEPS", help="An easier task to begin with, as num_pairs=2:1500."
        ),
    ] = None,
    dev_n: Annotated[int | None, _data(help="Rows of dev.  [default: 512]")] = None,
    test_n: Annotated[
        int | None,
        _data(help="Rows of test, for the Result.  [default: 1024]"),
    ] = None,
    stop_at: Annotated[
        float | None,
        _watching(help="Stop when dev accuracy reaches this.  [default: never]"),
    ] = None,
    log_every: Annotated[
        int | None,
        _watching(help="Steps between dev evaluations.  [default: 1/40 of all]"),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        _watching(help="Steps between checkpoints.  [default: --log-every]"),
    ] = None,
    dynamics_every: Annotated[
        int | None,
        _watching(
            help="Steps between interchange metrics; 0: none.  [default: 1/20 of all; with "
            "--init-from 0]"
        ),
    ] = None,
    dynamics_n: Annotated[
        int | None,
        _watching(help="Rows of dev for them.  [default: 64]"),
    ] = None,
    dynamics_components: Annotated[
        str | None,
        _watching(help="Hook points for them, by comma.  [default: block_input]"),
    ] = None,
    patch_layers: Annotated[
        str | None,
        _watching(help="Layers that they and the Results patch, as 0,3-5.  [default: all]"),
    ] = None,
    clip: Annotated[
        float | None,
        _optimiser(help="Largest gradient norm; 0: any.  [default: 1]"),
    ] = None,
    weight_decay: Annotated[float | None, _optimiser(help="Of AdamW.  [default: 0]")] = None,
    precision: Annotated[
        str | None,
        _optimiser(help="float32, or bfloat16 (mixed).  [default: float32]"),
    ] = None,
    seed: Annotated[int, _optimiser(help="Of the weights and the data's order.")] = 0,
    task_seed: Annotated[int | None, _data(help="Seed of the task.  [default: --seed]")] = None,
    overrides: Annotated[
        list[str] | None,
        _data("--set", metavar="NAME=VALUE", help="Override a field of the task's config."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cpu.")] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.  [default: PyTorch's choice]")
    ] = None,
    report: Annotated[
        bool, typer.Option(help="Add report.html to --out: figures, to be opened offline.")
    ] = True,
    report_to: Annotated[
        str | None, typer.Option(help="Loggers of transformers, by comma, as in wandb.")
    ] = None,
    wandb: Wandb = None,
    wandb_entity: WandbEntity = None,
    wandb_name: WandbName = None,
    wandb_group: WandbGroup = None,
    wandb_tags: WandbTags = None,
    wandb_mode: WandbMode = None,
    track: Track = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Train a model on a task; the same command again goes on where a killed one was."""
    if arch == _LIST:
        _print_architectures(as_json=as_json)
        return
    if preset == _LIST:
        _print_presets(as_json=as_json)
        return
    if task is None or out is None:
        raise UserError(f"{'--task' if task is None else '--out'} is missing", "name one")
    tracking = tracking_of(
        wandb, wandb_entity, wandb_name, wandb_group, wandb_tags, wandb_mode, track
    )
    given: dict[str, Any] = {
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr if lr in (None, "auto") else _number(lr),
        "lr_grid": None if lr_grid is None else [_number(rate) for rate in names(lr_grid)],
        "warmup": warmup,
        "schedule": schedule,
        "data": data,
        "train_n": train_n,
        "curriculum": curriculum or None,
        "dev_n": dev_n,
        "test_n": test_n,
        "stop_at": stop_at,
        "log_every": log_every,
        "checkpoint_every": checkpoint_every,
        "dynamics_every": dynamics_every,
        "dynamics_n": dynamics_n,
        "dynamics_components": None if dynamics_components is None else names(dynamics_components),
        "clip": clip,
        "weight_decay": weight_decay,
        "precision": precision,
        "template": None if template == "auto" else template,
        "lora": lora,
        "patch_layers": layers_of(patch_layers, "--patch-layers"),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    shape = {"width": width, "layers": layers, "heads": heads, "init": init}
    model: dict[str, Any] = {name: value for name, value in shape.items() if value is not None}
    model["options"] = overrides_of(option, "--option")
    changes = overrides_of(overrides)
    calm_libraries()
    set_threads(threads)
    from patchbench.common.processes import is_main_process
    from patchbench.report import terminal
    from patchbench.report.training import print_trained, training_bar
    from patchbench.tracking import tracked_training
    from patchbench.training import ModelSpec, TrainConfig
    from patchbench.training import train as run
    from patchbench.training.config import AUTO

    tell = partial(typer.echo, err=True)
    main = is_main_process()
    silent = quiet or as_json or not main
    if not main:  # has nothing half-written, and may be asked to end while it waits for the others
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if preset is not None:
        from patchbench.training.presets import find_preset

        chosen = find_preset(preset, arch, task).changed(
            model=model, settings=settings, overrides=changes
        )
        task, changes, model, settings = (
            chosen.task, dict(chosen.overrides), dict(chosen.model), dict(chosen.settings)
        )  # fmt: skip
        if not silent:
            terminal.print_line(f"preset {preset}: {chosen.describe()}")
    if lr_grid is not None and settings.get("lr") != AUTO:
        raise UserError("--lr-grid is for --lr auto", "give that too, or drop --lr-grid")
    settings["seed"] = seed
    TrainConfig.of(settings)  # before data are made for nothing
    spec = ModelSpec(arch=arch, init_from=init_from, tokenizer=tokenizer, **model)
    loaded_task = patchbench.load_task(
        task, seed=seed if task_seed is None else task_seed, **changes
    )
    try:
        with (
            tracked_training(tracking, name=out.name, tell=tell) as loggers,
            training_bar(quiet=silent) as (progress, measuring),
        ):
            trained = run(
                spec,
                loaded_task,
                out=out,
                overwrite=overwrite,
                device=device,
                progress=progress,
                measuring=measuring,
                command=command_line(),
                report_to=list(dict.fromkeys([*names(report_to or ""), *loggers])),
                **settings,
            )
    except KeyboardInterrupt:
        told = "interrupted; the same command goes on from the last checkpoint"
        raise Interrupted(told) from None
    if not main:
        return
    if as_json:
        typer.echo(json.dumps(trained.to_json(), indent=2))
    else:
        print_trained(trained, quiet=quiet)
        typer.echo(f"written: {out}")
        if trained.before is not None:
            both = [str(out / "before"), str(out), "--reference", f"{out.name}/before"]
            typer.echo(f"before and after: patchbench compare {shlex.join(both)}")
    failure = None
    if report:
        from patchbench.report.html import FILE, write_report
        from patchbench.report.training_figures import read_dynamics

        try:
            write_report(trained.result, out / FILE, dynamics=read_dynamics(out))
        except UserError as error:  # a disk that filled up meanwhile does not cost the numbers
            failure = error
    send({out.name: trained.result}, tracking, {out.name: out / "result"})
    if failure is not None:
        raise failure


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"learning rate {text!r}", "a number or auto is needed") from None


def _print_presets(*, as_json: bool) -> None:
    from patchbench.report import terminal
    from patchbench.training.presets import list_presets

    terminal.print_rows(list_presets(), as_json=as_json)


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
