"""How often a mechanism is named where there is none: untrained models and shuffled sources.

    python tests/benchmarks/bench_false_positives.py --runs 200

Half of the runs are of untrained models with random weights. In the other half a hand-built model
solves the task, but every patch takes its activations from another example: nothing is restored
for a reason, and no verdict may be given.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

import patchbench as pb
from patchbench import controls, preparation, soft_controls
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.mechanism import LABELS
from patchbench.selftest.models import build

ARCHITECTURES = ("attention", "mamba", "delta_net", "h3", "based")
BUILT = ("induction", "direct", "conv_bound")
SETTINGS = {"n": 48, "positions": ("key", "value", "value+1", "query"), "selfcheck": False}


def task_of(seed: int):
    return pb.load_task("ar", num_pairs=4, num_keys=8, num_values=8, seed=seed)


def untrained(seed: int) -> pb.Result:
    torch.manual_seed(seed)
    task = task_of(seed)
    name = ARCHITECTURES[seed % len(ARCHITECTURES)]
    config = MixerLMConfig.preset(name, width=32, layers=2, vocab_size=task.vocab_size)
    return pb.evaluate(MixerLMForCausalLM(config).eval(), task, **SETTINGS)


def shuffled(seed: int) -> pb.Result:
    task = task_of(seed)
    name = BUILT[seed % len(BUILT)]
    idle = (1, 1)[: 1 + seed % 2]
    model = build(name, vocab_size=task.vocab_size, length=13, seed=seed, idle=idle)
    plain = preparation._plan

    def plan(*args, **kwargs):
        return [
            item if item.control in controls.EXPECTED or item.control in soft_controls.NAMES
            else replace(soft_controls.from_another(item), control=None)
            for item in plain(*args, **kwargs)
        ]  # fmt: skip

    preparation._plan = plan
    try:
        result = pb.evaluate(model, task, **SETTINGS)
    finally:
        preparation._plan = plain
    # The verdict reads sites by name; here each is where the activation is put.
    names = [name.split(" -> ")[-1] for name in result.rows["site"].to_pylist()]
    index = result.rows.schema.get_field_index("site")
    field = result.rows.schema.field(index)
    rows = result.rows.set_column(index, field, [names])
    return pb.Result.from_rows(rows, config=result.config, provenance=result.provenance)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    started = time.process_time()
    for kind in (untrained, shuffled):
        labels = [kind(seed).verdict.label for seed in range(runs // 2)]
        found = [label for label in labels if label in LABELS]
        names, counts = np.unique([str(label) for label in labels], return_counts=True)
        shown = dict(zip(names.tolist(), counts.tolist(), strict=True))
        seconds = time.process_time() - started
        print(
            f"{kind.__name__}: {len(found)} of {len(labels)}; {shown}; {seconds:.0f} CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main()
