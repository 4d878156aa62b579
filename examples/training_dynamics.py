"""The mechanism while a model learns: a plain PyTorch loop, watched every so many steps.

python examples/training_dynamics.py
"""

import torch

import patchbench as pb
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

# Where the pair may be kept, and under which name its Attrib comes, above the gate.
NAMES = {role: f"mechanism/attrib/key/L1.block_input@{role}" for role in ("value", "query")}


def main(steps: int = 500, every: int = 50) -> dict[int, pb.Result]:
    """Train a small Based model on four pairs; print accuracy and Attrib as they develop."""
    task = pb.load_task("ar/tiny")
    torch.manual_seed(0)
    shape = {"width": 32, "layers": 2, "vocab_size": task.vocab_size}
    config = MixerLMConfig.preset("based", **shape, init="pytorch", initializer_range=0.3)
    model = MixerLMForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = task.dataset("train", 32 * steps).with_format("torch")
    watch = pb.MechanisticCallback(task, every=every, layers=[1], positions=list(NAMES))
    for step in range(1, steps + 1):
        batch = rows[32 * (step - 1) : 32 * step]
        loss = model(batch["input_ids"], labels=batch["labels"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scalars := watch(model, step):
            told = [f"step {step:4}  loss {loss.item():.2f}"]
            told += [f"accuracy {scalars['mechanism/accuracy']:.2f}"]
            told += [
                f"{role} {scalars[name]:.2f}" for role, name in NAMES.items() if name in scalars
            ]
            print("  ".join(told))
    return watch.results


if __name__ == "__main__":
    main()
