"""The command line: `patchbench evaluate`, `train`, `show`, `compare`, `log` and the others.

It parses, calls the library and prints; nothing is decided here. Heavy imports happen inside the
commands, so that `patchbench --help` answers at once. Exit codes: 0, 2 for a mistake in what was
asked or a machine that has no room for it (one line), 1 for a bug or a failed control, 130 when
interrupted.
"""

import errno
import io
import os
import signal
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import patchbench
from patchbench.cli_doctor import doctor
from patchbench.cli_evaluate import evaluate
from patchbench.cli_options import (
    Device,
    DeviceMap,
    Dtype,
    Interrupted,
    Json,
    ListsOnce,
    Model,
    Overrides,
    Trust,
    calm_libraries,
    overrides_of,
    task_names,
)
from patchbench.cli_results import compare, leaderboard, pool, show
from patchbench.cli_selftest import selftest
from patchbench.cli_sweep import recipes, sweep
from patchbench.cli_tracking import log
from patchbench.cli_train import train
from patchbench.common import ControlError, PluginWarning, UserError, printable
from patchbench.common.files import check_writable
from patchbench.common.processes import is_main_process

INTERRUPTED = 130
# Seconds in which torchrun has ended the other processes of a run of which one failed.
PATIENCE = 15
# What a stream says that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Typer carries its own click since 0.29 and used the installed one before: ask it for the class.
_UsageError: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)

_IN_FULL = warnings.formatwarning
_SMALLER = "take a smaller model, --batch-size or --n, or another machine"

app = typer.Typer(
    name="patchbench",
    help="Find out how a sequence model solves a recall task, by interchange interventions.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tasks_app = typer.Typer(help="List the tasks, or export one as a dataset.")
app.command(cls=ListsOnce)(evaluate)
app.command()(train)
app.command(cls=ListsOnce)(sweep)
app.command()(recipes)
app.command()(show)
app.command(cls=ListsOnce)(compare)
app.command()(pool)
app.command(cls=ListsOnce)(leaderboard)
app.command()(log)
app.command()(selftest)
app.command()(doctor)
app.add_typer(tasks_app, name="tasks", invoke_without_command=True)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(patchbench.__version__)
        raise typer.Exit


@tasks_app.callback(invoke_without_command=True)
def _tasks(context: typer.Context, as_json: Json = False) -> None:
    """List the tasks, or export one as a dataset."""
    if context.invoked_subcommand is None:
        from patchbench.report import terminal
        from patchbench.tasks import list_tasks

        terminal.print_rows([asdict(info) for info in list_tasks()], as_json=as_json)


@tasks_app.command("export")
def _export(
    name: Annotated[
        str, typer.Argument(autocompletion=task_names, help="Task, for example atr/easy.")
    ],
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
    changes = overrides_of(overrides)
    if out is not None:
        check_writable(out, overwrite=overwrite)
    calm_libraries()
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
    dtype: Dtype = "float32",
    device: Device = "auto",
    device_map: DeviceMap = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """List the components at which a model can be patched, layer by layer."""
    calm_libraries()
    from patchbench.report import terminal

    loaded = patchbench.load_model(
        model,
        with_tokenizer=False,
        dtype=dtype,
        device=device,
        device_map=device_map,
        trust_remote_code=trust_remote_code,
    )
    terminal.print_sites(loaded, as_json=as_json)


def main() -> None:
    """Run the command line; the console script's entry point."""
    # To be asked to end is to be interrupted: what is half-written has to go in either case.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler), warnings.formatwarning
    warnings.formatwarning = _warning
    try:
        code = _run()
    finally:
        signal.signal(signal.SIGTERM, before[0])
        warnings.formatwarning = before[1]
    sys.exit(code)


def _run() -> int:
    _speak_plainly()
    try:
        _check_arguments()
        code = app(prog_name="patchbench", standalone_mode=False)
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()  # a full disk is told here, not after the exit code
        if code == INTERRUPTED:  # typer turns Ctrl-C into an exit of its own
            raise KeyboardInterrupt
    except UserError as error:
        code = _fail(str(error), 2)
    except Interrupted as error:
        code = _fail(str(error), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; nothing was written", INTERRUPTED)
    except _UsageError as error:
        code = _misused(error)
    except ControlError as error:
        code = _fail(str(error), 1)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        what = f"out of memory ({error})" if str(error) else "out of memory"
        code = _fail(f"{what}: {_SMALLER}", 2)
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        code = _unwritable(error)
    return int(code or 0)


def _speak_plainly() -> None:
    """Escape what the terminal's encoding has no character for, rather than fail at it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _check_arguments() -> None:
    """Raise `UserError` for bytes that are no text: Arrow's files have no such names."""
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{argument!r} is not text in this locale", "rename it, or set PYTHONUTF8=1"
            ) from None


def _is_out_of_memory(error: Exception) -> bool:
    # PyTorch has a class of its own for GPUs alone.
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory")
    )


def _misused(error: Any) -> int:
    message = error.format_message()
    if not message:
        return 2  # without arguments the help is shown, no more
    context = getattr(error, "ctx", None)
    if message.endswith(".") and context is not None:  # no remedy so far
        message = f"{message[:-1]}: see `{context.command_path} --help`"
    return _fail(message, 2)


def _unwritable(error: OSError) -> int:
    """Tell that stdout is full, and keep Python from writing what is left as it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    return _fail(
        f"the output cannot be written ({error.strerror}): make room, or write it elsewhere", 2
    )


def _fail(message: str, code: int) -> int:
    if is_main_process() or (code != INTERRUPTED and _fails_alone()):
        typer.echo(f"patchbench: {printable(' '.join(message.split()))}", err=True)
    return code


def _fails_alone() -> bool:
    """Return whether the first process, which tells what is wrong for all, goes on without this."""
    try:
        time.sleep(PATIENCE)
    except KeyboardInterrupt:
        return False
    return True


def _warning(message: Warning | str, category: type[Warning], *where: Any, **line: Any) -> str:
    """Say a warning about a plugin without the line of code that met it."""
    if issubclass(category, PluginWarning):
        return f"warning: {printable(str(message))}\n"
    return _IN_FULL(message, category, *where, **line)
