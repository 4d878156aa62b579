"""What the commands share: options, and how their texts are read.

Use:

    def command(overrides: Overrides = None) -> None:
        changes = overrides_of(overrides)         # {"num_pairs": 4}
"""

import os
import re
import shlex
import sys
import warnings
from typing import Annotated, Any

import typer
import typer.core

from patchbench.common import UserError, parse_json

MOST_THREADS = 1024
# Four digits: no model has more layers, and a range of them fits into memory.
_LAYERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_LIKE = {"--set": "num_pairs=4", "--option": "d_conv=2", "--train": "steps=2000"}
# What a task has besides its settings.
_TASK_OPTIONS = {"name": "give --task", "seed": "give --seed"}


def task_names(incomplete: str) -> list[str]:
    """Return the tasks whose names begin so, for the shell's completion."""
    from patchbench.tasks import list_tasks

    with warnings.catch_warnings(action="ignore"):  # of broken plugins, in the middle of a line
        return [info.name for info in list_tasks() if info.name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Hub id, folder or .gguf file of a causal language model."),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto (as stored).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="Instead of --device, let accelerate spread the model: auto, balanced, "
        "balanced_low_0 or sequential."
    ),
]
Task = Annotated[
    str | None,
    typer.Option("--task", "-t", autocompletion=task_names, help="Task: see `patchbench tasks`."),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Hub id or folder, where the model brings none.")
]
Template = Annotated[
    str,
    typer.Option(
        help="Layout of a pretrained model's prompt: auto, bare, colon, arrow, record, "
        "sentence; or symbolic (the task's own token ids)."
    ),
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


class Interrupted(Exception):
    """A command was interrupted; the message says what is left of it."""


class ListsOnce(typer.core.TyperCommand):
    """A command that refuses a list which is given twice: the last alone would count, unseen."""

    lists = (
        *("--components", "--corruption", "--direction", "--layers", "--positions"),
        *("--arch", "--widths", "--lrs", "--seeds"),
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed.

        Raises:
            UserError: a list is given twice.
        """
        if not ctx.resilient_parsing:  # which completes what is being typed
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option in order:
                name = option.opts[0]
                if name in self.lists and order.count(option) > 1:
                    raise UserError(f"{name} is given twice", "give it once, its values by comma")
        return super().parse_args(ctx, args)


def names(text: str) -> list[str]:
    """Parse "key,value"."""
    return [name.strip() for name in text.split(",") if name.strip()]


def layers_of(text: str | None, flag: str = "--layers") -> list[int] | None:
    """Parse "0,3-5"."""
    if text is None:
        return None
    layers: list[int] = []
    for part in names(text):
        match = _LAYERS.fullmatch(part)
        if match is None:
            raise UserError(f"{flag} {text!r} is not a list of layers", "for example 0,3-5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"{flag} {text!r} counts down", f"write {last}-{first}")
        layers += range(first, last + 1)
    return sorted(layers)


def overrides_of(pairs: list[str] | None, flag: str = "--set") -> dict[str, Any]:
    """Parse --set NAME=VALUE (or another flag's), where VALUE is JSON or a bare word."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"{flag} {pair!r} is not NAME=VALUE", f"for example {flag} {_LIKE[flag]}"
            )
        if flag == "--set" and name in _TASK_OPTIONS:
            raise UserError(f"--set {name} is no setting of a task", _TASK_OPTIONS[name])
        if name in values:
            raise UserError(f"{name} is set twice", "set each name once")
        try:
            values[name] = parse_json(text)
        except ValueError:
            values[name] = text
    return values


def command_line() -> str:
    """Return what was typed."""
    return shlex.join(["patchbench", *sys.argv[1:]])


def set_threads(threads: int | None) -> None:
    """Let PyTorch use so many CPU threads; None leaves its choice."""
    if threads is not None:
        import torch

        if not 1 <= threads <= MOST_THREADS:
            raise UserError(f"--threads {threads}", f"at least 1 is needed, at most {MOST_THREADS}")
        torch.set_num_threads(threads)


def calm_libraries() -> None:
    """Keep the libraries' own progress bars and advice out of the output."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from tqdm import tqdm

    # Its thread watches bars that nobody sees, and Python waits for ever for a thread that finds no
    # memory to begin with.
    tqdm.monitor_interval = 0
