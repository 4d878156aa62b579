"""The native engine's CPU time against the plain loop over sites, and against what is left to do.

    python tests/benchmarks/bench_engines.py [--only attention mamba smollm2] [--sampled 0.1]
    python tests/benchmarks/bench_engines.py --memory [--only attention]

The plain loop runs, for each site, original, source and patched forward through pyvene with all
logits, and measures the same rows. It is timed on a sample of the sites, in turns with the native
engine on the same batches, and its mean time per site and batch is multiplied by their number: the
sites of one model cost the loop nearly the same, as each is three whole forwards.

The floor is what a perfect engine would need: for each row the blocks and tokens from the patch on,
at the throughput of the model's plain forward (read out at the answer) at its best batch size.

`--memory` measures what the process takes at most, and no times: freed memory is given back at once
there, which costs time. Left alone, malloc keeps ever larger freed blocks for later.
"""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import patchbench as pb
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.loading import LoadedModel
from patchbench.adapters.running import scoring
from patchbench.engines import ENGINES, Batch, make_batches
from patchbench.engines.native.work import Work
from patchbench.engines.rows import RowWriter
from patchbench.engines.safe_intervenable import SafeIntervenable, swap_config
from patchbench.engines.scoring import ReadOut
from patchbench.inputs import model_inputs
from patchbench.interventions import Intervention
from patchbench.preparation import select_sites
from patchbench.sites import Site

POSITIONS = ("key", "value", "value+1", "value+2", "divider", "query", "answer")
SIX = ("key", "value", "value+1", "divider", "query", "answer-1")
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MMAP_THRESHOLD = -3  # of glibc's mallopt; 2**17 bytes is where it begins
WANTED = {"attention": 25, "mamba": 12, "smollm2": 12}


def cpu(action: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    action()
    return time.process_time() - start


def plain_site(loaded: LoadedModel, batch: Batch, site: Site, clean: torch.Tensor) -> None:
    """Measure one site the plain way: three forwards with all logits.

    pyvene hands out the original and the patched logits, not those of the source, which it has run
    as well: they come from outside, at no cost to the loop.
    """
    wrapped = SafeIntervenable(swap_config(loaded.hook_map, loaded.model, [site]), loaded.model)
    where = [[[int(at)] for at in np.maximum(batch.locate(site.position), 0)]]
    base, source = (torch.as_tensor(batch.tokens(run)) for run in ("key", "clean"))
    original, patched = wrapped(
        {"input_ids": base},
        [{"input_ids": source}],
        unit_locations={"sources->base": (where, where)},
        output_original_output=True,
    )
    rows, read = torch.arange(len(batch)), torch.as_tensor(batch.read_out)
    writer = RowWriter(batch)
    writer.observe("clean", clean[rows, read])
    writer.observe("key", original.logits[rows, read])
    intervention = Intervention(sites=(site,), corruption="key")
    writer.add(intervention, batch.usable(intervention), patched.logits[rows, read])


def throughput(loaded: LoadedModel, batch: Batch) -> float:
    """Return the plain forward's best tokens × blocks a CPU second, read out at the answer."""
    best = 0.0
    for repeats in (1, 2, 4):
        tokens = torch.as_tensor(batch.clean).repeat(repeats, 1)
        positions = torch.as_tensor(batch.read_out).repeat(repeats)
        arguments = ReadOut.at(loaded.model, positions, batch.length).arguments
        seconds = min(cpu(lambda t=tokens, a=arguments: loaded.model(t, **a)) for _ in range(4))
        best = max(best, tokens.numel() * loaded.hook_map.num_layers / seconds)
    return best


def remaining(loaded: LoadedModel, batch: Batch, plan: list[Intervention]) -> float:
    """Return the tokens × blocks from each patch on."""
    usable = {intervention: batch.usable(intervention) for intervention in plan}
    work = Work(plan, usable, batch, loaded.hook_map)
    tokens = batch.read_out[work.example] + 1 - np.minimum(work.first, batch.length - 1)
    return float((tokens * (loaded.hook_map.num_layers - work.layer)).sum())


def peak(action: Callable[[], object]) -> int:
    """Return by how many bytes a call raises the process's resident memory at most."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(_MMAP_THRESHOLD, 2**17)
    gc.collect()
    libc.malloc_trim(0)  # else it would fill what earlier calls left free
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def setting(
    name: str, items: int, stride: int
) -> tuple[LoadedModel, list[Batch], list[Intervention]]:
    """Return model, batches and interventions of a named setting."""
    if name == "smollm2":
        loaded = pb.load_model(SMOLLM2)
        task = pb.load_task("ar", num_pairs=4)
        dataset = model_inputs(
            loaded, task, split="test", n=min(items, 16), corruptions=["key"]
        ).dataset
        sites = select_sites(loaded.hook_map, ["block_input"], range(0, 30, stride), SIX)
        batches = make_batches(dataset, 16, ["key"])
    else:
        config = MixerLMConfig.preset(name, width=64, layers=2, vocab_size=8196)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loaded = pb.load_model(MixerLMForCausalLM(config).eval())
        dataset = pb.load_task("ar").dataset("test", items)
        components = list(dict.fromkeys(component for _, component in loaded.hook_map.points))
        sites = select_sites(loaded.hook_map, components, None, POSITIONS)
        batches = make_batches(dataset, 32, ["key"])
    return loaded, batches, [Intervention(sites=(site,), corruption="key") for site in sites]


def measure(name: str, sampled: float, items: int, stride: int) -> None:
    """Print one setting's line."""
    loaded, batches, plan = setting(name, items, stride)
    engine, native, floor = ENGINES["native"](), 0.0, 0.0
    slow: list[float] = []
    rng = np.random.default_rng(0)
    with scoring(loaded.model):
        clean = loaded.model(torch.as_tensor(batches[0].clean)).logits
        plain_site(loaded, batches[0], plan[0].sites[0], clean)  # warms up
        for batch in batches:
            clean = loaded.model(torch.as_tensor(batch.clean)).logits
            native += cpu(lambda b=batch: engine.run(loaded, plan, b))
            some = min(len(plan), max(3, round(sampled * len(plan))))
            for number in rng.choice(len(plan), size=some, replace=False):
                site = plan[number].sites[0]
                slow.append(
                    cpu(lambda b=batch, s=site, c=clean: plain_site(loaded, b, s, c)) / len(batch)
                )
            floor += remaining(loaded, batch, plan)
        best = throughput(loaded, batches[-1])
    count = sum(map(len, batches))
    loop = float(np.mean(slow)) * count * len(plan)
    print(
        f"{name}: {len(plan)} sites × {count} items of {batches[-1].length} tokens: native "
        f"{native:.1f} s, the loop {loop:.1f} s ({len(slow)} of {len(plan) * len(batches)} site "
        f"batches timed): {loop / native:.1f} times faster (wanted {WANTED[name]})\n"
        f"  floor {floor / best:.2f} s, {100 * floor / best / native:.0f} % of native; "
        f"{engine.counters.forwards} forwards, {engine.counters.forward_rows} rows\n"
        f"  notes: {engine.counters.notes or 'none'}"
    )


def measure_memory(name: str, items: int, stride: int) -> None:
    """Print what batches take at most, beside a plain forward with all logits."""
    loaded, batches, plan = setting(name, min(items, 64), stride)
    engine = ENGINES["native"]()
    with scoring(loaded.model):
        native = max(peak(lambda b=batch: engine.run(loaded, plan, b)) for batch in batches)
        tokens = torch.as_tensor(batches[-1].clean)
        plain = max(peak(lambda: loaded.model(tokens)) for _ in range(3))
    limit = 1.5 * plain + engine.kept
    print(
        f"{name}: peak memory {native / 2**20:.0f} MiB, of which cache {engine.kept / 2**20:.0f}; "
        f"the plain forward {plain / 2**20:.0f} (wanted: at most {limit / 2**20:.0f})"
    )


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(WANTED), choices=list(WANTED))
    parser.add_argument("--sampled", type=float, default=0.05)
    parser.add_argument("--items", type=int, default=256, help="of smollm2: at most 16")
    parser.add_argument("--stride", type=int, default=1, help="every so many layers of smollm2")
    parser.add_argument("--memory", action="store_true", help="peaks instead of times")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only if options.memory else ():
        measure_memory(name, options.items, options.stride)
    for name in () if options.memory else options.only:
        measure(name, options.sampled, options.items, options.stride)


if __name__ == "__main__":
    main()
