"""Rows of the vocabulary that stand for no token get no probability, and nothing else changes."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
)

import patchbench as pb
from patchbench.adapters import restore
from patchbench.adapters.families import FAMILIES
from patchbench.adapters.vocabulary import cut_padding
from tests.adapters.test_state_spaces import MAMBA1, write
from tests.tiny_models import tiny

TOKENS = torch.tensor([[3, 9, 27, 17, 51, 25]])


def tokenizer_of(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of so many words, with ids from 0 on."""
    words = {"<unk>": 0, **{f"w{index}": index for index in range(1, size)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def saved(model, folder, size):
    model.save_pretrained(folder)
    tokenizer_of(size).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_real_tokens_stay_and_the_others_go(family):
    model = tiny(family)
    with torch.no_grad():
        before = model(TOKENS, use_cache=False).logits
        notes = cut_padding(model, tokenizer_of(61))
        after = model(TOKENS, use_cache=False).logits
    assert notes == [
        "rows 61–63 of the vocabulary stand for no token of the tokenizer and are cut off"
    ]
    torch.testing.assert_close(after, before[..., :61], rtol=0, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_stays_tied(tied):
    model = tiny("llama", tie_word_embeddings=tied)
    cut_padding(model, tokenizer_of(61))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.config.vocab_size == model.lm_head.out_features == len(model.lm_head.weight) == 61


@pytest.mark.parametrize("family", ["llama", "mamba", "gpt2"])
def test_a_checkpoint_is_cut_when_it_is_loaded(family, tmp_path):
    model = tiny(family)
    loaded = pb.load_model(saved(model, tmp_path, 62), device="cpu")
    assert loaded.vocab_size == 62
    assert any("rows 62–63" in note and "cut off" in note for note in loaded.notes)
    with torch.no_grad():
        logits = loaded.model(TOKENS, use_cache=False).logits
        torch.testing.assert_close(logits, model(TOKENS, use_cache=False).logits[..., :62])


def test_the_converted_form_gives_what_the_original_gives(tmp_path):
    """`state-spaces/mamba-130m` and `-hf`: the latter has padded rows and no word about them."""
    weights = write(tmp_path / "original", MAMBA1)
    tokenizer_of(61).save_pretrained(tmp_path / "original")
    padded = MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64))
    padded.load_state_dict(
        {name.replace("embedding.", "embeddings."): value for name, value in weights.items()}
    )
    saved(padded, tmp_path / "hf", 61)
    loaded = [pb.load_model(tmp_path / name, device="cpu") for name in ("original", "hf")]
    assert [model.vocab_size for model in loaded] == [61, 61]
    task = pb.load_task("ar", num_pairs=2, num_keys=8, num_values=8)
    rows = [
        pb.evaluate(model, task, n=8, layers=[0], template="symbolic", resamples=100).rows
        for model in loaded
    ]
    for name in ("p_base", "p_source", "p_patched", "kl_patched"):
        assert rows[0][name].to_pylist() == rows[1][name].to_pylist()


def test_an_original_knows_its_padding_better_than_a_foreign_tokenizer(tmp_path):
    write(tmp_path / "original", MAMBA1)
    loaded = pb.load_model(tmp_path / "original", tokenizer=tokenizer_of(60), device="cpu")
    assert loaded.vocab_size == 61
    assert loaded.notes[-1].endswith(
        "no token of the tokenizer: they take part in the probabilities"
    )


def test_an_original_that_is_saved_again_is_in_transformers_format(tmp_path):
    write(tmp_path / "original", MAMBA1)
    loaded = pb.load_model(tmp_path / "original", tokenizer=tokenizer_of(61), device="cpu")
    restore(loaded.model)
    loaded.model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    with torch.no_grad():
        wanted = loaded.model(TOKENS, use_cache=False).logits
        torch.testing.assert_close(again(TOKENS, use_cache=False).logits, wanted, rtol=0, atol=0)


def test_a_model_object_and_a_foreign_tokenizer_leave_it_as_it_is(tmp_path):
    words = tokenizer_of(62)
    held = pb.load_model(tiny("llama"), tokenizer=words)
    assert held.vocab_size == 64
    assert any("rows 62–63" in note and "take part" in note for note in held.notes)
    other = pb.load_model(saved(tiny("llama"), tmp_path, 5), device="cpu")
    assert other.vocab_size == 64
    assert any("rows 5–63" in note and "take part" in note for note in other.notes)


def test_a_vocabulary_without_padding_says_nothing(tmp_path):
    assert pb.load_model(saved(tiny("gpt2"), tmp_path, 64), device="cpu").notes == []
    assert cut_padding(tiny("gpt2"), tokenizer_of(70)) == []
