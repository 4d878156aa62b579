"""LoRA: what is changed, what it comes to in the weights, and what a kill costs."""

import json
import signal
import subprocess
import sys
from importlib import util

import pyarrow.parquet as pq
import pytest
import torch

import patchbench as pb
from patchbench.training import ModelSpec, train
from patchbench.training.lora import add_lora, lora_targets, merge_lora
from tests.core.tiny_fine_tuning import fine_tuned, same, save_start, weights
from tests.core.tiny_training import QUICK, TASK
from tests.tiny_models import tiny

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


@pytest.fixture(params=["llama", "mamba", "gpt2"])
def with_lora(request, task, tmp_path):
    return fine_tuned(request.param, task, tmp_path, lora=2, lr=1e-2)


def test_low_rank_changes_are_all_that_is_trained(with_lora):
    trained, loaded, start = with_lora
    before, after = weights(start), weights(trained.path)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    targets = lora_targets(loaded.model, 2)
    assert changed == {f"{name}.weight" for name in targets}
    assert not any("embed" in name or "head" in name or "wte" in name for name in changed)
    for name in changed:
        sizes = torch.linalg.svdvals((after[name] - before[name]).double())
        assert sizes[1] > 100 * sizes[2]  # of rank 2, but for rounding
    assert any("LoRA of rank 2" in note for note in trained.result.provenance["notes"])


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba", "mamba2", "zamba2", "mixer_lm"])
def test_merged_and_unmerged_agree(family, tmp_path):
    if family == "mixer_lm":
        model = ModelSpec(arch="mamba,attention", width=16).build(pb.load_task("ar/tiny"), 0)
    else:
        model = tiny(family)
    tokens = torch.arange(12)[None] % 32
    model = pb.load_model(model).model.eval()
    expected = model(tokens).logits
    targets = lora_targets(model, 3)
    tuned = add_lora(pb.load_model(model).model, targets, rank=3, seed=0)
    torch.testing.assert_close(tuned(tokens).logits, expected, atol=0, rtol=0)  # B is 0
    frozen = {n: w.clone() for n, w in tuned.named_parameters() if not w.requires_grad}
    loss = tuned(tokens).logits.logsumexp(-1).mean()
    loss.backward()
    felt = {name for name, w in tuned.named_parameters() if w.grad is not None and w.grad.any()}
    # Every change is felt: B, and A once B is no longer 0.
    assert felt == {n for n, _ in tuned.named_parameters() if "lora_B" in n}
    assert len(felt) == len(targets)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.03)
    unmerged = tuned(tokens).logits
    assert all(torch.equal(w, frozen[n]) for n, w in tuned.named_parameters() if n in frozen)
    tuned.save_pretrained(tmp_path)
    original = tuned.unload()
    merged = merge_lora(original, tmp_path)
    scale = float(unmerged.detach().abs().max().clamp(min=1))  # what rounding goes with
    torch.testing.assert_close(merged(tokens).logits, unmerged, atol=1e-5 * scale, rtol=0)
    assert (unmerged - expected).abs().max() > 1e-2
    torch.testing.assert_close(original(tokens).logits, expected, atol=0, rtol=0)


def test_weights_in_two_places_are_not_changed():
    model = tiny("llama")
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight
    targets = lora_targets(model, 2)
    assert len(targets) == 2 * 7 - 2
    assert not any("up_proj" in name for name in targets)


# Run here, and in a process that kills itself.
RESUMABLE = """
import os, signal, sys
import torch
import patchbench as pb
from patchbench.training import ModelSpec, train, watcher

def resumable(start, out, data, lora, dies=0):
    torch.set_num_threads(1)
    watcher._SECONDS_BETWEEN_REPORTS = -1
    def progress(rate, done, *rest):
        if dies and done >= dies:
            os.kill(os.getpid(), signal.SIGKILL)
    task = pb.load_task("ar", num_pairs=2, num_keys=4, num_values=4)
    return train(
        ModelSpec(init_from=str(start)), task, out=out, device="cpu", steps=12, log_every=2,
        dynamics_every=4, dynamics_n=4, dev_n=16, test_n=8, train_n=64, batch_size=8, lr=1e-2,
        data=data, lora=lora, progress=progress,
    )
"""


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("data", "lora"),
    [("fresh", 2), pytest.param("fixed", None, marks=pytest.mark.slow)],
    ids=["lora", "all"],
)
def test_a_killed_run_resumes_to_bit_equal_weights(data, lora, tmp_path, monkeypatch):
    monkeypatch.setattr("patchbench.training.watcher._SECONDS_BETWEEN_REPORTS", 0.2)
    # Dropout, so that the random state matters too.
    start = save_start(tmp_path / "start", attention_dropout=0.1)
    space: dict = {}
    exec(RESUMABLE, space)
    whole = space["resumable"](start, tmp_path / "whole", data, lora)
    killed = tmp_path / "killed"
    script = RESUMABLE + f"\nresumable(sys.argv[1], sys.argv[2], {data!r}, {lora!r}, dies=7)"
    done = subprocess.run([sys.executable, "-c", script, str(start), str(killed)])
    assert done.returncode == -signal.SIGKILL
    assert json.loads((killed / "training.json").read_text())["status"] == "running"
    assert (killed / "before" / "result.json").exists()
    stamp = (killed / "before" / "result.json").stat().st_mtime_ns
    resumed = space["resumable"](start, killed, data, lora)
    assert (killed / "before" / "result.json").stat().st_mtime_ns == stamp
    assert same(weights(whole.path), weights(resumed.path))
    assert whole.history == resumed.history
    tables = [pq.read_table(run.path / "dynamics.parquet") for run in (whole, resumed)]
    assert tables[0].equals(tables[1])
    assert "L1.block_input@answer-1" in tables[0]["site"].to_pylist()


def test_without_peft_the_remedy_is_how_to_install_it(task, tmp_path, monkeypatch):
    found = util.find_spec
    monkeypatch.setattr(
        util, "find_spec", lambda name, *rest: None if name == "peft" else found(name, *rest)
    )
    with pytest.raises(pb.UserError, match=r'peft: pip install "patchbench\[lora\]"'):
        train(ModelSpec(init_from="none"), task, out=tmp_path / "run", lora=2, **QUICK)
