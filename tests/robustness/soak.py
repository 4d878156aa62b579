"""Many evaluations in one process: memory, hooks, files and threads that they leave.

Use:

    python -m tests.robustness.soak --runs 500
    python -m tests.robustness.soak --runs 500 --engine pyvene --reload

Each run measures a bundled Mamba on other items than the one before, compares its engine with the
reference, and saves the Result over the last one. With `--reload` each also loads the model anew.
"""

import argparse
import gc
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules import module as of_all_modules

import patchbench as pb

MODEL = "patchbench/ar-mamba"
SETTINGS = {"n": 4, "positions": ["value", "value+2"], "components": ["block_input", "conv_output"]}
# Caches and the allocator's pools have their size by then.
WARM_UP = 50
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Left:
    """What a process has at a moment.

    Attributes:
        mib: resident memory.
        hooks: on the model's modules, and on all modules.
        files: open.
        threads: of the system and of Python, whichever is more.
    """

    mib: float
    hooks: int
    files: int
    threads: int


def left(model: nn.Module) -> Left:
    """Look at this process, after what is garbage is gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    hooks = sum(len(getattr(module, name)) for module in model.modules() for name in _HOOKS)
    hooks += sum(len(getattr(of_all_modules, f"_global{name}")) for name in _HOOKS)
    return Left(
        mib=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        hooks=hooks,
        files=len(os.listdir("/proc/self/fd")),
        threads=max(len(os.listdir("/proc/self/task")), threading.active_count()),
    )


def soak(
    runs: int, folder: Path, *, engine: str = "native", reload: bool = False, report: bool = False
) -> list[Left]:
    """Evaluate so many times after the warm-up; return what there was after it and at each tenth.

    Args:
        runs: after the warm-up.
        folder: for the Result.
        engine: that patches.
        reload: whether to load the model for each.
        report: whether to write the page too.
    """
    loaded, seen = pb.load_model(MODEL), []
    for number in range(WARM_UP + runs + 1):
        if number >= WARM_UP and (number - WARM_UP) % max(1, runs // 10) == 0:
            seen.append(left(loaded.model))
        if number == WARM_UP + runs:
            break
        task = pb.load_task("ar/mini", seed=number % 10)
        measured = pb.load_model(MODEL) if reload else loaded
        result = pb.evaluate(measured, task, engine=engine, **SETTINGS)
        result.save(folder / "run", overwrite=True, report=report)
    return seen


def main() -> int:
    """Print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500, help=f"after {WARM_UP} that warm it up")
    parser.add_argument("--engine", default="native", help="native, pyvene or nnsight")
    parser.add_argument("--reload", action="store_true", help="load the model for each")
    parser.add_argument("--report", action="store_true", help="write the page of each")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        seen = soak(
            asked.runs,
            Path(folder),
            engine=asked.engine,
            reload=asked.reload,
            report=asked.report,
        )
    for number, state in enumerate(seen):
        print(f"{number * max(1, asked.runs // 10):5} {state}")
    first, last = seen[0], seen[-1]
    print(
        f"{asked.runs} evaluations ({asked.engine}): {last.mib - first.mib:+.1f} MiB, "
        f"{last.hooks} hooks, {last.files - first.files:+} files, "
        f"{last.threads - first.threads:+} threads ({time.perf_counter() - began:.0f} s)"
    )
    kept = (last.files, last.threads) == (first.files, first.threads)
    return not (kept and last.hooks == 0 and last.mib - first.mib < 20)


if __name__ == "__main__":
    raise SystemExit(main())
