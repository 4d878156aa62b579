"""Floors, lengths and drop shares of associative treecall over many grammar seeds.

    python tests/benchmarks/bench_floors.py [--grammars 60] [--rows 2000]

One grammar is one draw: the spread between grammars is far larger than the sampling error within
one. Floors and lengths are of the task's own distribution (nothing dropped). The paper's single
grammars (1,024 items each) are printed beside.
"""

import argparse

import numpy as np

from patchbench.tasks import list_tasks, load_task

PAPER = {
    "atr/easy": (0.52, 0.44, 15),
    "atr/medium": (0.43, 0.43, 39),
    "atr/large_vocab": (0.49, 0.43, 13),
}


def measure(name: str, grammar: int, rows: int) -> tuple[float, float, float, float]:
    """Return (next-token floor, rightmost floor, mean sentence length, drop share) of a grammar."""
    task = load_task(name, seed=grammar, keep_uncorruptible=True)
    made, following, last, lengths, dropped = 0, 0, 0, 0, 0
    for examples, _ in task.chunks("test"):
        made += len(examples)
        following += examples.metadata["answer_is_next_token"].sum()
        last += examples.metadata["answer_is_rightmost"].sum()
        lengths += (examples.roles["divider"] - 1).sum()
        twins = examples.corruptions
        dropped += (~(twins["key"].exists & twins["value"].exists)).sum()
        if made >= rows:
            break
    return following / made, last / made, lengths / made, dropped / made


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grammars", type=int, default=60)
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    print(f"{options.grammars} grammars: mean ± standard deviation [smallest, largest]; paper")
    for name in (info.name for info in list_tasks() if info.name.startswith("atr/")):
        found = np.array([measure(name, g, options.rows) for g in range(options.grammars)])
        for column, label in enumerate(("next token", "rightmost", "length", "dropped")):
            values = found[:, column]
            scale, unit = (1, "") if label == "length" else (100, " %")
            text = (
                f"{scale * values.mean():5.1f} ± {scale * values.std(ddof=1):4.1f}{unit} "
                f"[{scale * values.min():.1f}, {scale * values.max():.1f}]"
            )
            shown = ""
            if column < 3 and name in PAPER:
                paper = PAPER[name][column]
                below = int((values < paper).sum())
                shown = f"{scale * paper:g}{unit} ({below} of {len(values)} below)"
            print(f"{name:<18} {label:<11} {text:<34} {shown}")


if __name__ == "__main__":
    main()
