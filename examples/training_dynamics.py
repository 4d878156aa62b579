"""The mechanism while a model learns: a plain PyTorch loop, watched every so many steps.

python examples/training_dynamics.py
"""

import torch

import patchbench as pb
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM


def main(steps: int = 300, every: int = 50) -> dict[int, pb.Result]:
    """Train a small attention model on four pairs; print accuracy and Attrib as they develop."""
    task = pb.load_task("ar/tiny")
    torch.manual_seed(0)
    config = MixerLMConfig.preset("attention", width=32, layers=2, vocab_size=task.vocab_size)
    model = MixerLMForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = task.dataset("train", 32 * steps).with_format("torch")
    watch = pb.MechanisticCallback(task, every=every, layers=[1], positions=["value", "query"])
    for step in range(1, steps + 1):
        batch = rows[32 * (step - 1) : 32 * step]
        loss = model(batch["input_ids"], labels=batch["labels"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scalars := watch(model, step):
            told = {name: value for name, value in scalars.items() if "/low" not in name}
            print(f"step {step:4}  loss {loss.item():.2f}  accuracy", told["mechanism/accuracy"])
    return watch.results


if __name__ == "__main__":
    main()
