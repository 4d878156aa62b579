"""Words against the tokenizers themselves: text in, tokens out."""

import pytest

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks.words import Word, assign_words, find_words
from tests.tasks.tiny_tokenizers import KINDS, MAKES, WORDS, tiny_tokenizer, word_level


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("make", MAKES)
def test_every_word_is_one_token_after_a_space(make):
    tokenizer = tiny_tokenizer(make)
    words = find_words(tokenizer)
    assert {*WORDS, *KINDS} <= {word.text for word in words}
    assert len({word.token for word in words}) == len({word.text for word in words}) == len(words)
    ahead = ids(tokenizer, "bade")
    for word in words:
        assert word.text.isalpha()
        assert word.text.islower()
        assert word.text.isascii()
        assert ids(tokenizer, f"bade {word.text}") == [*ahead, word.token]


@pytest.mark.parametrize("make", ["byte_bpe", "llama_like"])
def test_the_order_does_not_depend_on_the_vocabulary_s(make, monkeypatch):
    tokenizer = tiny_tokenizer(make)
    words = find_words(tokenizer)
    vocabulary = tokenizer.get_vocab()
    for order in (sorted(vocabulary), sorted(vocabulary, reverse=True)):
        monkeypatch.setattr(tokenizer, "get_vocab", lambda o=order: {t: vocabulary[t] for t in o})
        assert find_words(tokenizer) == words


def test_words_with_a_plural_come_first_then_plurals_and_short_ones_last():
    vocabulary = ["the", "consum", "tree", "that", "stones", "trees", "fox", "stone", "foxes"]
    words = [word.text for word in find_words(word_level(*vocabulary))]
    assert words == ["tree", "stone", "stones", "trees", "consum", "that", "foxes", "the", "fox"]


def test_only_lower_case_letters_and_nothing_added_or_special():
    tokenizer = word_level("tree", "Tree", "TREE", "tree2", "été", "t-ree", "дом", "stone")
    tokenizer.add_tokens(["added"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["special"]})
    assert [word.text for word in find_words(tokenizer)] == ["tree", "stone"]


def test_the_inside_of_a_word_is_not_a_word():
    tokenizer = tiny_tokenizer("byte_bpe")
    inside = {t for text, t in tokenizer.get_vocab().items() if text.isascii() and text.isalpha()}
    assert len(inside) > 26
    assert not inside & {word.token for word in find_words(tokenizer)}


def test_a_word_that_normalisation_changes_is_not_offered():
    # The token "▁bade" is out of reach of text in this one: BPE has lost the merge to it.
    tokenizer = tiny_tokenizer("metaspace_bpe")
    vocabulary = {**tokenizer.get_vocab(), "▁unreachable": 500, "Ġbade": 501}
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>")
    tokenizer.get_vocab = lambda: vocabulary
    found = {word.text: word.token for word in find_words(tokenizer)}
    assert "unreachable" not in found
    assert found["bade"] == vocabulary["▁bade"]


@pytest.mark.parametrize("name", ["ar/tiny", "atr/easy"])
def test_every_symbol_has_a_word_of_its_own(name):
    task, words = load_task(name), find_words(tiny_tokenizer("byte_bpe"))
    tokens, texts = assign_words(task, words)
    special = set(task.kinds["special"])
    assert set(texts) == set(range(task.vocab_size)) - special
    assert len(set(texts.values())) == len(texts)
    by_text = {word.text: word.token for word in words}
    for symbol in range(task.vocab_size):
        assert tokens[symbol] == (-1 if symbol in special else by_text[texts[symbol]])


def test_keys_are_as_frequent_as_values():
    task = load_task("ar/tiny")
    words = [Word(f"w{i}", i) for i in range(40)]
    tokens, _ = assign_words(task, words)
    assert tokens[list(task.kinds["key"])].tolist() == list(range(0, 32, 2))
    assert tokens[list(task.kinds["value"])].tolist() == list(range(1, 32, 2))


def test_kinds_of_query_are_their_own_words_where_they_can_be():
    task = load_task("atr/easy", query_kinds="parent,child,sibling")
    _, texts = assign_words(task, find_words(tiny_tokenizer("byte_bpe")))
    assert [texts[symbol] for symbol in task.kinds["query_kind"]] == list(KINDS)
    _, texts = assign_words(task, find_words(word_level(*WORDS, "child")))
    first, second, third = (texts[symbol] for symbol in task.kinds["query_kind"])
    assert (first in WORDS, second, third in WORDS) == (True, "child", True)


@pytest.mark.parametrize(
    ("name", "settings", "fits"),
    [
        ("ar", {}, "num_keys=51,num_values=52"),
        ("ar", {"num_values": 20}, "num_keys=83,num_values=20"),
        ("ar", {"num_keys": 20}, "num_keys=20,num_values=83"),
        ("atr/large_vocab", {}, "num_terminals=100"),
    ],
)
def test_too_few_words_name_the_largest_setting(name, settings, fits):
    words = find_words(tiny_tokenizer("word_level"))
    assert len(words) == 103
    with pytest.raises(UserError, match=f"the tokenizer has 103: the largest that fits is {fits}$"):
        assign_words(load_task(name, **settings), words)
    largest = {key: int(value) for key, _, value in (s.partition("=") for s in fits.split(","))}
    assign_words(load_task(name, **largest), words)
    last = list(largest)[-1]
    with pytest.raises(UserError, match="the largest that fits"):
        assign_words(load_task(name, **{**largest, last: largest[last] + 1}), words)


def test_far_too_few_words_are_said_so():
    with pytest.raises(UserError, match="choose a task with a smaller vocabulary"):
        assign_words(load_task("ar"), find_words(word_level("tree", "stone")))
    with pytest.raises(UserError, match="the tokenizer has 0"):
        assign_words(load_task("atr/easy"), find_words(word_level()))
