"""The bundled models: recorded numbers are reproduced, and the demo compares them."""

import json

import pyarrow.compute as pc
import pytest

import patchbench as pb
from patchbench.adapters.bundled import bundled_models
from patchbench.common import UserError
from patchbench.demo import bundled_task, demo

MODELS = bundled_models()
NAMES = [model.name for model in MODELS]


def test_they_are_small_and_say_how_they_were_made():
    assert set(NAMES) == {
        f"patchbench/ar-{arch}"
        for arch in ("attention", "based", "delta_net", "mamba", "mamba_noconv")
    }
    total = 0
    for model in MODELS:
        size = (model.folder / "model.safetensors").stat().st_size
        assert size < 1.5e6
        total += sum(file.stat().st_size for file in model.folder.rglob("*"))
        assert model.command is not None
        assert "patchbench train" in model.command
    assert total < 8e6


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.folder.name)
def test_recorded_numbers_are_reproduced(model):
    recorded = pb.Result.load(model.folder / "result")
    again = pb.evaluate(
        pb.load_model(model.name, device="cpu"),
        bundled_task(model.name),
        n=recorded.summary["n"],
        template="symbolic",
        positions=recorded.config["positions"],
    )
    assert again.summary["accuracy"] == recorded.summary["accuracy"]
    measured = [r.rows.filter(pc.field("control").is_null()) for r in (again, recorded)]
    for name in ("example", "correct"):
        assert measured[0][name].equals(measured[1][name]), name
    for before, after in zip(recorded.summary["runs"], again.summary["runs"], strict=True):
        assert [e["site"] for e in before["effects"]] == [e["site"] for e in after["effects"]]
        for one, other in zip(before["effects"], after["effects"], strict=True):
            assert other["attrib"]["value"] == pytest.approx(one["attrib"]["value"], abs=1e-4)


def test_similar_accuracy_different_mechanism():
    results = demo(n=64)
    assert set(results) == {name.removeprefix("patchbench/") for name in NAMES}

    def at(name: str, site: str) -> float:
        return results[name].attrib(site).value

    for name in ("ar-attention", "ar-based", "ar-delta_net", "ar-mamba"):
        assert results[name].accuracy.value > 0.9
    # Stored at the value by two of them, nowhere near it by the others.
    assert at("ar-attention", "L1.block_input@value") > 0.9
    assert at("ar-based", "L1.block_input@value") > 0.9
    assert abs(at("ar-delta_net", "L1.block_input@value")) < 0.1
    assert abs(at("ar-mamba", "L1.block_input@value")) < 0.1
    # Bound by a short convolution after the value, where the residual stream has nothing of it.
    assert at("ar-mamba", "L1.conv_output@value+2") > 0.8
    assert abs(at("ar-mamba", "L1.block_input@value+1")) < 0.1


def test_only_a_bundled_models_task_is_known():
    assert bundled_task("patchbench/ar-mamba", num_pairs=4).config.num_pairs == 4
    with pytest.raises(UserError, match="--task is missing"):
        bundled_task("gpt2")


def test_evaluate_alone_prints_the_comparison(run, tmp_path):
    code, stdout, stderr = run("evaluate", "--n", 16, "--out", tmp_path / "demo", "--quiet")
    assert code == 0, stderr
    assert max(len(line) for line in stdout.splitlines() if "written" not in line) <= 80
    for name in NAMES:
        short = name.removeprefix("patchbench/")
        assert short in stdout
        assert pb.Result.load(tmp_path / "demo" / short).summary["n"] == 16
    code, _, stderr = run("evaluate", "--n", 16, "--out", tmp_path / "demo")
    assert code == 2
    assert "--overwrite" in stderr


def test_json_has_a_summary_for_each(run):
    code, stdout, stderr = run("evaluate", "--n", 8, "--json")
    assert (code, stderr) == (0, "")
    assert {f"patchbench/{name}" for name in json.loads(stdout)} == set(NAMES)


def test_a_bundled_model_brings_its_task(run):
    code, stdout, _ = run("evaluate", "--model", "patchbench/ar-mamba", "--n", 8, "--json")
    assert code == 0
    assert json.loads(stdout)["task"]["name"] == "ar/mini"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "ar"), "--model"),
        (("--set", "num_pairs=4"), "--model"),
        (("--model", "patchbench/ar-mambo"), "patchbench/ar-mamba"),
        (("--model", "gpt2"), "--task is missing"),
    ],
)
def test_mistakes_are_one_line(run, arguments, words):
    code, stdout, stderr = run("evaluate", *arguments)
    assert (code, stdout) == (2, "")
    assert words in stderr
    assert len(stderr.splitlines()) == 1
