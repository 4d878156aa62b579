"""Provenance: enough to notice that something else was run."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

import patchbench as pb
from patchbench.engines.base import Counters
from patchbench.provenance import PACKAGES, collect_provenance, fingerprint
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def task():
    return pb.load_task("atr/easy", seed=4)


def collect(task, **settings):
    dataset = task.dataset("test", 16)
    loaded = pb.load_model(tiny("mamba", vocab=26))
    return collect_provenance(loaded=loaded, task=task, dataset=dataset, seconds=1.5, **settings)


def test_what_was_run_is_on_record(task):
    found = collect(task, command="patchbench evaluate", notes=["mind this"], template="bare")
    assert found["patchbench"] == pb.__version__
    assert set(PACKAGES) == set(found["packages"])
    assert {"block_input", "mixer_output"} <= set(found["model"].pop("components"))
    assert found["model"] | {"name": ""} == {
        "name": "",
        "num_layers": 2,
        "type": "mamba",
        "hook_map": "table",
        "num_parameters": sum(p.numel() for p in tiny("mamba", vocab=26).parameters()),
        "dtype": "float32",
        "device": "cpu",
    }
    assert (found["task"]["name"], found["task"]["seed"]) == ("atr/easy", 4)
    assert found["task"]["config"]["num_terminals"] == 20
    assert found["dataset"]["rows"] == 16
    assert (found["seconds"], found["command"]) == (1.5, "patchbench evaluate")
    assert (found["template"], found["notes"]) == ("bare", ["mind this"])


def test_the_floor_is_the_best_heuristic_not_the_best_choice_among_them(task):
    found = collect(task)["task"]
    heuristics = {name: found["floors"][name] for name in ("next_token", "rightmost")}
    assert found["floors"]["either"] > max(heuristics.values())
    assert heuristics[found["floor"]] == max(heuristics.values())


def test_the_engine_says_what_it_did_and_what_it_left_out(task):
    counters = Counters(forwards=7, forward_rows=70, notes=["halved"])
    counters.skipped = {"L0.q@value+3 (key)": 4, "L0.q@value+2 (key)": 2}
    found = collect(task, engine=SimpleNamespace(name="mine", counters=counters), notes=["first"])
    assert found["engine"]["forwards"] == 7
    assert found["engine"]["name"] == "mine"
    assert found["notes"][:2] == ["first", "halved"]
    assert "at most 4 examples" in found["notes"][2]
    assert counters.notes == ["halved"]


def test_the_fingerprint_is_of_the_contents(task):
    rows = [{"a": [1, 2], "b": {"c": True}}, {"a": [3], "b": {"c": False}}]
    same = Dataset.from_list([dict(reversed(row.items())) for row in rows])
    other = Dataset.from_list([rows[0], {"a": [4], "b": {"c": False}}])
    assert fingerprint(Dataset.from_list(rows)) == fingerprint(same)
    assert fingerprint(Dataset.from_list(rows)) != fingerprint(other)
    assert fingerprint(task.dataset("test", 8)) != fingerprint(task.dataset("test", 9))
