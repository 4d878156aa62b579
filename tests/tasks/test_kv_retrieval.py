"""Names and things in words: the text that a model reads, found again by searching strings."""

import re

import pytest

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks.kv_retrieval import NAMES, THINGS
from patchbench.tasks.rendering import RenderConfig, Renderer
from patchbench.tasks.words import known_words
from tests.tasks.tiny_tokenizers import tiny_tokenizer, word_level

RECORD = r" \{ (\w+: \w+, ){3}\w+: \w+ \}\n \w+:"
SENTENCES = r" (\w+ likes \w+\. ){3}\w+ likes \w+\.\n \w+ likes"


@pytest.fixture(scope="module")
def tokenizer():
    return _bpe_of([*NAMES, *THINGS, "likes"])


def _bpe_of(words):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=3000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([" " + " ".join(words)] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize(
    ("name", "template", "text"),
    [
        ("kv_retrieval", "auto", RECORD),
        ("kv_retrieval/sentences", "auto", SENTENCES),
        ("kv_retrieval", "sentence", SENTENCES),
        ("kv_retrieval", "colon", r"( \w+: \w+\n){4} \w+:"),
    ],
)
@pytest.mark.parametrize("shots", [0, 2])
def test_what_the_model_reads(tokenizer, name, template, text, shots):
    task = load_task(name, num_pairs=4)
    renderer = Renderer(task, tokenizer, RenderConfig(template=template, shots=shots))
    rows = renderer.dataset("test", 16)
    for row, plain in zip(rows, task.dataset("test", 16), strict=True):
        prompt = renderer.text(row).split("\n\n")[-1]
        assert re.fullmatch(text, prompt)
        assert len(renderer.text(row).split("\n\n")) == shots + 1
        # The symbols' own names, and the rule, by reading.
        words = [word for word in re.findall(r"\w+", prompt) if word != "likes"]
        named = task.decode([i for i in plain["input_ids"][1:-2] if i > 2]).split()
        assert words == named
        answer = words[words.index(words[-1]) + 1]
        assert tokenizer.decode([row["answer"]]) == f" {answer}"
        for role in ("key", "value", "query"):
            symbol = task.symbols[plain["input_ids"][plain["roles"][role]]]
            assert tokenizer.decode([row["input_ids"][row["roles"][role]]]) == f" {symbol}"


def test_words_that_are_not_one_token_are_replaced_by_others_of_their_kind():
    known = [*NAMES[10:60], *THINGS[5:50], "likes"]
    task = load_task("kv_retrieval")
    renderer = Renderer(task, _bpe_of(known))
    for kind, texts in (("key", NAMES[10:60]), ("value", THINGS[5:50])):
        words = [renderer.words[symbol] for symbol in task.kinds[kind]]
        assert len(set(words)) == 40
        assert set(words) <= set(texts)
        own = [task.symbols[symbol] for symbol in task.kinds[kind]]
        kept = [(a, b) for a, b in zip(own, words, strict=True) if a in texts]
        assert kept == [(a, a) for a, _ in kept]
        assert len(kept) >= 30


def test_too_few_words_name_the_largest_setting():
    tokenizer = _bpe_of([*NAMES[:50], *THINGS[:20], "likes"])
    with pytest.raises(UserError, match=r"the largest that fits is num_values=20$"):
        Renderer(load_task("kv_retrieval"), tokenizer)
    Renderer(load_task("kv_retrieval", num_values=20), tokenizer)


def test_a_tokenizer_that_cannot_write_the_template_is_one_line():
    with pytest.raises(UserError, match=r"cannot write ' \{' between words.*--template bare"):
        Renderer(load_task("kv_retrieval"), word_level(*NAMES, *THINGS))


@pytest.mark.parametrize("make", ["word_level", "unigram", "llama_like"])
def test_words_that_a_tokenizer_lacks_are_not_found(make):
    """Not the unknown token, and not a word's last piece."""
    texts = ["bade", "figo", "Figo", "nothing", "figobade"]
    assert [word.text for word in known_words(tiny_tokenizer(make), texts)] == ["bade", "figo"]


def test_settings_stay_within_the_words_there_are():
    assert len(set(NAMES)) == len(NAMES)
    assert len(set(THINGS)) == len(THINGS)
    with pytest.raises(UserError, match=f"the largest allowed is {len(NAMES)}"):
        load_task("kv_retrieval", num_keys=len(NAMES) + 1)
    with pytest.raises(UserError, match=f"the largest allowed is {len(THINGS)}"):
        load_task("kv_retrieval", num_values=len(THINGS) + 1)
