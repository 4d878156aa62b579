"""What stands between words, against the tokenizers' own encodings."""

import pytest
from tokenizers import normalizers

from patchbench.common import UserError
from patchbench.tasks.templates import find_pieces
from patchbench.tasks.words import find_words
from tests.tasks.tiny_tokenizers import ENDS, MAKES, PREFIX, llama_like, tiny_tokenizer, word_level

JOINERS = {"bare": "", "colon": ":", "arrow": " ->"}


def pieces_of(tokenizer, template, shots=1):
    return find_pieces(tokenizer, template, find_words(tokenizer), shots=shots)


@pytest.mark.parametrize("template", JOINERS)
@pytest.mark.parametrize("make", MAKES)
def test_pieces_make_up_the_tokens_of_the_text(make, template):
    tokenizer = tiny_tokenizer(make)
    pieces = pieces_of(tokenizer, template)
    end, joiner = ENDS.get(make, "\n"), JOINERS[template]
    line = end if template != "bare" else ""
    empty = end if make == "word_level" else end * 2  # ";;" is not in its vocabulary
    text = f"bade{joiner} figo{line} lumi{joiner} nepo{end} bade{joiner} figo{empty} rasu"
    word = {word.text: word.token for word in find_words(tokenizer)}
    expected = [
        *pieces.joiner, word["figo"], *pieces.line, word["lumi"], *pieces.joiner, word["nepo"],
        *pieces.divider, word["bade"], *pieces.joiner, word["figo"], *pieces.separator,
        word["rasu"],
    ]  # fmt: skip
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[-len(expected) :] == expected
    # Ahead is the first word alone, without a space of its own: nothing of the template is in it.
    assert ids[: -len(expected)] == tokenizer("bade", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("make", MAKES)
def test_bos_stands_once_where_the_tokenizer_wants_it(make):
    pieces = pieces_of(tiny_tokenizer(make), "colon")
    assert list(pieces.prefix) == PREFIX[make]
    assert pieces.bos == (0 if PREFIX[make] else -1)
    notes = " ".join(pieces.notes)
    assert ("there is no role bos" in notes) == (not PREFIX[make])
    assert ("more than once: <s> is kept once" in notes) == (make == "byte_bpe_double_bos")
    assert ("no line break: ';' ends a line" in notes) == (make == "word_level")


def test_without_shots_no_separator_is_needed():
    assert pieces_of(tiny_tokenizer("byte_bpe"), "colon", shots=0).separator == ()


def test_a_tokenizer_that_merges_words_with_colons_needs_another_template():
    tokenizer = llama_like(("▁bade", ":"), ("▁bafi", ":"))
    assert tokenizer.tokenize("rasu bade: figo") == ["▁rasu", "▁bade:", "▁figo"]
    with pytest.raises(UserError, match=r"cannot write ':' between words, .* --template bare"):
        pieces_of(tokenizer, "colon")
    assert pieces_of(tokenizer, "bare").joiner == ()


def normalised(old, new):
    tokenizer = llama_like()
    steps = [normalizers.Replace(old, new), tokenizer.backend_tokenizer.normalizer]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def test_a_sign_that_is_not_the_same_everywhere_is_refused():
    first = find_words(llama_like())[0].text  # is among those that are tried
    tokenizer = normalised(f"{first}:", f"{first}::")
    with pytest.raises(UserError, match="cannot write ':' between words"):
        pieces_of(tokenizer, "colon")
    assert pieces_of(tokenizer, "arrow").joiner


def test_a_line_break_that_becomes_a_space_is_none():
    pieces = pieces_of(normalised("\n", " "), "colon")
    assert pieces.divider == (tiny_tokenizer("llama_like").convert_tokens_to_ids(";"),)
    assert "no line break: ';' ends a line" in " ".join(pieces.notes)


def test_a_tokenizer_without_the_signs_is_refused():
    tokenizer = word_level("tree", "stone", "leaf", "root")
    tokenizer.backend_tokenizer.model = type(tokenizer.backend_tokenizer.model)(
        {"<unk>": 2, "tree": 3, "stone": 4, "leaf": 5, "root": 6}, unk_token="<unk>"
    )
    with pytest.raises(UserError, match="cannot write ':'"):
        pieces_of(tokenizer, "colon")
    with pytest.raises(UserError, match="the tokenizer has none of"):
        pieces_of(tokenizer, "bare")
