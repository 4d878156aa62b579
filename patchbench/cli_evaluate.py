"""The command `patchbench evaluate`: it parses, calls the library and prints.

Use:

    app.command()(evaluate)      # by patchbench.cli
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import patchbench
from patchbench.cli_options import (
    Device,
    DeviceMap,
    Dtype,
    Interrupted,
    Json,
    Overrides,
    Quiet,
    Template,
    Tokenizer,
    Trust,
    calm_libraries,
    command_line,
    layers_of,
    names,
    overrides_of,
    set_threads,
    task_names,
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
from patchbench.common import UserError, printable
from patchbench.common.files import check_writable

if TYPE_CHECKING:
    from patchbench.partial import Partial
    from patchbench.planning import Plan
    from patchbench.results import Result


def evaluate(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Hub id, folder or .gguf file of a causal language model, or a bundled one "
            "(patchbench/ar-mamba).  [default: all bundled ones, side by side]",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "-t",
            autocompletion=task_names,
            help="Task: see `patchbench tasks`.  [default: a bundled model's own]",
        ),
    ] = None,
    overrides: Overrides = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Examples.")] = 256,
    batch_size: Annotated[int, typer.Option(help="Examples per forward.")] = 32,
    seed: Annotated[int, typer.Option(help="Of the task, the shots and the bootstrap.")] = 0,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    corruption: Annotated[
        str, typer.Option(help="What is corrupted: key, value, swap; several by comma.")
    ] = "key",
    direction: Annotated[
        str, typer.Option(help="denoise (clean into corrupted), noise; several by comma.")
    ] = "denoise",
    components: Annotated[
        str | None,
        typer.Option(help="Hook points, by comma: see `patchbench sites`.  [default: block_input]"),
    ] = None,
    layers: Annotated[str | None, typer.Option(help="For example 0,3-5.  [default: all]")] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help="Roles with offsets, or all: every token, by its distance to the role before it.  "
            "[default: key,value,value+1,query]"
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(
            "--sites",
            metavar="EXPR",
            help="Instead of the three above, repeatable: 'L*.conv_output@value+0..2', "
            "'A & B' together, 'A -> B' from A into B; L* is one layer throughout.",
        ),
    ] = None,
    template: Template = "auto",
    shots: Annotated[int, typer.Option(help="Solved documents in front of each prompt.")] = 0,
    engine: Annotated[
        str, typer.Option(help="What patches: native (fast), pyvene (the reference), nnsight.")
    ] = "native",
    selfcheck: Annotated[
        bool,
        typer.Option(
            "--selfcheck/--no-selfcheck",
            help="Compare the engine with pyvene on part of the first batch.",
        ),
    ] = True,
    method: Annotated[
        str,
        typer.Option(help="exact, or attribution: first-order scores, and a few sites exactly."),
    ] = "exact",
    prefilter: Annotated[
        int, typer.Option(help="How many sites attribution also runs exactly.")
    ] = 8,
    ig_steps: Annotated[
        int, typer.Option(help="Steps over which attribution integrates; 0: slope at the base.")
    ] = 0,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Also measure dev: how do pairs kept from training differ?"
        ),
    ] = False,
    untrained_twin: Annotated[
        bool,
        typer.Option(
            "--untrained-twin", help="Also measure the same architecture with fresh weights."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Tell what it would take (forwards, memory, seconds)."),
    ] = False,
    tokenizer: Tokenizer = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    device_map: DeviceMap = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.  [default: PyTorch's choice]")
    ] = None,
    trust_remote_code: Trust = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Result.  [default: none]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what a killed run to --out had finished.")
    ] = False,
    report: Annotated[
        bool, typer.Option(help="Add report.html to --out: figures, to be opened offline.")
    ] = True,
    wandb: Wandb = None,
    wandb_entity: WandbEntity = None,
    wandb_name: WandbName = None,
    wandb_group: WandbGroup = None,
    wandb_tags: WandbTags = None,
    wandb_mode: WandbMode = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure where a model stores the association that a task asks for."""
    config = {
        "n": n,
        "batch_size": batch_size,
        "seed": seed,
        "split": split,
        "corruptions": names(corruption),
        "directions": names(direction),
        "layers": layers_of(layers),
        "template": template,
        "shots": shots,
        "engine": engine,
        "selfcheck": selfcheck,
        "method": method,
        "prefilter": prefilter,
        "ig_steps": ig_steps,
        "held_out": held_out,
        "untrained_twin": untrained_twin,
    }
    if components is not None:
        config["components"] = names(components)
    if positions is not None:
        config["positions"] = names(positions)
    if site:
        config["sites"] = site
    tracking = tracking_of(
        wandb, wandb_entity, wandb_name, wandb_group, wandb_tags, wandb_mode, track
    )
    changes = overrides_of(overrides)
    if out is not None:
        # A run may have been killed when its outcome was there: `Partial.save` looks at it.
        left = resume and out.with_name(out.name + ".partial").is_dir()
        check_writable(out, overwrite=overwrite or left, keep=(model, tokenizer))
    elif resume:
        raise UserError("--resume needs an --out", "name the folder that the killed run wrote to")
    calm_libraries()
    set_threads(threads)
    from patchbench import demo
    from patchbench.evaluation_config import EvaluateConfig
    from patchbench.report import terminal
    from patchbench.training.folder import unfinished

    EvaluateConfig.of(config)  # before a model is loaded for nothing
    if model is None:
        if task is not None or changes:
            raise UserError("--task and --set need a --model", "name one, or drop them")
        if method != "exact":  # their comparison shows exact numbers only
            raise UserError(f"--method {method} needs a --model", "name one, or drop it")
        if site or config.get("positions") == ["all"]:
            raise UserError("--sites and --positions all need a --model", "name one")
        if dry_run:
            raise UserError("--dry-run needs a --model", "name one")
        with _parts(out, resume=resume, overwrite=overwrite) as parts:
            results = _evaluate_bundled(
                config,
                out=out,
                parts=parts,
                overwrite=overwrite,
                report=report,
                as_json=as_json,
                quiet=quiet,
            )
        send(results, tracking)
        return
    if task is None:
        loaded_task = demo.bundled_task(model, **changes)
    else:
        loaded_task = patchbench.load_task(task, seed=seed, **changes)
    with terminal.spinner(f"loading {model}", quiet=quiet or as_json):
        loaded = patchbench.load_model(
            model,
            tokenizer=tokenizer,
            dtype=dtype,
            device=device,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
        )
    loaded.notes.extend(unfinished(model))
    if dry_run:
        _print_plan(patchbench.plan(loaded, loaded_task, **config), as_json=as_json, quiet=quiet)
        return
    with _parts(out, resume=resume, overwrite=overwrite) as parts:
        with terminal.progress_bar("patching", quiet=quiet or as_json) as progress:
            result = patchbench.evaluate(
                loaded,
                loaded_task,
                progress=progress,
                command=command_line(),
                partial=parts,
                **config,
            )
        failure = None
        if out is not None and parts is not None:
            try:
                save = partial(result.save, out, overwrite=overwrite, report=report)
                parts.save({out: result}, save)
            except UserError as error:  # a disk that filled up meanwhile does not cost the numbers
                failure = error
        if as_json:
            typer.echo(json.dumps(result.summary, indent=2))
        else:
            terminal.print_result(result, quiet=quiet)
            if out is not None and failure is None:
                typer.echo(f"written: {out}")
        send({model: result}, tracking, {} if out is None or failure else {model: out})
        if failure is not None:
            raise failure


def _print_plan(plan: "Plan", *, as_json: bool, quiet: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(plan), indent=2))
        return
    mib = 2**20
    typer.echo(
        f"{plan.model}  {plan.task}  engine {plan.engine}\n"
        f"{len(plan.sites)} sites, {plan.interventions} interventions with controls, "
        f"{plan.examples} examples: {plan.rows} rows\n"
        f"{plan.forwards} forwards of {plan.forward_rows} documents, {plan.tokens} tokens\n"
        f"memory {plan.peak_bytes / mib:.0f} MiB: weights {plan.weights_bytes / mib:.0f}, "
        f"cache {plan.cache_bytes / mib:.0f}, the rest in a forward\n"
        f"about {plan.seconds:.1f} s"
    )
    for note in () if quiet else plan.notes:
        typer.echo(f"note: {printable(note)}")


@contextmanager
def _parts(out: Path | None, *, resume: bool, overwrite: bool) -> "Iterator[Partial | None]":
    """Yield where finished parts go, if anything is written; tell an interrupted run about it."""
    if out is None:
        yield None
        return
    from patchbench.partial import partial_folder

    path = None
    try:
        with partial_folder(out, resume=resume, overwrite=overwrite) as parts:
            path = parts.path
            yield parts
    except KeyboardInterrupt:
        if path is None or not path.exists():
            raise
        raise Interrupted(
            f"interrupted; the same command with --resume goes on from {path}"
        ) from None


def _evaluate_bundled(
    config: dict[str, Any],
    *,
    out: Path | None,
    parts: "Partial | None",
    overwrite: bool,
    report: bool,
    as_json: bool,
    quiet: bool,
) -> "dict[str, Result]":
    """Run the demo, print the comparison, and write one folder per model below `out`."""
    from patchbench import demo
    from patchbench.report import terminal
    from patchbench.report.demo import print_demo

    with terminal.progress_bar("patching", quiet=quiet or as_json) as progress:
        results = demo.demo(progress=progress, partial=parts, command=command_line(), **config)
    if out is not None and parts is not None:
        save = partial(demo.save, results, out, overwrite=overwrite, report=report)
        parts.save({out / name: result for name, result in results.items()}, save)
    if as_json:
        summaries = {name: result.summary for name, result in results.items()}
        typer.echo(json.dumps(summaries, indent=2))
    else:
        print_demo(results, quiet=quiet)
        if out is not None:
            typer.echo(f"written: {out}")
    return results
