"""The forecast of an evaluation counts what the evaluation then does."""

import json
from itertools import count

import pyarrow.compute as pc
import pytest
import torch

import patchbench as pb
from patchbench import preparation
from patchbench.engines import ENGINES
from patchbench.evaluation_config import EvaluateConfig
from patchbench.live_memory import LiveBytes
from tests.adapters.lively import lively
from tests.tiny_models import tiny

TASK = {"num_pairs": 3, "num_keys": 8, "num_values": 8}


@pytest.fixture(autouse=True)
def no_size_is_faster(monkeypatch):
    """Else a busy machine could make the run take other forwards than were foreseen."""
    worked = map(float, count())
    monkeypatch.setattr("patchbench.engines.native.engine.seconds_worked", lambda _: next(worked))


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


@pytest.mark.parametrize("engine", ["native", "pyvene"])
@pytest.mark.parametrize("family", ["gpt2", "mamba", "mixer-mamba", "mixer-attention"])
def test_forwards_and_tokens_are_those_that_a_hook_counts(family, engine, monkeypatch):
    """Also those of the engine's own checks, and with a plan that comes in parts."""
    monkeypatch.setattr(preparation, "CHUNK", 7)
    kind, _, preset = family.partition("-")
    made = lively(preset) if kind == "mixer" else tiny(family)
    model, task = pb.load_model(made), pb.load_task("ar", **TASK)
    settings = {"n": 6, "batch_size": 4, "corruptions": ["key", "swap"], "engine": engine}
    settings["components"] = ["block_input", "conv_output" if "mamba" in family else "mlp_output"]
    forecast = pb.plan(model, task, **settings)
    calls = []

    def note(module, args, kwargs):
        calls.append(tuple((args[0] if args else kwargs["input_ids"]).shape))

    prepared = preparation.prepare(model, task, EvaluateConfig.of(settings))
    runner = ENGINES[engine]()
    handle = made.base_model.register_forward_pre_hook(note, with_kwargs=True)
    for batch, some in preparation.parts(prepared.batches, prepared.plan):
        runner.run(model, some, batch)
    handle.remove()
    assert len({len(batch) for batch in prepared.batches}) == 2
    assert len(prepared.plan) > preparation.CHUNK
    assert forecast.forwards == len(calls) == runner.counters.forwards
    rows = sum(rows for rows, _ in calls)
    assert forecast.forward_rows == rows == runner.counters.forward_rows
    assert forecast.tokens == sum(rows * tokens for rows, tokens in calls)


class Clock:
    """Goes by the work of a model alone: its mixers and its last norm take time."""

    def __init__(self, model) -> None:
        self.now = 0.0
        for module in (*(block.mixer for block in model.backbone.layers), model.backbone.norm):
            module.register_forward_pre_hook(self.work, with_kwargs=True)

    def __call__(self) -> float:
        self.now += 0.01
        return self.now

    def work(self, module, args, kwargs) -> None:
        rows, tokens = (args[0] if args else next(iter(kwargs.values()))).shape[:2]
        self.now += 0.5 + 0.02 * tokens + 0.01 * rows * tokens


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine": "pyvene"},
        {"engine": "nnsight"},
        {"selfcheck": False},
        {"batch_size": 1, "n": 3},
        {"method": "attribution", "prefilter": 2},
    ],
    ids=str,
)
def test_seconds_are_those_of_the_run(settings, monkeypatch):
    """By a clock on which other work of the machine does not tell."""
    made = lively("mamba", layers=3)
    clock = Clock(made)
    monkeypatch.setattr("time.perf_counter", clock)
    model, task = pb.load_model(made), pb.load_task("ar", **TASK)
    settings = {"n": 20, "batch_size": 8, "components": ["block_input", "conv_output"], **settings}
    forecast = pb.plan(model, task, **settings)
    seconds = pb.evaluate(model, task, **settings).provenance["seconds"]
    assert 0.8 < forecast.seconds / seconds < 1.25


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
