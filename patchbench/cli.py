"""The command line: `patchbench evaluate | train | tasks | models | sites`.

It parses, calls the library and prints; nothing is decided here. Heavy imports happen inside the
commands, so that `patchbench --help` answers at once. Exit codes: 0, 2 for a mistake in what was
asked (one line), 1 for a bug or a failed control, 130 when interrupted.
"""

import json
import os
import re
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import patchbench
from patchbench.cli_train import train
from patchbench.common import ControlError, UserError
from patchbench.common.files import check_writable

# Typer carries its own click since 0.29 and used the installed one before: ask it for the class.
INTERRUPTED = 130
MOST_THREADS = 1024
# Four digits: no model has more layers, and a range of them fits into memory.
_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

app = typer.Typer(
    name="patchbench",
    help="Find out how a sequence model solves a recall task, by interchange interventions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tasks_app = typer.Typer(help="List the tasks, or export one as a dataset.")
app.command()(train)
app.add_typer(tasks_app, name="tasks", invoke_without_command=True)

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Hub id, folder or .gguf file of a causal language model."),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto (as stored).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Tokenizer = Annotated[
    str | None, typer.Option(help="Hub id or folder, where the model brings none.")
]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no notes.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a field of the task's config."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(patchbench.__version__)
        raise typer.Exit


@app.command()
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
            "--task", "-t", help="Task: see `patchbench tasks`.  [default: a bundled model's own]"
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
    template: Annotated[
        str,
        typer.Option(
            help="Layout of a pretrained model's prompt: auto, bare, colon, "
            "arrow; or symbolic (the task's own token ids)."
        ),
    ] = "auto",
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
    tokenizer: Tokenizer = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.  [default: PyTorch's choice]")
    ] = None,
    trust_remote_code: Trust = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Result.  [default: none]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure where a model stores the association that a task asks for."""
    config = {
        "n": n,
        "batch_size": batch_size,
        "seed": seed,
        "split": split,
        "corruptions": _names(corruption),
        "directions": _names(direction),
        "layers": _layers(layers),
        "template": template,
        "shots": shots,
        "engine": engine,
        "selfcheck": selfcheck,
        "method": method,
        "prefilter": prefilter,
        "ig_steps": ig_steps,
    }
    if components is not None:
        config["components"] = _names(components)
    if positions is not None:
        config["positions"] = _names(positions)
    if site:
        config["sites"] = site
    changes = _overrides(overrides)
    if out is not None:
        check_writable(out, overwrite=overwrite, keep=(model, tokenizer))
    _calm_libraries()
    _set_threads(threads)
    from patchbench import demo
    from patchbench.evaluation import EvaluateConfig
    from patchbench.report import terminal

    EvaluateConfig.of(config)  # before a model is loaded for nothing
    if model is None:
        if task is not None or changes:
            raise UserError("--task and --set need a --model", "name one, or drop them")
        if method != "exact":  # their comparison shows exact numbers only
            raise UserError(f"--method {method} needs a --model", "name one, or drop it")
        if site or config.get("positions") == ["all"]:
            raise UserError("--sites and --positions all need a --model", "name one")
        _evaluate_bundled(config, out=out, overwrite=overwrite, as_json=as_json, quiet=quiet)
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
            trust_remote_code=trust_remote_code,
        )
    with terminal.progress_bar("patching", quiet=quiet or as_json) as progress:
        result = patchbench.evaluate(
            loaded, loaded_task, progress=progress, command=_command_line(), **config
        )
    failure = None
    if out is not None:
        try:
            result.save(out, overwrite=overwrite)
        except UserError as error:  # a disk that filled up meanwhile does not cost the numbers
            failure = error
    if as_json:
        typer.echo(json.dumps(result.summary, indent=2))
    else:
        terminal.print_result(result, quiet=quiet)
        if out is not None and failure is None:
            typer.echo(f"written: {out}")
    if failure is not None:
        raise failure


def _evaluate_bundled(
    config: dict[str, Any], *, out: Path | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Run the demo, print the comparison, and write one folder per model below `out`."""
    from patchbench import demo
    from patchbench.report import terminal
    from patchbench.report.comparison import print_demo

    with terminal.progress_bar("patching", quiet=quiet or as_json) as progress:
        results = demo.demo(progress=progress, command=_command_line(), **config)
    if out is not None:
        demo.save(results, out, overwrite=overwrite)
    if as_json:
        summaries = {name: result.summary for name, result in results.items()}
        typer.echo(json.dumps(summaries, indent=2))
    else:
        print_demo(results, quiet=quiet)
        if out is not None:
            typer.echo(f"written: {out}")


@tasks_app.callback(invoke_without_command=True)
def _tasks(context: typer.Context, as_json: Json = False) -> None:
    """List the tasks, or export one as a dataset."""
    if context.invoked_subcommand is None:
        from patchbench.report import terminal
        from patchbench.tasks import list_tasks

        terminal.print_rows([asdict(info) for info in list_tasks()], as_json=as_json)


@tasks_app.command("export")
def _export(
    name: Annotated[str, typer.Argument(help="Task, for example atr/easy.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for parquet files and a card.")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Also upload, with your hub login.")
    ] = None,
    overrides: Overrides = None,
    seed: Annotated[int, typer.Option(help="Seed of the task.")] = 0,
    n: Annotated[
        int | None, typer.Option("--n", "-n", help="Rows per split.  [default: the task's]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
) -> None:
    """Write a task as parquet files with a card, as `datasets.load_dataset` reads them."""
    if out is None and push_to_hub is None:
        raise UserError("nowhere to export to", "pass --out DIR or --push-to-hub REPO")
    changes = _overrides(overrides)
    if out is not None:
        check_writable(out, overwrite=overwrite)
    _calm_libraries()
    from patchbench.tasks import export

    task = patchbench.load_task(name, seed=seed, **changes)
    if out is not None:
        export.export_task(task, out, n=n, overwrite=overwrite)
        typer.echo(f"written: {out}")
    if push_to_hub is not None:
        typer.echo(f"uploaded: {export.push_to_hub(task, push_to_hub, n=n)}")


@app.command()
def models(as_json: Json = False) -> None:
    """List the model families and architectures that patchbench knows by name."""
    from patchbench.adapters import list_models
    from patchbench.report import terminal

    terminal.print_rows([asdict(info) for info in list_models()], as_json=as_json)


@app.command()
def sites(
    model: Model,
    tokenizer: Tokenizer = None,
    dtype: Dtype = "float32",
    device: Device = "auto",
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """List the components at which a model can be patched, layer by layer."""
    _calm_libraries()
    from patchbench.report import terminal

    loaded = patchbench.load_model(
        model,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    terminal.print_sites(loaded, as_json=as_json)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _layers(text: str | None) -> list[int] | None:
    """Parse "0,3-5"."""
    if text is None:
        return None
    layers: list[int] = []
    for part in _names(text):
        match = _LAYERS.fullmatch(part)
        if match is None:
            raise UserError(f"--layers {text!r} is not a list of layers", "for example 0,3-5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"--layers {text!r} counts down", f"write {last}-{first}")
        layers += range(first, last + 1)
    return sorted(layers)


def _overrides(pairs: list[str] | None) -> dict[str, Any]:
    """Parse --set NAME=VALUE, where VALUE is JSON or a bare word."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set {pair!r} is not NAME=VALUE", "for example --set num_pairs=4")
        if name in values:
            raise UserError(f"{name} is set twice", "set each name once")
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):  # the second of brackets nested by the thousand
            values[name] = text
    return values


def _command_line() -> str:
    return shlex.join(["patchbench", *sys.argv[1:]])


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        if not 1 <= threads <= MOST_THREADS:
            raise UserError(f"--threads {threads}", f"at least 1 is needed, at most {MOST_THREADS}")
        torch.set_num_threads(threads)


def _calm_libraries() -> None:
    """Keep the libraries' own progress bars and advice out of the output."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def main() -> None:
    """Run the command line; the console script's entry point."""
    # To be asked to end is to be interrupted: what is half-written has to go in either case.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = _run()
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer turns Ctrl-C into an exit of its own
            raise KeyboardInterrupt
    except UserError as error:
        code = _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; nothing was written", INTERRUPTED)
    except _UsageError as error:
        message = getattr(error, "format_message")()  # noqa: B009
        code = _fail(message, 2) if message else 2  # without arguments the help is shown, no more
    except ControlError as error:
        code = _fail(str(error), 1)
    return int(code or 0)


def _fail(message: str, code: int) -> int:
    typer.echo(f"patchbench: {' '.join(message.split())}", err=True)
    return code
