"""Measure what a training step and an evaluation cost, for the capacity plan.

Use (one thread, about ten minutes; what is there already is not measured again):

    python examples/capacity/measure.py

A training step is one of transformers' Trainer, as in a run; seconds are of CPU time, the median
over steps behind the first few. An evaluation is one on the native engine, without its start.
"""

import json
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from transformers import TrainerCallback
from transformers.utils import logging

import patchbench as pb
from patchbench.cli_options import calm_libraries
from patchbench.common import atomic_write
from patchbench.tasks import load_task
from patchbench.training import ModelSpec, TrainConfig, data
from patchbench.training.loop import AnswerTrainer, _arguments
from patchbench.training.watcher import Watcher

FILE = Path(__file__).parent / "measurements.json"
ARCHITECTURES = ("attention", "based", "base_conv", "hyena", "h3", "mamba", "delta_net")
WIDTHS = (16, 32, 64, 128, 256)
TASKS = ("ar", "atr/easy", "atr/medium", "atr/large_vocab", "atr/sibling")
# Longer documents: pairs of `ar`, of two tokens each.
PAIRS = (8, 16, 32, 64, 128)
LAYERS = (1, 2, 4, 8)
# At four positions of two layers.
COMPONENTS = ("block_input", "mixer_input", "mixer_output", "block_output")
POSITIONS = ("key", "value", "divider", "query")
ITEMS = (64, 256, 1024)
STEPS, SKIPPED = 24, 6
Point = dict[str, Any]


def main(out: Annotated[Path, typer.Option(help="Is added to.")] = FILE) -> None:
    """Measure every point that the file does not have."""
    calm_libraries()
    logging.disable_progress_bar()
    # The step is the Trainer's own (see `patchbench.training.loop`).
    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler")
    torch.set_num_threads(1)
    found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else new()
    points = found["points"]
    waiting = {_key(point): (point, do) for point, do in every()}
    for point in points:
        waiting.pop(_key(point), None)
    for point, do in track(list(waiting.values()), description="measuring"):
        points.append({**point, "seconds": do()})
        with atomic_write(out) as temporary:
            temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{len(points)} points in {out}")


def new() -> dict[str, Any]:
    """Return what the points were measured with."""
    return {
        "date": date.today().isoformat(),
        "torch": torch.__version__.partition("+")[0],
        "machine": f"{platform.machine()}, one thread",
        "points": [],
    }


def every() -> Iterator[tuple[Point, Callable[[], float]]]:
    """Yield each point and how to measure it."""
    for task in TASKS:
        for arch in ARCHITECTURES:
            for width in WIDTHS:
                yield step(task=task, arch=arch, width=width)
    for arch in ("attention", "mamba"):
        for pairs in PAIRS:
            yield step(task="ar", arch=arch, width=64, num_pairs=pairs)
        for layers in LAYERS:
            yield step(task="ar", arch=arch, width=64, layers=layers)
        for items in ITEMS:
            yield evaluation(arch=arch, components=1, items=items)
        for components in range(2, len(COMPONENTS) + 1):
            yield evaluation(arch=arch, components=components, items=ITEMS[1])


def step(
    *, task: str, arch: str, width: int, layers: int = 2, num_pairs: int | None = None
) -> tuple[Point, Callable[[], float]]:
    """Return a training step of batch 32 as a point, and how to measure it."""
    point = {"kind": "step", "task": task, "arch": arch, "width": width, "layers": layers}
    more = {} if num_pairs is None else {"num_pairs": num_pairs}

    def do() -> float:
        return train_seconds(
            ModelSpec(arch=arch, width=width, layers=layers), load_task(task, **more)
        )

    return {**point, **more}, do


def train_seconds(spec: ModelSpec, task: Any) -> float:
    """Return the CPU seconds of a step on the Trainer."""
    config = TrainConfig(steps=STEPS, log_every=STEPS, dynamics_every=0)
    rows = data.dataset_rows(task, "train", STEPS * config.batch_size)
    batches = data.Batches(data.fixed(rows, 0), batch_size=config.batch_size, count=STEPS)
    watcher = Watcher(config, 1e-3, [batches[0]], None, None)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = _arguments(config, 1e-3, Path(folder), "cpu", ())
        trainer = AnswerTrainer(spec.build(task, 0), arguments, batches, watcher)
        trainer.callback_handler.callbacks.insert(0, clock)  # before the watcher's last look
        trainer.train()
    between = [b - a for a, b in zip(clock.stamps, clock.stamps[1:], strict=False)]
    return statistics.median(between[SKIPPED:])


class Clock(TrainerCallback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Note the CPU time."""
        self.stamps.append(time.process_time())


def evaluation(*, arch: str, components: int, items: int) -> tuple[Point, Callable[[], float]]:
    """Return an evaluation as a point, and how to measure it."""
    chosen = COMPONENTS[:components]
    sites = 2 * components * len(POSITIONS)
    point = {"kind": "evaluation", "arch": arch, "sites": sites, "items": items}

    def do() -> float:
        task = load_task("ar")
        loaded = pb.load_model(ModelSpec(arch=arch, width=64).build(task, 0), device="cpu")
        start = time.process_time()
        pb.evaluate(loaded, task, n=items, components=list(chosen), positions=list(POSITIONS))
        return time.process_time() - start

    return point, do


def _key(point: Point) -> str:
    return json.dumps({k: v for k, v in point.items() if k != "seconds"}, sort_keys=True)


if __name__ == "__main__":
    typer.run(main)
