"""How often a mechanism is named, and an effect found, where there is none.

    python tests/benchmarks/bench_false_positives.py --runs 200

`untrained`: models with random weights. `shuffled`: a hand-built model solves the task, but every
patch takes its activations from another example, so that nothing is restored for a reason.
`simulated`: rows far above the gate whose patches add noise of mean 0, by turns symmetric and
skewed; what is found there is false, and found in at most 5 % of the runs. `at_a_half`: the value
holds just a half before each of eleven layers, with noise of its own. Each passes for more in 2.5 %
of the runs: the worst case of a verdict over many layers.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

import patchbench as pb
from patchbench import controls, preparation, soft_controls
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.selftest.models import build
from patchbench.statistics import wilson

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.core.rows import PROVENANCE, make_rows

ARCHITECTURES = ("attention", "mamba", "delta_net", "h3", "based")
BUILT = ("induction", "direct", "conv_bound")
PLACES = ("key", "value", "value+1", "query")
SETTINGS = {"n": 48, "positions": PLACES, "selfcheck": False}
ITEMS = 64


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


def simulated(seed: int) -> pb.Result:
    rng = np.random.default_rng(seed)
    sites = [f"L{layer}.block_input@{place}" for layer in range(4) for place in PLACES]
    if seed % 2:
        noise = rng.normal(0, 0.03, (len(sites), ITEMS))
    else:
        noise = np.where(rng.random((len(sites), ITEMS)) < 0.1, 0.45, -0.05)
    return of_noise(dict.fromkeys(sites, 0.0), noise, layers=4, seed=seed)


def at_a_half(seed: int, layers: int = 12) -> pb.Result:
    rng = np.random.default_rng(seed)
    effects = {
        f"L{layer}.block_input@{place}": 0.5 if place == "value" else 0.0
        for layer in range(1, layers)
        for place in ("key", "value", "query")
    }
    spread = np.array([0.2 if effect else 0.03 for effect in effects.values()])
    noise = rng.normal(0, 1, (len(effects), ITEMS)) * spread[:, None]
    return of_noise(effects, noise, layers=layers, seed=seed)


def of_noise(effects: dict[str, float], noise: np.ndarray, *, layers: int, seed: int) -> pb.Result:
    """Return the Result of rows whose effects (sites, items) have known means."""
    rows = make_rows(effects, n=ITEMS, right=ITEMS, twins=False)
    mean = np.repeat(list(effects.values()), ITEMS)
    gap = rows["p_source"].to_numpy().mean() - rows["p_base"].to_numpy().mean()
    patched = rows["p_base"].to_numpy() + mean * gap + noise.reshape(-1)
    index = rows.schema.get_field_index("p_patched")
    model = PROVENANCE["model"] | {"num_layers": layers, "components": ["block_input"]}
    return pb.Result.from_rows(
        rows.set_column(index, rows.schema.field(index), pa.array(patched)),
        config={"seed": seed, "resamples": 400},
        provenance=PROVENANCE | {"model": model},
    )


def discoveries(result: pb.Result) -> int:
    """Return how many sites are told from 0."""
    return sum(
        effect["q_value"] <= run["false_discoveries"]
        for run in result.summary["runs"]
        for effect in run["effects"]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    started = time.process_time()
    for kind in (untrained, shuffled, simulated, at_a_half):
        results = [kind(seed) for seed in range(runs)]
        named = [str(result.verdict) for result in results if result.verdict.is_mechanism]
        print(
            f"{kind.__name__}: a mechanism in {len(named)} of {runs} {sorted(set(named))}", end=""
        )
        if kind is simulated:
            found = sum(discoveries(result) > 0 for result in results)
            print(f", an effect in {found} of {runs} ({wilson(found, runs)})", end="")
        print(f"; {time.process_time() - started:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
