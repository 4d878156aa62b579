"""A training step on transformers' Trainer against the bare step: forward, backward, optimiser.

One command, one table; both run in one process, in turns, on one thread, with the same model, rows,
loss and optimiser. The bare step gets its tensors for nothing; the Trainer's has them cut from the
data, clips gradients, and moves the learning rate.

    python tests/benchmarks/bench_train.py
"""

import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from patchbench.adapters.checkpoints import quiet_transformers
from patchbench.tasks import load_task
from patchbench.training import ModelSpec, TrainConfig, data
from patchbench.training.loop import AnswerTrainer, _arguments
from patchbench.training.watcher import Watcher

STEPS, SKIPPED, TURNS = 60, 10, 3
SETTINGS = {
    "attention, the paper's task, d 64": (ModelSpec(arch="attention"), "ar", "fixed"),
    "delta_net, ar/tiny, d 32": (ModelSpec(arch="delta_net", width=32), "ar/tiny", "fixed"),
    "delta_net, ar/tiny, d 32, fresh": (ModelSpec(arch="delta_net", width=32), "ar/tiny", "fresh"),
    "attention, ar/tiny, d 32": (ModelSpec(arch="attention", width=32), "ar/tiny", "fixed"),
}


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.stamps.append(time.process_time())


def on_trainer(model, source, folder: Path) -> list[float]:
    """Return the seconds of each step."""
    config = TrainConfig(steps=STEPS, log_every=STEPS, dynamics_every=0)
    batches = data.Batches(source, batch_size=config.batch_size, count=STEPS)
    watcher = Watcher(config, 1e-3, [batches[0]], None, None)
    arguments = _arguments(config, 1e-3, folder, "cpu", ())
    trainer = AnswerTrainer(model, arguments, batches, watcher)
    clock = Clock()
    # First, so that what the watcher does after the last step is not counted.
    trainer.callback_handler.callbacks.insert(0, clock)
    with quiet_transformers():
        trainer.train()
    return [after - before for before, after in zip(clock.stamps, clock.stamps[1:], strict=False)]


def bare(model, source) -> list[float]:
    """Return the seconds of each step."""
    batches = data.Batches(source, batch_size=32, count=STEPS)
    ready = [batches[step] for step in range(STEPS)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    model.train()
    times = []
    for batch in ready:
        start = time.process_time()
        logits = model(batch["input_ids"], logits_to_keep=1, use_cache=False).logits[:, -1]
        F.cross_entropy(logits, batch["answer"]).backward()
        optimiser.step()
        optimiser.zero_grad()
        times.append(time.process_time() - start)
    return times


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':34} {'bare':>10} {'Trainer':>10}")
    for name, (spec, task_name, kind) in SETTINGS.items():
        task = load_task(task_name)
        model = spec.build(task, 0)
        rows = data.dataset_rows(task, "train", 20_000)
        source = data.fixed(rows, 0) if kind == "fixed" else data.fresh(task)
        slow: list[float] = []
        fast: list[float] = []
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as folder:
                slow += on_trainer(copy.deepcopy(model), source, Path(folder))[SKIPPED:]
            fast += bare(copy.deepcopy(model), source)[SKIPPED:]
        # Means for fresh data, whose cost comes by the chunk.
        middle = statistics.fmean if kind == "fresh" else statistics.median
        one, other = middle(fast), middle(slow)
        times = f"{1e3 * one:7.2f} ms {1e3 * other:7.2f} ms"
        print(f"{name:34} {times}  {other / one:.2f} times (wanted ≤ 1.3)")


if __name__ == "__main__":
    main()
