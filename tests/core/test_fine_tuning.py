"""Fine-tuning of pretrained models on the task in words: all weights, or low-rank changes."""

import functools
import shlex
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import patchbench as pb
from patchbench import cli
from patchbench.adapters.hook_map import hook_map_for
from patchbench.comparing import compare
from patchbench.finding import load_results
from patchbench.inputs import renderer_of
from patchbench.training import ModelSpec, Trained, train
from tests.core.tiny_fine_tuning import TOKENIZER, fine_tuned, same, save_start, weights
from tests.core.tiny_training import QUICK, TASK
from tests.tasks.tiny_tokenizers import word_level
from tests.tiny_models import tiny

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


def hooks(model):
    return [
        hook
        for module in model.modules()
        for table in (module._forward_hooks, module._forward_pre_hooks)
        for hook in table.values()
    ]


@pytest.fixture(scope="module")
def tunings(task, tmp_path_factory):
    """Return what makes each fine-tuning once."""

    @functools.cache
    def made(kind):
        family, _, lora = kind.partition(" ")
        settings = {"lora": 2, "lr": 1e-2} if lora else {}
        return fine_tuned(family, task, tmp_path_factory.mktemp("tuned"), **settings)

    return made


@pytest.fixture(params=["llama", "mamba", "llama lora", "gpt2 lora"])
def tuned(request, tunings):
    return tunings(request.param)


def test_it_learns_and_leaves_what_it_was_given(tuned):
    trained, loaded, start = tuned
    assert trained.history[-1]["dev_loss"] < 0.8 * trained.history[0]["dev_loss"]
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert hooks(loaded.model) == []
    assert all(weight.requires_grad for weight in loaded.model.parameters())
    given = loaded.model.state_dict()
    for name, weight in weights(start).items():
        assert torch.equal(given[name], weight)


def test_the_folder_evaluates_as_its_result_says(tuned, task):
    trained, *_ = tuned
    assert trained.result.summary["task"]["template"] == "colon"
    again = pb.evaluate(pb.load_model(trained.path), task, n=QUICK["test_n"])
    assert again.rows.equals(trained.result.rows)
    assert Trained.load(trained.path).before.rows.equals(trained.before.rows)


def test_before_is_the_start_on_the_same_items(tuned, task):
    trained, _, start = tuned
    before = pb.evaluate(start, task, n=QUICK["test_n"])
    assert before.rows.equals(trained.before.rows)
    assert len(load_results([str(trained.path)])) == 1
    results = load_results([str(trained.path / "before"), str(trained.path)])
    assert set(results) == {"run", "run/before"}
    comparison = compare(results, reference="run/before")
    assert [row.paired for row in comparison.rows if row.name == "run"] == [True]
    assert comparison.warnings == []


def test_the_command_line(tmp_path, monkeypatch, capsys):
    start = save_start(tmp_path / "start", tokenizer=None)
    TOKENIZER.save_pretrained(tmp_path / "words")
    monkeypatch.chdir(tmp_path)

    def run(line):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        return capsys.readouterr().out

    printed = run(
        "patchbench train --init-from start --tokenizer words --template arrow --lora 2 --task ar "
        "--set num_pairs=2 --set num_keys=4 --set num_values=4 --steps 4 --batch-size 8 "
        "--train-n 16 --dev-n 8 --test-n 8 --patch-layers 1 --device cpu --out 'my runs/one'"
    )
    assert "template arrow" in printed
    assert " before, " in printed
    # Its tokenizer, which untrained weights do not read, has come from elsewhere.
    assert "before training: with this tokenizer plain English costs" in " ".join(printed.split())
    written = Trained.load("my runs/one")
    config = written.result.provenance["training"]["training"]
    assert (config["lora"], config["template"], config["patch_layers"]) == (2, "arrow", [1])
    assert not same(weights(start), weights(written.path))
    hint = printed.partition("before and after: ")[2]
    assert "difference from one/before" in run(hint)


def test_all_weights_are_trained_as_by_hand(task, tmp_path):
    """The documents are built from words and tokenised as text."""
    start = save_start(tmp_path / "start")
    settings = {**QUICK, "steps": 3, "warmup": 0, "schedule": "constant", "lr": 1e-3, "clip": 0}
    settings |= {"train_n": 8}
    trained = train(ModelSpec(init_from=str(start)), task, out=tmp_path / "run", **settings)
    loaded = pb.load_model(start)
    model, words = loaded.model, renderer_of(loaded, task).words
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    texts, answers = [], []
    for row in task.dataset("train", 8):
        roles = row["roles"]
        symbols = [words[i] for i in row["input_ids"][roles["bos"] + 1 : roles["divider"]]]
        pairs = zip(symbols[::2], symbols[1::2], strict=True)
        query = words[row["input_ids"][roles["query"]]]
        texts.append("\n".join([*(f" {key}: {value}" for key, value in pairs), f" {query}:"]))
        answers.append(f" {words[row['answer']]}")
    ids = torch.tensor(TOKENIZER(texts)["input_ids"])
    answer = torch.tensor(TOKENIZER(answers, add_special_tokens=False)["input_ids"])[:, 0]
    for _ in range(3):  # every batch is the whole set
        loss = F.cross_entropy(model(ids).logits[:, -1], answer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, weight in weights(trained.path).items():
        torch.testing.assert_close(weight, model.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_the_results_are_watched_and_one_that_is_lost_is_named(task, tmp_path):
    seen: list[tuple[int, int]] = []
    spec = ModelSpec(init_from=str(save_start(tmp_path / "start")))
    settings = {**QUICK, "steps": 2, "out": tmp_path / "run"}
    trained = train(spec, task, measuring=lambda *now: seen.append(now), **settings)
    rows = [len(result.rows) for result in (trained.before, trained.result)]
    assert [done for done, total in seen if done == total] == rows
    (trained.path / "before" / "result.json").unlink()
    (trained.path / "before" / "rows.parquet").unlink()
    (trained.path / "before").rmdir()
    with pytest.raises(pb.UserError, match="run is damaged: before is missing"):
        train(spec, task, **settings)


def test_symbolic_on_request_needs_no_tokenizer_afterwards(task, tmp_path):
    start = save_start(tmp_path / "start")
    trained = train(
        ModelSpec(init_from=str(start)), task, out=tmp_path / "run", template="symbolic", **QUICK
    )
    assert trained.result.summary["task"]["template"] == "symbolic"
    again = pb.load_model(trained.path)
    assert again.tokenizer is None
    assert pb.evaluate(again, task, n=8).rows.equals(trained.result.rows)


def test_only_some_layers_are_patched(task, tmp_path):
    start = save_start(tmp_path / "start")
    trained = train(
        ModelSpec(init_from=str(start)), task, out=tmp_path / "run", patch_layers=[1],
        dynamics_every=8, dynamics_n=4, **QUICK,
    )  # fmt: skip
    for result in (trained.before, trained.result):
        sites = {site for site in result.rows["site"].to_pylist() if "block_input" in site}
        assert {s for s in sites if not s.startswith("L1.")} == {"L0.block_input@key"}  # a control
    measured = [name for name in trained.history[-1] if name.startswith("attrib/")]
    assert all(name.startswith("attrib/L1.block_input@") for name in measured)


@pytest.mark.parametrize(
    ("start", "settings", "says"),
    [
        ({}, {"lora": 0}, "lora=0: an integer of at least 1"),
        ({}, {"lora": 2.5}, "lora is 2.5: give a whole number"),
        ({}, {"lora": 33}, "lora=33 is above 32, the full rank .* drop --lora"),
        ({}, {"template": "colour"}, "did you mean 'colon'"),
        ({"tokenizer": None}, {"template": "colon"}, "needs a tokenizer, .*: pass --tokenizer"),
        (
            {"tokenizer": word_level("bade", "figo")},
            {},
            "needs 8 single-token words, the tokenizer has 2",
        ),
        ({}, {"patch_layers": [2]}, "layer 2 does not exist: the model has layers 0–1"),
        ({}, {"patch_layers": []}, "layers is empty"),
        ({}, {"patch_layers": ["0"]}, "give a list of whole numbers"),
        ({"max_position_embeddings": 8}, {}, "the longest prompt has .* the model reads 8"),
        ({"max_position_embeddings": 8}, {"data": "fresh"}, "the longest prompt has"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_named_before_anything_is_written(task, tmp_path, start, settings, says):
    folder = save_start(tmp_path / "start", **start)
    with pytest.raises(pb.UserError, match=says) as error:
        train(ModelSpec(init_from=str(folder)), task, out=tmp_path / "run", **{**QUICK, **settings})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", ["fixed", "fresh"])
def test_a_tokenizer_of_another_model_is_refused(task, tmp_path, data):
    model = tiny("llama", vocab=100)
    loaded = replace(pb.load_model(model), tokenizer=TOKENIZER)
    with pytest.raises(pb.UserError, match=r"gives token \d+, the model knows 100: pass the --tok"):
        train(loaded, task, out=tmp_path / "run", data=data, **QUICK)
    assert not (tmp_path / "run").exists()
    assert hook_map_for(model).num_layers == 2


def test_low_rank_changes_of_fresh_weights_are_refused(task, tmp_path):
    with pytest.raises(pb.UserError, match="pretrained weights: give --init-from"):
        train(ModelSpec(arch="attention"), task, out=tmp_path / "run", lora=2, **QUICK)
    with pytest.raises(pb.UserError, match="--tokenizer is for --init-from"):
        ModelSpec(arch="attention", tokenizer="here")
