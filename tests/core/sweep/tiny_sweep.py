"""Sweeps of the smallest trainings, and how they are compared."""

from safetensors.torch import load_file

from patchbench.recipes import RunConfig, SweepConfig
from patchbench.training import Trained
from patchbench.training.folder import WORK

TASK = {"num_pairs": 2, "num_keys": 4, "num_values": 4}
QUICK = {
    "steps": 8, "log_every": 2, "dev_n": 16, "test_n": 8, "train_n": 64, "batch_size": 8,
    "dynamics_every": 0,
}  # fmt: skip
EVALUATION = {"components": ["block_input", "conv_output"], "positions": ["key", "value"]}


def run(name="a-s0", *, arch="delta_net", seed=0, **training):
    return RunConfig(
        name=name,
        group=name.rpartition("-")[0],
        model={"arch": arch, "width": 16},
        task="ar",
        overrides=TASK,
        task_seed=seed,
        training={**QUICK, "seed": seed, **training},
        evaluation=EVALUATION,
    )


def sweep_of(*runs):
    return SweepConfig(recipe="tiny", runs=runs)


def checkpoints(out, name="long-s0"):
    """Return what marks the whole checkpoints that a run of the sweep in `out` has by now."""
    return list((out / "runs" / name / WORK).glob("*/checkpoints/*/complete"))


def content(folder):
    """Return everything that a run left and that must not depend on who did it."""
    trained = Trained.load(folder)
    weights = load_file(folder / "model.safetensors")
    summary = {k: v for k, v in trained.result.summary.items() if k != "seconds"}
    return {
        "weights": {name: tensor.numpy().tobytes() for name, tensor in weights.items()},
        "rows": trained.result.rows.to_pylist(),
        "summary": summary,
        "history": trained.history,
        "grid": trained.grid,
        "rate": trained.rate,
    }
