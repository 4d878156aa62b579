"""Every corruption corrupts: by the oracle's rule, and by trying to get a bad one past."""

from dataclasses import replace

import numpy as np
import pytest

from patchbench.tasks import list_tasks, load_task
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.checks import CorruptionError, check_examples
from patchbench.tasks.sampling import generator
from tests.tasks import oracle, oracle_lists

# Small alphabets and long sentences: repeated terminals, equal parents, used-up alphabets.
CROWDED = {
    "parent": ("atr/easy", {"num_terminals": 4}),
    "parent-left": ("atr/left", {"num_terminals": 4}),
    "child": ("atr/child", {"num_terminals": 5}),
    "child-left": ("atr/child", {"num_terminals": 5, "headedness": "left"}),
    "sibling": ("atr/sibling", {"num_terminals": 5}),
    "sibling-left": ("atr/sibling", {"num_terminals": 5, "headedness": "left"}),
    "all kinds": ("atr/easy", {"num_terminals": 5, "query_kinds": "parent,child,sibling"}),
    "long": ("atr/medium", {"num_terminals": 12}),
    "private": ("atr/easy", {"heads": "private", "num_terminals": 6, "num_nonterminals": 6}),
    "pairs": ("ar", {"num_pairs": 3, "num_keys": 4, "num_values": 4}),
    "pairs backwards": ("ar/reverse", {"num_pairs": 3, "num_keys": 4, "num_values": 4}),
    "induction": ("induction", {"length": 5, "num_tokens": 6}),
    "inverse": ("inverse_match/tiny", {"num_tokens": 5, "num_values": 5}),
    "forward": ("inverse_match/tiny", {"num_tokens": 5, "num_values": 5, "forward": True}),
    "joint": ("joint_recall/tiny", {"num_contexts": 2, "num_keys": 3, "num_values": 5}),
    "many queries": ("mqar/tiny", {"num_keys": 4, "num_values": 4}),
    "words": ("kv_retrieval", {"num_pairs": 3, "num_keys": 4, "num_values": 4}),
}
CASES = {
    **{i.name: (i.name, {}) for i in list_tasks() if i.name.split("/")[0] in VARIANTS},
    **CROWDED,
}


def answers(task, row, ids):
    """Return the oracle's answers for the tokens `ids` in place of the row's."""
    end, query = row["roles"]["divider"], ids[row["roles"]["query"]]
    context, family = list(ids[1:end]), task.name.split("/")[0]
    if family in ("ar", "kv_retrieval", "mqar"):
        return oracle.recall(context, query, getattr(task.config, "reverse", False))
    if family == "induction":
        return oracle_lists.followers(context, query)
    if family == "joint_recall":
        is_context = task.kinds["context"].__contains__
        return oracle_lists.in_block(context, is_context, ids[row["roles"]["query"] - 1], query)
    if family == "inverse_match":
        sequence = list(ids[end + 1 : row["roles"]["query"] + 1])
        wanted = sequence if task.config.forward else sequence[::-1]
        return oracle_lists.after_sequence(context, wanted)
    assert family == "atr", f"write down the rule of {family} here"
    parents = [None if p < 0 else p - 1 for p in row["metadata"]["parents"][1:end]]
    return oracle.treecall(ids[1:end], parents, query, row["metadata"]["query_kind"])


@pytest.mark.parametrize("case", CASES)
def test_corrupted_rows(case):
    name, settings = CASES[case]
    task = load_task(name, seed=2, **settings)
    swaps = 0
    for row in task.dataset("test", 400).to_list():
        ids, roles, end = row["input_ids"], row["roles"], row["roles"]["divider"]
        assert row["answer"] in answers(task, row, ids)
        for kind in ("key", "value"):
            twin = row["corruptions"][kind]
            place = roles[kind]
            new = twin["input_ids"][place]
            assert twin["input_ids"] == [*ids[:place], new, *ids[place + 1 :]]
            assert new not in ids[1:end]
            assert task.kind_of[new] == task.kind_of[ids[place]]
            found = answers(task, row, twin["input_ids"])
            assert row["answer"] not in found
            if kind == "value":
                assert twin["answer"] == new
                assert new in found
            else:
                assert twin["answer"] == (found.pop() if len(found) == 1 else -1)
        swap = row["corruptions"]["swap"]
        if not swap["input_ids"]:
            assert swap["answer"] == -1
            continue
        swaps += 1
        changed = [i for i in range(len(ids)) if swap["input_ids"][i] != ids[i]]
        assert len(changed) == 2
        assert roles["value"] in changed
        assert roles["key"] not in changed
        assert max(changed) < end
        assert sorted(swap["input_ids"]) == sorted(ids)
        found = answers(task, row, swap["input_ids"])
        assert row["answer"] not in found
        assert swap["answer"] in found
        assert swap["answer"] == swap["input_ids"][roles["value"]]
        if name.startswith("atr"):  # the rightmost occurrence of the query stays so
            key = max(i for i in range(1, end) if swap["input_ids"][i] == ids[roles["query"]])
            assert key == roles["key"]
    assert swaps > 100


@pytest.mark.parametrize("case", ["parent", "child", "sibling", "long", "parent-left"])
def test_only_what_cannot_be_corrupted_is_dropped(case):
    """For kept rows without a twin no replacement, or none that hides the answer, exists."""
    name, settings = CROWDED[case]
    task = load_task(name, seed=2, keep_uncorruptible=True, **settings)
    strict = load_task(name, seed=2, **settings)
    missing = 0
    examples, counts = strict.chunk("test", 0)
    rows = task.dataset("test", 600).to_list()
    for row in rows:
        ids, end = row["input_ids"], row["roles"]["divider"]
        absent = sorted(set(task.kinds["terminal"]) - set(ids[1:end]))
        for kind in ("key", "value"):
            place = row["roles"][kind]
            if row["corruptions"][kind]["input_ids"]:
                continue
            missing += 1
            assert row["corruptions"][kind]["answer"] == -1
            for new in absent:
                twin = [*ids[:place], new, *ids[place + 1 :]]
                assert row["answer"] in answers(task, row, twin)
    assert missing > 20
    kept = [r for r in rows if all(r["corruptions"][k]["input_ids"] for k in ("key", "value"))]
    assert kept == strict.dataset("test", len(kept)).to_list()
    assert counts.dropped == counts.drawn - counts.rejected - len(examples)
    assert 0 < counts.drop_share < 1


@pytest.mark.parametrize("case", CROWDED)
def test_a_swap_is_missing_only_where_none_is_possible(case):
    name, settings = CROWDED[case]
    task = load_task(name, seed=2, **settings)
    for row in task.dataset("test", 300).to_list():
        if row["corruptions"]["swap"]["input_ids"]:
            continue
        ids, roles = row["input_ids"], row["roles"]
        query = ids[roles["query"]]
        for place in range(1, roles["divider"]):
            if ids[place] in (query, row["answer"]):
                continue
            if task.kind_of[ids[place]] != task.kind_of[row["answer"]]:
                continue
            twin = list(ids)
            twin[place], twin[roles["value"]] = row["answer"], ids[place]
            moved = query in twin[roles["key"] + 1 : roles["divider"]]
            assert moved or row["answer"] in answers(task, row, twin)


def test_replacements_are_uniform_over_what_is_absent():
    task = load_task("ar/tiny")
    examples, _ = task.chunk("test", 0)
    new = examples.corruptions["key"].tokens[examples.tokens.starts + examples.roles["key"]]
    share = np.bincount(new - task.kinds["key"][0], minlength=16) / len(examples)
    np.testing.assert_allclose(share, 1 / 16, atol=0.012)


def test_swap_partners_are_uniform_over_the_other_values():
    task = load_task("ar/tiny")
    examples, _ = task.chunk("test", 0)
    before, after = (t.reshape(-1, 13) for t in
                     (examples.tokens.values, examples.corruptions["swap"].tokens))  # fmt: skip
    partner = (before != after).sum(axis=0)[2:10:2]
    # Each of 4 values is swapped in half of the rows: as the value (1/4) or as the partner (1/4).
    np.testing.assert_allclose(partner / len(before), 1 / 2, atol=0.03)


def break_key(task, examples):
    """The new key stands elsewhere in the context."""
    return "key", examples.tokens.starts + examples.roles["key"], examples.answer


def keep_value(task, examples):
    """The value is not changed at all."""
    place = examples.tokens.starts + examples.roles["value"]
    return "value", place, examples.answer


def other_kind(task, examples):
    """The new key is a divider."""
    return "key", examples.tokens.starts + examples.roles["key"], 2


def touch_query(task, examples):
    """The query changes as well."""
    return "key", examples.tokens.starts + examples.roles["query"], 5


def half_swap(task, examples):
    """One of the two swapped tokens is taken back."""
    return "swap", examples.tokens.starts + examples.roles["value"], examples.answer


def swap_divider(task, examples):
    """The value changes places with the divider."""
    value = examples.tokens.starts + examples.roles["value"]
    divider = examples.tokens.starts + examples.roles["divider"]
    clean = examples.tokens.values
    partner = np.flatnonzero(examples.corruptions["swap"].tokens != clean)
    place = np.concatenate([partner, value, divider])
    return "swap", place, np.concatenate([clean[partner], clean[divider], clean[value]])


@pytest.mark.parametrize("name", ["ar/tiny", "atr/easy"])
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (break_key, "elsewhere in the context"),
        (keep_value, "not exactly the value changed"),
        (other_kind, "another kind"),
        (touch_query, "not exactly the key changed"),
        (half_swap, "do not change places"),
        (swap_divider, "outside the context"),
    ],
    ids=["repeated", "unchanged", "of another kind", "query changed", "half swap", "divider"],
)
def test_the_check_finds_a_broken_twin(name, harm, message):
    task = load_task(name)
    examples, _ = task.chunk("test", 0)
    corruption, place, tokens = harm(task, examples)
    twin = examples.corruptions[corruption]
    broken = twin.tokens.copy()
    broken[place] = tokens
    corruptions = {**examples.corruptions, corruption: replace(twin, tokens=broken)}
    with pytest.raises(CorruptionError, match=message):
        check_examples(task, replace(examples, corruptions=corruptions))


@pytest.mark.parametrize("name", ["ar/tiny", "atr/easy", "atr/child"])
@pytest.mark.parametrize("corruption", ["key", "value", "swap"])
def test_the_check_finds_a_wrong_counterfactual(name, corruption):
    task = load_task(name)
    examples, _ = task.chunk("test", 0)
    twin = examples.corruptions[corruption]
    wrong = replace(twin, answer=np.where(twin.exists, examples.answer, -1))
    with pytest.raises(CorruptionError, match="counterfactual"):
        check_examples(
            task, replace(examples, corruptions={**examples.corruptions, corruption: wrong})
        )


def test_the_check_finds_an_answer_that_stays_derivable():
    """Where two terminals equal to the query have equal parents, only one is replaced."""
    task = load_task("atr/easy", seed=2, num_terminals=4, keep_uncorruptible=True)
    examples, _ = task.chunk("test", 0)
    key = examples.corruptions["key"]
    place = examples.tokens.starts + examples.roles["key"]
    replaced = key.tokens[place] != examples.tokens.values[place]
    assert (replaced & ~key.exists).sum() > 20
    forced = replace(key, exists=replaced)
    with pytest.raises(CorruptionError, match="can still be derived"):
        check_examples(task, replace(examples, corruptions={**examples.corruptions, "key": forced}))


@pytest.mark.parametrize("case", CROWDED)
def test_the_two_statements_of_the_rule_agree(case):
    """`derive` against the oracle on sentences whose tokens are replaced at random."""
    name, settings = CROWDED[case]
    task = load_task(name, seed=3, **settings)
    examples, _ = task.chunk("test", 0)
    mask = np.arange(len(examples)) < 500
    examples = examples.select(mask)
    rng = generator(0)
    tokens = examples.tokens.values.copy()
    symbols = examples.in_context
    if name.startswith("atr"):
        tokens[symbols] = rng.choice(task.kinds["terminal"], size=symbols.sum())
    else:  # within each document, the tokens of each kind change places
        for row in range(500):
            for kind in range(len(task.kinds)):
                here = symbols & (examples.tokens.rows == row) & (task.kind_of[tokens] == kind)
                tokens[here] = rng.permutation(tokens[here])
    derived = task.derive(tokens, examples, examples.answer)
    table = examples.to_arrow().to_pylist()
    for i, row in enumerate(table):
        ids = examples.tokens.with_values(tokens).row(i).tolist()
        found = answers(task, row, ids)
        assert derived.count[i] == len(found)
        assert derived.answer[i] == (min(found) if len(found) == 1 else -1)
        assert derived.accepts[i] == (row["answer"] in found)
        assert set(task.solve(ids, row["metadata"]["parents"])) == found
