"""A tokenizer that is another model's is refused, or doubted aloud, and never cuts real rows."""

import string

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

import patchbench as pb
from patchbench.adapters.tokenizer_fit import _TEXT, check_same_ids
from tests.tiny_models import tiny

CHARACTERS = string.ascii_letters + " .,"


def letters(first=0, further=()):
    """Return a tokenizer of letters, the alphabet beginning with another one."""
    tokens = [*CHARACTERS[first:], *CHARACTERS[:first], *further]
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "?"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def save(folder, model=None, tokenizer=None):
    (tiny("llama") if model is None else model).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def literate(tmp_path_factory):
    """A model that has learned the text by heart, letter by letter; no tokenizer is beside it."""
    model = tiny("llama", vocab=len(CHARACTERS))
    tokens = torch.tensor([letters()(_TEXT)["input_ids"]])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        loss = cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 1.5
    return save(tmp_path_factory.mktemp("literate"), model)


def doubts(loaded):
    return [note for note in loaded.notes if "is it the one" in note]


def test_only_the_tokenizer_that_a_model_reads_is_not_doubted(literate):
    assert doubts(pb.load_model(literate, tokenizer=letters(), device="cpu")) == []
    wrong = pb.load_model(literate, tokenizer=letters(first=11), device="cpu")
    assert len(doubts(wrong)) == 1
    assert "guessing 4.0" in doubts(wrong)[0]  # log 55
    assert len(doubts(pb.load_model(wrong.model, tokenizer=letters(first=11)))) == 1
    task = pb.load_task("ar", num_pairs=2, num_keys=4, num_values=4)
    result = pb.evaluate(wrong, task, n=4, layers=[0], template="symbolic")
    assert doubts(wrong)[0] in result.provenance["notes"]


def test_the_check_leaves_a_model_as_it_is(literate):
    model = pb.load_model(literate, device="cpu").model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    assert doubts(pb.load_model(model, tokenizer=letters(first=11)))
    assert modes == [module.training for module in model.modules()]
    assert torch.equal(state, torch.get_rng_state())


def test_a_checkpoint_s_own_tokenizer_decides(tmp_path):
    folder = save(tmp_path / "m", tokenizer=letters())
    with pytest.raises(
        pb.UserError, match=r"not that of .*/m: token 'a' is 0 there.*here it is 44"
    ):
        pb.load_model(folder, tokenizer=letters(first=11), device="cpu")
    grown = letters(further=["<pad>"])
    loaded = pb.load_model(folder, tokenizer=grown, device="cpu")
    assert loaded.tokenizer is grown
    assert doubts(loaded) == []  # of an untrained model


def test_a_token_that_the_other_one_lacks_is_named():
    few = {character: index for index, character in enumerate(CHARACTERS[:10])}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(few, "?")))
    with pytest.raises(pb.UserError, match="token 'k' is 10 there, and here there is none"):
        check_same_ids(other, letters(), "m")


def test_a_damaged_tokenizer_is_why_another_is_given(tmp_path):
    folder = save(tmp_path, tokenizer=letters())
    (folder / "tokenizer.json").write_text("{")
    assert pb.load_model(folder, tokenizer=letters(first=11), device="cpu").tokenizer is not None


@pytest.mark.parametrize(("own", "rows"), [(True, 62), (False, 64)], ids=["own", "named"])
def test_only_a_model_s_own_tokenizer_cuts_rows(tmp_path, own, rows):
    words = letters(further=[f"w{i}" for i in range(62 - len(CHARACTERS))])
    folder = save(tmp_path / "m", tokenizer=words if own else None)
    loaded = pb.load_model(folder, tokenizer=words, device="cpu")
    assert loaded.vocab_size == rows
    told = "are cut off" if own else "take part in the probabilities"
    assert [note.endswith(told) for note in loaded.notes if "rows 62–63" in note] == [True]
