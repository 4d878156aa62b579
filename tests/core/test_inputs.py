"""What a model reads: its own tokens, and the examples that can be measured."""

import numpy as np
import pytest

import patchbench as pb
from patchbench.inputs import model_inputs
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny


def inputs(task, *, model=None, n=64, corruptions=("key",), **settings):
    loaded = pb.load_model(tiny("mamba")) if model is None else model
    return model_inputs(loaded, task, split="test", n=n, corruptions=corruptions, **settings)


@pytest.fixture(scope="module")
def crowded():
    """Four terminals: many sentences use up the alphabet, or have nothing to swap."""
    return pb.load_task("atr/easy", num_terminals=4, keep_uncorruptible=True)


@pytest.mark.parametrize("corruptions", [("key",), ("swap",), ("key", "swap")], ids="+".join)
def test_examples_without_a_twin_are_left_out_and_counted(crowded, corruptions):
    found = inputs(crowded, corruptions=corruptions)
    every = crowded.dataset("test", 64).to_list()
    kept = [row for row in every if any(row["corruptions"][c]["input_ids"] for c in corruptions)]
    assert 0 < len(kept) < 64
    assert found.dataset.to_list() == kept
    assert found.notes[-1].startswith(f"{64 - len(kept)} of 64 examples have no ")


def test_accuracy_and_floor_are_of_the_examples_that_are_measured(crowded):
    result = pb.evaluate(tiny("mamba"), crowded, n=64, corruptions="swap", layers=[1])
    kept = inputs(crowded, corruptions=["swap"]).dataset
    flags = [row["metadata"] for row in kept]
    floors = [np.mean([f[f"answer_is_{h}"] for f in flags]) for h in ("next_token", "rightmost")]
    assert result.accuracy.n == len(kept) < 64
    assert result.summary["floor"] == pytest.approx(max(floors))
    assert any("have no swap corruption" in note for note in result.provenance["notes"])


def test_nothing_is_said_where_nothing_is_left_out():
    task = pb.load_task("ar/tiny")
    found = inputs(task, corruptions=["key", "value", "swap"])
    assert (found.template, found.notes) == ("symbolic", [])
    assert found.dataset.to_list() == task.dataset("test", 64).to_list()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"corruptions": ["keys"]}, "no corruption 'keys': did you mean 'key'"),
        ({"corruptions": ["key", "swap"]}, "none of the 64 examples .* has a swap corruption"),
        ({"template": "colon"}, "needs a tokenizer"),
        ({"shots": 2}, "drop --shots"),
    ],
    ids=["unknown", "never there", "no tokenizer", "shots"],
)
def test_what_cannot_be_read_is_refused(settings, says):
    task = pb.load_task("ar/tiny", num_pairs=1)  # no second pair to swap with
    with pytest.raises(pb.UserError, match=says):
        inputs(task, **settings)


def test_a_token_that_only_a_twin_has_must_fit_too():
    """The model knows all tokens of the clean prompt, but not the one that a twin puts in."""
    tokenizer = tiny_tokenizer("byte_bpe")
    wide = pb.load_model(tiny("gpt2", vocab=len(tokenizer)), tokenizer=tokenizer)
    for seed in range(20):
        task = pb.load_task("ar/tiny", seed=seed)
        row = inputs(task, model=wide, n=1).dataset[0]
        largest = max(max(twin["input_ids"]) for twin in row["corruptions"].values())
        if largest > max(row["input_ids"]):
            break
    else:
        raise AssertionError("no such row")
    enough = pb.load_model(tiny("gpt2", vocab=largest + 1), tokenizer=tokenizer)
    assert len(inputs(task, model=enough, n=1).dataset) == 1
    narrow = pb.load_model(tiny("gpt2", vocab=largest), tokenizer=tokenizer)
    with pytest.raises(pb.UserError, match=rf"gives token {largest}, .*--tokenizer"):
        inputs(task, model=narrow, n=1)
