"""Controls that should be near 0: where they are, whose activations they take, what they show."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench import soft_controls
from patchbench.engines import ENGINES
from patchbench.engines.base import make_batches
from patchbench.interventions import Intervention
from patchbench.selftest.models import build
from tests.core.batches import module_of
from tests.tiny_models import tiny

TASK = {"num_pairs": 3, "num_keys": 8, "num_values": 8}


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


@pytest.fixture(scope="module")
def batch(task):
    return soft_controls.prepare(make_batches(task.dataset("test", 24), 24, ["key", "value"]))[0]


def test_the_other_value_is_a_value_of_another_pair(batch):
    rows = np.arange(24)
    other = batch.positions["other_value"]
    for row in rows:
        token = batch.clean[row, other[row]]
        assert token in batch.candidates[row]
        assert token != batch.answer[row]
        assert all(batch.corrupted[c][row, other[row]] == token for c in ("key", "value"))
    assert len(set(other.tolist())) > 1


def test_the_random_token_has_no_role_and_is_never_corrupted(batch):
    names = ("bos", "key", "value", "divider", "query", "answer")
    for row in range(24):
        place = batch.positions["random"][row]
        assert 0 < place < batch.positions["query"][row]
        assert place not in {batch.positions[name][row] for name in names}


def test_the_answers_token_elsewhere_is_no_other_value(task):
    """On associative treecall the answer may come twice: here in the place of every other value."""
    (plain,) = make_batches(task.dataset("test", 24), 24, ["key", "value"])
    rows = np.arange(24)[:, None]
    listed = plain.clean[:, : plain.positions["divider"][0]]
    values = np.argwhere((listed[:, :, None] == plain.candidates[:, None]).any(-1))
    places = values[:, 1].reshape(24, 3)
    tokens = {name: run.copy() for name, run in {"": plain.clean, **plain.corrupted}.items()}
    for run in tokens.values():
        own = places == plain.positions["value"][:, None]
        run[rows, places] = np.where(own, run[rows, places], plain.answer[:, None])
    clean = tokens.pop("")
    (found,) = soft_controls.prepare([replace(plain, clean=clean, corrupted=tokens)])
    assert (found.positions["other_value"] == -1).all()
    assert (found.positions["random"] >= 0).all()


def test_the_first_token_is_never_drawn_also_without_a_role(task):
    (plain,) = make_batches(task.dataset("test", 200), 200, ["key"])
    roles = {name: places for name, places in plain.positions.items() if name != "bos"}
    (found,) = soft_controls.prepare([replace(plain, positions=roles)])
    assert (found.positions["random"] > 0).all()
    assert 1 in found.positions["random"]


@pytest.mark.parametrize(
    ("direction", "names"),
    [
        ("denoise", ["wrong position", "shuffled source", "shuffled source", "random site"]),
        ("noise", ["wrong position", "random site"]),
    ],
)
def test_all_are_in_the_middle_of_the_model(direction, names):
    hook_map = pb.load_model(tiny("gpt2", layers=4)).hook_map
    found = soft_controls.interventions(hook_map, corruption="key", direction=direction)
    assert {site.layer for control in found for site in control.sites} == {2}
    assert [control.control for control in found] == names
    assert {(c.corruption, c.direction) for c in found} == {("key", direction)}


def test_the_same_examples_get_the_same_places(task, batch):
    again = soft_controls.prepare(make_batches(task.dataset("test", 24), 24, ["key", "value"]))[0]
    for name in ("other_value", "random"):
        assert (again.positions[name] == batch.positions[name]).all()


@pytest.mark.parametrize("size", [1, 5])
def test_the_size_of_the_batches_does_not_matter(size, task, batch):
    parts = soft_controls.prepare(make_batches(task.dataset("test", 24), size, ["key", "value"]))
    for name in ("other_value", "random", "shuffled_value"):
        joined = np.concatenate([part.positions[name] for part in parts])
        assert (joined == batch.positions[name]).all()
    for run in ("clean~", "key~"):
        joined = np.concatenate([part.tokens(run) for part in parts])
        assert (joined == batch.tokens(run)).all()


def test_one_example_has_no_other(task):
    alone = soft_controls.prepare(make_batches(task.dataset("test", 1), 1, ["key"]))[0]
    site = pb.Site.parse("L1.block_input@value")
    item = soft_controls.from_another(Intervention(sites=(site,), corruption="key"))
    assert not alone.usable(item).any()


@pytest.mark.parametrize("engine", ["native", "pyvene", "nnsight"])
def test_a_shuffled_source_is_the_example_before(engine, task):
    """Against raw hooks, one example at a time."""
    model = tiny("gpt2")
    loaded = pb.load_model(model)
    batch = soft_controls.prepare(make_batches(task.dataset("test", 4), 4, ["key"]))[0]
    site = pb.Site.parse("L1.block_input@value")
    item = soft_controls.from_another(Intervention(sites=(site,), corruption="key"))
    found = ENGINES[engine]().run(loaded, [item], batch)["p_patched"].to_numpy()
    module, _ = module_of(model, "gpt2", 1, "block_input")
    value = batch.positions["value"]
    for row in range(4):
        kept = {}

        def keep(_, args, kept=kept):
            kept["value"] = args[0].clone()

        def swap(_, args, kept=kept, row=row):
            args[0][:, value[row]] = kept["value"][:, value[row - 1]]
            return args

        with torch.no_grad():
            handle = module.register_forward_pre_hook(keep)
            model(torch.tensor(batch.clean[row - 1][None]))
            handle.remove()
            handle = module.register_forward_pre_hook(swap)
            logits = model(torch.tensor(batch.corrupted["key"][row][None])).logits[0]
            handle.remove()
        p = logits[batch.read_out[row]].softmax(-1)[batch.answer[row]]
        assert found[row] == pytest.approx(float(p), abs=1e-6)


def test_a_run_has_them_and_they_are_near_0(task):
    model = build("induction", vocab_size=task.vocab_size, length=11)
    result = pb.evaluate(model, task, n=32, positions=["key", "value", "query"])
    (run,) = result.summary["runs"]
    names = [item["control"] for item in run["soft_controls"]]
    assert names == ["wrong position", "shuffled source", "shuffled source", "random site"]
    assert all(abs(item["attrib"]["value"]) < 0.2 for item in run["soft_controls"])
    assert not soft_controls.carrying(run["soft_controls"])


@pytest.mark.parametrize(
    ("name", "label"),
    [("induction", "induction"), ("direct", "direct retrieval, early")],
)
def test_what_is_needed_is_told_as_well_as_what_suffices(name, label):
    """Another example's activations would remove the answer, and say nothing against it."""
    task = pb.load_task("ar", num_pairs=4, num_keys=6, num_values=6)
    result = pb.evaluate(
        build(name, vocab_size=task.vocab_size, length=13),
        task,
        n=32,
        directions=["noise"],
        components=["block_input", *(["conv_output"] if name == "direct" else [])],
        positions=["key", "value", "value+1", "value+2", "query"],
        selfcheck=False,
    )
    (run,) = result.summary["runs"]
    assert [c["control"] for c in run["soft_controls"]] == ["wrong position", "random site"]
    assert all(abs(c["attrib"]["value"]) < 0.05 for c in run["soft_controls"])
    assert result.verdict.label == label
    assert "removes" in result.verdict.sentence


def test_a_control_that_carries_takes_the_verdict_away():
    low = {"control": "random site", "site": "s", "attrib": {"low": 0.6}}
    assert soft_controls.carrying([low]) == [low]
    assert soft_controls.carrying([low | {"attrib": {"low": None}}]) == []
