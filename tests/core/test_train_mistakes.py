"""What no training can be made from is named before anything is done."""

import pytest

import patchbench as pb
from patchbench.training import ModelSpec, train
from tests.core.tiny_training import QUICK, SPEC, TASK
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


@pytest.mark.parametrize(
    ("spec", "settings", "says"),
    [
        (ModelSpec(arch="attention", options={"max_position_embeddings": 6}), {}, "8 tokens"),
        (ModelSpec(arch="delta_nat"), {}, "delta_net"),
        (ModelSpec(arch="mamba", heads=2), {}, "num_heads"),
        (SPEC, {"lr": "fast"}, "auto"),
        (SPEC, {"lr": -1.0}, "above 0"),
        (SPEC, {"schedule": "cosin"}, "cosine"),
        (SPEC, {"lr_grid": [1e-3, float("nan")]}, "lr_grid is"),
        (SPEC, {"lr_grid": 1e-3}, "give a list of finite numbers"),
        (SPEC, {"dynamics_components": "q"}, "give a list of texts"),
        (SPEC, {"curriculum": "num_pairs=1:2"}, "give a list of texts"),
        (SPEC, {"warmup": "half"}, "warmup is 'half'"),
        (SPEC, {"batch_size": None}, "batch_size is None"),
        (SPEC, {"steps": True}, "steps is True"),
        (SPEC, {"steps": None, "epochs": 1e300}, "at most 1,000,000,000 steps"),
        (SPEC, {"step": 3}, "steps"),
        (SPEC, {"steps": None}, "steps or epochs"),
        (SPEC, {"steps": None, "epochs": 1.0, "data": "fresh"}, "epochs"),
        (SPEC, {"warmup": 8}, "leaves no step of 8 at the full rate"),
        (SPEC, {"warmup": 100.0}, "give a shorter --warmup"),
        (SPEC, {"stop_at": 1.5}, "stop_at"),
        (SPEC, {"device": "tpu"}, "cpu"),
        (SPEC, {"dynamics_components": ["block_inptu"]}, "block_input"),
        (SPEC, {"curriculum": ["num_pairs=1"]}, "NAME=VALUE:STEPS"),
        (SPEC, {"curriculum": ["num_pairs=1:8"]}, "leaves no step"),
        (SPEC, {"curriculum": ["num_pears=1:2"]}, "num_pairs"),
        (SPEC, {"curriculum": ["num_keys=3:2"]}, "vocabulary"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_named_before_any_step(task, tmp_path, spec, settings, says):
    with pytest.raises(pb.UserError, match=says):
        train(spec, task, out=tmp_path / "run", **{**QUICK, **settings})
    assert not (tmp_path / "run").exists()


def test_a_model_with_too_few_token_ids_is_refused(task, tmp_path):
    tiny("gpt2", vocab=8).save_pretrained(tmp_path / "small")
    spec = ModelSpec(init_from=str(tmp_path / "small"))
    with pytest.raises(pb.UserError, match="12 token ids, the model 8"):
        train(spec, task, out=tmp_path / "run", **QUICK)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"arch": "mamba", "width": "64"}, "width is '64'"),
        ({"arch": 3}, "arch is 3"),
        ({"arch": "mamba", "width": 1}, "width=1: at least 2"),
        ({"arch": "mamba", "width": -4}, "width=-4: at least 2"),
        ({"init_from": "m", "width": 64}, "brings its own architecture"),
        ({"init_from": "m", "layers": 0}, "brings its own architecture"),
    ],
)
def test_a_spec_that_means_nothing_is_refused(arguments, says):
    with pytest.raises(pb.UserError, match=says):
        ModelSpec(**arguments)


@pytest.mark.parametrize(
    "sizes", [{"width": 60_000, "layers": 9}, {"options": {"max_position_embeddings": 2**62}}]
)
def test_a_model_that_the_memory_does_not_hold_is_never_made(task, sizes):
    with pytest.raises(pb.UserError, match=r"parameters, whose training takes|too large"):
        ModelSpec(arch="attention", **sizes).build(task, 0)
