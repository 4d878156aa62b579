"""Training from end to end: what is learned, what is left behind, what a kill costs."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import patchbench as pb
from patchbench.training import ModelSpec, TrainConfig, Trained, data, train
from patchbench.training.dynamics import SCHEMA
from tests.core.tiny_training import QUICK, SPEC, TASK
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


@pytest.fixture(scope="module")
def solved(task, tmp_path_factory):
    """A model that learned the task, and the folder that it left."""
    out = tmp_path_factory.mktemp("solved") / "run"
    return train(
        ModelSpec(arch="delta_net", width=32),
        task,
        out=out,
        device="cpu",
        steps=400,
        lr=5e-3,
        data="fresh",
        schedule="constant",
        stop_at=0.98,
        log_every=10,
        dynamics_every=20,
        dev_n=128,
        test_n=64,
        dynamics_n=32,
    )


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_it_learns_stops_and_leaves_model_result_and_history(solved):
    assert solved.stopped is not None
    assert solved.steps < 400
    assert solved.history[-1]["dev_accuracy"] >= 0.98 > solved.history[-2]["dev_accuracy"]
    assert solved.result.accuracy.value >= 0.9
    names = {path.name for path in solved.path.iterdir()}
    assert names >= {"config.json", "model.safetensors", "result", "training.json"}
    assert "work" not in names
    again = Trained.load(solved.path)
    assert again.history == solved.history
    assert again.result.rows.equals(solved.result.rows)
    assert again.result.provenance["training"]["training"]["stop_at"] == 0.98


def test_the_checkpoint_evaluates_as_the_result_says(solved, task):
    result = pb.evaluate(pb.load_model(solved.path), task, n=64)
    assert result.accuracy == solved.result.accuracy


def test_dynamics_show_the_association_appear(solved):
    table = pq.read_table(solved.path / "dynamics.parquet")
    assert table.schema.equals(SCHEMA)
    steps = sorted(set(table["step"].to_pylist()))
    assert steps == sorted({*range(20, solved.steps + 1, 20), solved.steps})
    logged = {line["step"]: line for line in solved.history}
    for line in table.to_pylist():
        assert line["dev_accuracy"] == logged[line["step"]]["dev_accuracy"]
        name = f"attrib/{line['site']}"
        assert logged[line["step"]].get(name) == line["attrib"]
    last = [line for line in table.to_pylist() if line["step"] == solved.steps]
    # Layer 0's input holds the corrupted key and nothing else that differs.
    restored = next(line for line in last if line["site"] == "L0.block_input@key")
    assert restored["attrib"] == pytest.approx(1.0, abs=1e-3)
    assert restored["p_patched"] == pytest.approx(restored["p_clean"], abs=1e-4)


@pytest.mark.parametrize("easier", [0, 2], ids=["plain", "curriculum"])
def test_a_training_equals_a_loop_by_hand(task, tmp_path, easier):
    config = {**QUICK, "steps": 6, "warmup": 2, "schedule": "linear", "lr": 1e-2, "clip": 0.5}
    if easier:
        config["curriculum"] = (f"num_pairs=1:{easier}",)
    trained = train(SPEC, task, out=tmp_path / "run", **config)
    model = SPEC.build(task, 0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence(0, spawn_key=(0,))))
    order = order.permutation(256)
    hard = list(task.dataset("train", 256))
    easy = list(pb.load_task("ar", **{**TASK, "num_pairs": 1}).dataset("train", 256))
    for step, rate in enumerate([0.0, 0.5, 1.0, 0.75, 0.5, 0.25]):
        rows, number = (easy, step) if step < easier else (hard, step - easier)
        chosen = [rows[i] for i in order[8 * number : 8 * number + 8]]
        optimiser.param_groups[0]["lr"] = 1e-2 * rate
        ids = torch.tensor([row["input_ids"] for row in chosen])
        answer = torch.tensor([row["answer"] for row in chosen])
        loss = F.cross_entropy(model(ids).logits[:, chosen[0]["roles"]["answer"] - 1], answer)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimiser.step()
    for name, tensor in weights(trained.path).items():
        torch.testing.assert_close(tensor, model.state_dict()[name], atol=2e-6, rtol=1e-4)


def test_only_the_seed_decides_and_random_states_are_left_alone(task, tmp_path):
    torch.manual_seed(5)
    random.seed(5)
    states = (torch.get_rng_state(), random.getstate())
    one = train(SPEC, task, out=tmp_path / "one", **QUICK)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    torch.manual_seed(6)
    two = train(SPEC, task, out=tmp_path / "two", dynamics_every=0, log_every=3, **QUICK)
    other = train(SPEC, task, out=tmp_path / "other", seed=1, **QUICK)
    assert equal(weights(one.path), weights(two.path))
    assert not equal(weights(one.path), weights(other.path))


# Run here and in a process that is killed.
RESUMABLE = """
import patchbench as pb
import torch
from patchbench.training import train

def resumable(start, out, kind, progress=None):
    torch.set_num_threads(1)
    task = pb.load_task("ar", num_pairs=2, num_keys=4, num_values=4)
    return train(
        pb.load_model(start).model, task, out=out, device="cpu", steps=60, log_every=5,
        dynamics_every=10, dynamics_n=8, dev_n=16, test_n=8, train_n=256, batch_size=8, lr=1e-2,
        data=kind, progress=progress,
    )
"""


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["fixed", "fresh"])
def test_a_killed_run_resumes_to_bit_equal_weights(kind, tmp_path):
    # Dropout, so that the random state matters too.
    model = tiny("gpt2", vocab=16)
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(model.config, name, 0.1)
    start = tmp_path / "start"
    model.save_pretrained(start)
    space: dict = {}
    exec(RESUMABLE, space)
    whole = space["resumable"](start, tmp_path / "whole", kind)

    killed = tmp_path / "killed"
    script = RESUMABLE + "\nimport sys\nresumable(*sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", script, str(start), str(killed), kind])
    deadline = time.monotonic() + 240
    checkpoints = killed / "work" / "lr-0.01" / "checkpoints"
    while not list(checkpoints.glob("checkpoint-20/complete")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert json.loads((killed / "training.json").read_text())["status"] == "running"
    # As if the kill had come in the middle of a checkpoint, with its step already measured.
    complete = {int(mark.parent.name[11:]): mark for mark in checkpoints.glob("*/complete")}
    newest = max(complete)
    complete[newest].unlink()
    (complete[newest].parent / "trainer_state.json").write_text("{")
    assert len(complete) == 2

    steps: list[int] = []
    resumed = space["resumable"](start, killed, kind, lambda _, done, *rest: steps.append(done))
    assert steps[0] == newest - 5 + 1  # and not from the beginning
    assert equal(weights(whole.path), weights(resumed.path))
    assert whole.history == resumed.history
    tables = [pq.read_table(run.path / "dynamics.parquet") for run in (whole, resumed)]
    assert tables[0].equals(tables[1])


def test_nan_stops_and_keeps_the_last_good_checkpoint(task, tmp_path):
    model = SPEC.build(task, 0)
    steps = []

    class Poisoned(type(model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            steps.extend([1] * torch.is_grad_enabled())
            if len(steps) == 6:
                output.logits = output.logits * torch.nan
            return output

    model.__class__ = Poisoned
    with pytest.raises(pb.UserError, match=r"NaN at step 6 .*0\.01") as error:
        train(model, task, out=tmp_path / "run", lr=1e-2, log_every=2, **QUICK)
    kept = tmp_path / "run" / "work" / "lr-0.01" / "checkpoints" / "checkpoint-4"
    assert str(kept) in str(error.value)
    assert all(tensor.isfinite().all() for tensor in weights(kept).values())
    assert not (tmp_path / "run" / "result").exists()


def test_another_configuration_is_refused_with_the_difference(solved, task):
    with pytest.raises(pb.UserError, match=r"training\.lr: 0\.005 → 0\.02") as error:
        train(SPEC, task, out=solved.path, lr=2e-2, **QUICK)
    assert "--overwrite" in str(error.value)
    assert Trained.load(solved.path).history == solved.history


def test_a_finished_training_is_returned_at_once(task, tmp_path):
    first = train(SPEC, task, out=tmp_path / "run", **QUICK)
    stamp = (first.path / "model.safetensors").stat().st_mtime_ns
    second = train(SPEC, task, out=tmp_path / "run", **QUICK)
    assert second.history == first.history
    assert (first.path / "model.safetensors").stat().st_mtime_ns == stamp
    third = train(SPEC, task, out=tmp_path / "run", overwrite=True, seed=1, **QUICK)
    assert third.history != first.history


def test_somebody_elses_folder_is_never_removed(task, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(pb.UserError, match="no training"):
        train(SPEC, task, out=tmp_path, overwrite=True, **QUICK)
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_any_causal_language_model_trains(task, tmp_path, family):
    tiny(family, vocab=20).save_pretrained(tmp_path / "start")
    spec = ModelSpec(init_from=str(tmp_path / "start"))
    trained = train(spec, task, out=tmp_path / "run", lr=1e-2, warmup=0, **QUICK)
    assert not equal(weights(trained.path), weights(tmp_path / "start"))
    assert any("20 token ids" in note for note in trained.result.provenance["notes"])


def test_mixed_precision_keeps_weights_in_float32(task, tmp_path):
    trained = train(SPEC, task, out=tmp_path / "run", precision="bfloat16", **QUICK)
    assert {tensor.dtype for tensor in weights(trained.path).values()} == {torch.float32}


def test_epochs_count_rows():
    config = TrainConfig(epochs=16, train_n=100_032)
    assert config.total_steps == 50_016
    assert config.warmup_steps == 5001
    assert data.EVALUATION_BATCH % config.batch_size == 0
