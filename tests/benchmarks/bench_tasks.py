"""Rows per second of the vectorised tasks against a plain Python loop of the same grammar.

    python tests/benchmarks/bench_tasks.py [--rows 100000]

"documents": both draw documents with a query and its answer. "rows": both add roles, labels and the
three corruptions; the package also checks them and makes an Arrow table, the loop makes dicts. Both
run in this process, in turn; times are CPU seconds.
"""

import argparse
import platform
import random
import sys
import time
from pathlib import Path

from patchbench.tasks import load_task
from patchbench.tasks.sampling import generator

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.tasks import oracle
from tests.tasks.plain import plain_grammar

# Rows that the loop makes; its time is scaled up.
LOOP_ROWS = {"ar": 2000, "atr/easy": 10_000, "atr/medium": 3000, "atr/large_vocab": 2000}


def time_package(task, rows: int, whole: bool) -> float:
    """Return the CPU seconds for `rows` documents or whole rows."""
    task.chunk("dev", 0)[0].to_arrow()  # imports, and the grammar
    began, made, index = time.process_time(), 0, 0
    while made < rows:
        if whole:
            made += len(task.chunk("train", index)[0].to_arrow())
        else:
            made += len(task.draw(generator(0, index), "train")[0])
        index += 1
    return (time.process_time() - began) * rows / made


def time_loop(task, rows: int, whole: bool) -> float:
    """Return the CPU seconds of the oracle for `rows` documents or whole rows."""
    rng = random.Random(0)
    if task.name == "ar":
        config = task.config
        make = oracle.ar_row if whole else oracle.ar_document
        arguments = (config.num_pairs, config.num_keys, config.num_values)
    else:
        make = oracle.atr_row if whole else oracle.atr_document
        arguments = (oracle.cumulated(plain_grammar(task.grammar)),)
    began = time.process_time()
    for _ in range(rows):
        make(rng, *arguments)
    return time.process_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    print(f"{platform.machine()}, Python {platform.python_version()}, CPU seconds for {rows:,}")
    print(f"{'task':<16} {'what':<10} {'package':>8} {'loop':>8} {'ratio':>7}")
    for name, loop_rows in LOOP_ROWS.items():
        for what in ("documents", "rows"):
            task = load_task(name)
            fast = time_package(task, rows, what == "rows")
            slow = time_loop(task, loop_rows, what == "rows") * rows / loop_rows
            print(f"{name:<16} {what:<10} {fast:>8.2f} {slow:>8.2f} {slow / fast:>6.1f}x")


if __name__ == "__main__":
    main()
