"""A checkpoint that accelerate spreads over devices gives what it gives in one place."""

import pytest
import torch
from typer.testing import CliRunner

import patchbench as pb
from patchbench.adapters.twins import twins_of
from patchbench.cli import app
from patchbench.common import UserError
from tests.adapters.loading_helpers import TOKENS, refused
from tests.tiny_models import tiny

ON_DISK = {
    "backbone.embeddings": "cpu",
    "backbone.layers.0": "cpu",
    "backbone.layers.1": "disk",
    "backbone.norm_f": "cpu",
    "lm_head": "cpu",
}


@pytest.fixture(scope="module")
def mamba(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mamba")
    tiny("mamba").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("device_map", ["auto", "sequential", {"": "cpu"}, ON_DISK], ids=str)
def test_logits_and_effects_are_those_of_one_device(mamba, device_map):
    loaded = pb.load_model(mamba, device_map=device_map)
    plain = pb.load_model(mamba, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.model(TOKENS).logits, plain.model(TOKENS).logits, rtol=0, atol=1e-6
        )
    assert not loaded.model.training
    task = pb.load_task("ar", num_pairs=2, num_keys=8, num_values=8)
    rows = [
        pb.evaluate(model, task, n=4, components=["block_input", "mixer_output"], resamples=100)
        .rows["p_patched"]
        .to_pylist()
        for model in (loaded, plain)
    ]
    assert rows[0] == pytest.approx(rows[1], abs=1e-6)


def test_what_lies_on_disk_keeps_its_stock_mixer(mamba):
    loaded = pb.load_model(mamba, device_map=ON_DISK)
    assert list(twins_of(loaded.model)) == ["backbone.layers.0.mixer"]
    assert (0, "conv_output") in loaded.hook_map.points
    assert (1, "conv_output") not in loaded.hook_map.points
    assert loaded.device == "cpu"
    assert loaded.hook_map.notes[-1].startswith("1 recurrent mixers have no inner components")
    assert "spread over cpu, disk by accelerate" in loaded.notes


def test_a_map_that_cannot_be_is_one_line(mamba):
    refused("unknown device_map 'auot': did you mean 'auto'", mamba, device_map="auot")
    refused("device_map is 3: one of auto", mamba, device_map=3)
    refused("device 'cpu' and a device_map: give one", mamba, device="cpu", device_map="auto")
    refused("a model object is where it is", tiny("gpt2"), device_map="auto")
    refused("device_map is {}: one of auto", mamba, device_map={})
    refused("unknown device 'banana'", mamba, device_map={"": "banana"})
    refused("device 'cuda:99' is not there", mamba, device_map={"": 99})


@pytest.mark.parametrize("command", ["sites", "evaluate"])
def test_the_command_line_hands_it_on(command, mamba, monkeypatch):
    asked = []

    def load(name, **settings):
        asked.append((name, settings["device_map"]))
        raise UserError("stop", "here")

    monkeypatch.setattr(pb, "load_model", load)
    arguments = [command, "--model", str(mamba), "--device-map", "balanced"]
    done = CliRunner().invoke(app, arguments + (["--task", "ar"] if command == "evaluate" else []))
    assert isinstance(done.exception, UserError)
    assert asked == [(str(mamba), "balanced")]
