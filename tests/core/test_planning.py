"""The forecast of an evaluation counts what the evaluation then does."""

import json

import pyarrow.compute as pc
import pytest
import torch

import patchbench as pb
from patchbench.live_memory import LiveBytes
from tests.tiny_models import tiny

TASK = {"num_pairs": 3, "num_keys": 8, "num_values": 8}


@pytest.mark.parametrize("engine", ["native", "pyvene", "nnsight"])
@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_forwards_and_rows_are_those_of_the_run(family, engine):
    settings = {
        "n": 10,
        "batch_size": 4,
        "components": ["block_input", "mixer_output"],
        "corruptions": ["key", "swap"],
        "engine": engine,
    }
    model, task = pb.load_model(tiny(family)), pb.load_task("ar", **TASK)
    forecast = pb.plan(model, task, **settings)
    result = pb.evaluate(model, task, **settings)
    ran = result.provenance["engine"]
    assert (forecast.forwards, forecast.forward_rows) == (ran["forwards"], ran["forward_rows"])
    assert forecast.rows == len(result.rows)
    assert forecast.examples == result.summary["n"]
    measured = result.rows.filter(pc.is_null(result.rows["control"]))
    assert set(forecast.sites) == set(measured["site"].to_pylist())


def test_tokens_and_bytes():
    model, task = pb.load_model(tiny("gpt2")), pb.load_task("ar", **TASK)
    forecast = pb.plan(model, task, n=4, engine="pyvene", layers=[1], positions=["value"])
    length = task.dataset("test", 1)[0]["roles"]["answer"] + 1
    # The two runs and one shuffled, three hard and four soft controls, and the site.
    assert (forecast.forwards, forecast.tokens) == (11, 11 * 4 * length)
    assert forecast.weights_bytes == sum(t.nbytes for t in model.model.state_dict().values())
    assert forecast.peak_bytes > forecast.weights_bytes + forecast.cache_bytes > 0
    assert forecast.seconds > 0
    json.dumps(forecast.__dict__)


def test_live_bytes_are_those_of_tensors_alive():
    with LiveBytes() as live:
        first = torch.ones(1000)
        second = first + 1
        del first
        third = second.view(10, 100) * 2
        del second, third
        torch.ones(10)
    assert live.peak == 2 * 4000
