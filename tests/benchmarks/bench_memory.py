"""How much memory an evaluation of a large model takes: random weights of mamba-1.4b's shape.

One command; it writes a checkpoint of 2.8 GB to a temporary folder, evaluates it with the command
line in a process of its own, prints that process's largest resident set beside the limit, and
fails above it.

    python tests/benchmarks/bench_memory.py [--layers 48] [--n 4] [-- further options of evaluate]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import MambaConfig, MambaForCausalLM

LIMIT = 24  # GiB
WIDTH, VOCABULARY = 2048, 50280


def write(folder: Path, layers: int) -> float:
    """Write the checkpoint in bf16, and return its parameters in billions."""
    config = MambaConfig(hidden_size=WIDTH, num_hidden_layers=layers, vocab_size=VOCABULARY)
    with torch.device("meta"):
        shapes = MambaForCausalLM(config).state_dict()
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, tensor in shapes.items():
        if name == "lm_head.weight":  # the embedding
            continue
        if name.endswith("A_log"):
            value = torch.arange(1, tensor.shape[1] + 1).log().expand(tensor.shape)
        elif name.endswith(("norm.weight", "norm_f.weight", ".D")):
            value = torch.ones(tensor.shape)
        else:
            value = torch.empty(tensor.shape).normal_(0.0, 0.02, generator=generator)
        weights[name] = value.bfloat16().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["MambaForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    return sum(value.numel() for value in weights.values()) / 1e9


def main() -> None:
    """Write, evaluate in another process, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("further", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        size = write(Path(name), given.layers)
        middle = given.layers // 2
        command = [
            *(str(Path(sys.executable).with_name("patchbench")), "evaluate", "--model", name),
            *("--dtype", "bfloat16", "--device", "cpu", "--task", "ar", "--threads", "1"),
            *("--set", "num_pairs=2", "--n", str(given.n), "--batch-size", str(given.n)),
            *("--layers", f"0,{middle}", "--positions", "key,value,query"),
            *("--components", "block_input,ssm_state"),
            *given.further,
        ]
        print(" ".join(["patchbench", *command[1:]]).replace(name, "FOLDER"), flush=True)
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"{size:.2f} G parameters in bfloat16, {given.layers} layers: peak {peak:.1f} GiB of "
        f"{LIMIT}, {seconds:.0f} s"
    )
    sys.exit(peak > LIMIT)


if __name__ == "__main__":
    main()
