"""Associative treecall against exact enumeration and the obvious generator."""

import random
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare, ks_2samp

from patchbench.common import UserError
from patchbench.tasks import load_task
from tests.tasks import oracle
from tests.tasks.plain import plain_grammar

LEAST_P = 1e-3
SMALL = {
    "num_terminals": 3,
    "num_nonterminals": 4,
    "max_rhs_length": 4,
    "max_rules": 2,
    "max_depth": 3,
    "keep_uncorruptible": True,
}
# Grammar seeds that nest three levels deep, so that siblings and grandchildren occur.
DEEP_SEED = 16


def rows(task, count, split="test"):
    """Yield the first `count` rows as plain documents with their trees."""
    return task.dataset(split, count).to_list()


def tree(row):
    """Return a row's sentence and its parents as positions in the sentence."""
    end = row["roles"]["divider"]
    parents = row["metadata"]["parents"][1:end]
    return row["input_ids"][1:end], [None if parent < 0 else parent - 1 for parent in parents]


def outcome(examples, i):
    end = int(examples.roles["divider"][i])
    tokens = tuple(int(t) - 3 for t in examples.tokens.row(i)[1:end])
    parents = tuple(None if p < 0 else int(p) - 1 for p in examples.parents.row(i)[1:end])
    return tokens, parents, int(examples.roles["key"][i]) - 1, int(examples.roles["value"][i]) - 1


@pytest.mark.parametrize("headedness", ["right", "left"])
@pytest.mark.parametrize("kind", ["parent", "child", "sibling"])
def test_documents_have_their_exact_probabilities(kind, headedness):
    task = load_task(
        "atr/easy", seed=DEEP_SEED, query_kinds=(kind,), headedness=headedness, **SMALL
    )
    exact = oracle.enumerate_documents(plain_grammar(task.grammar), kind, headedness)
    assert max(len(tokens) for tokens, *_ in exact) >= 10
    found = Counter()
    for index in range(4):
        examples, _ = task.chunk("test", index)
        found.update(outcome(examples, i) for i in range(len(examples)))
    assert set(found) <= set(exact)
    total = sum(found.values())
    # Outcomes expected fewer than 10 times are one.
    common = [o for o, p in exact.items() if p * total >= 10]
    observed = [found[o] for o in common]
    expected = [exact[o] * total for o in common]
    if total - sum(expected) > 1e-6 * total:
        observed.append(total - sum(observed))
        expected.append(total - sum(expected))
    assert len(common) > 20
    assert chisquare(observed, expected).pvalue > LEAST_P


@pytest.mark.parametrize("name", ["atr/easy", "atr/medium", "atr/left", "atr/sibling", "atr/child"])
def test_lengths_distances_and_flags_agree_with_the_obvious_generator(name):
    task = load_task(name, seed=1, keep_uncorruptible=True)
    (kind,), headedness = task.config.query_kinds, task.config.headedness
    grammar, rng = oracle.cumulated(plain_grammar(task.grammar)), random.Random(0)
    theirs = [oracle.atr_document(rng, grammar, kind, headedness) for _ in range(1500)]
    ours = [outcome(examples, i) for examples in [task.chunk("dev", 0)[0]] for i in range(4000)]
    for measure in (
        lambda tokens, key, value: len(tokens),
        lambda tokens, key, value: abs(key - value),
        lambda tokens, key, value: tokens[key],
        lambda tokens, key, value: tokens[value],
        lambda tokens, key, value: [*tokens, None][key + 1] == tokens[value],
        lambda tokens, key, value: tokens[-1] == tokens[value],
    ):
        mine = [measure(tokens, key, value) for tokens, _, key, value in ours]
        other = [measure(d["tokens"], d["key"], d["value"]) for d in theirs]
        assert ks_2samp(mine, other, method="asymp").pvalue > LEAST_P


def test_several_kinds_are_drawn_evenly_where_all_are_possible():
    kinds = ("parent", "child", "sibling")
    task = load_task("atr/easy", query_kinds=kinds)
    asked, possible = Counter(), 0
    for row in rows(task, 3000):
        tokens, parents = tree(row)
        kind = row["metadata"]["query_kind"]
        assert task.symbols[row["input_ids"][row["roles"]["query"] + 1]] == f"<{kind}>"
        assert row["roles"]["answer"] == row["roles"]["query"] + 2
        pairs = oracle.eligible_pairs(tokens, parents, kind)
        assert (row["roles"]["key"] - 1, row["roles"]["value"] - 1) in pairs
        assert len(pairs) == row["metadata"]["num_pairs"]
        if all(oracle.eligible_pairs(tokens, parents, k) for k in kinds):
            asked[kind] += 1
            possible += 1
    # Dropping is not quite even over the kinds: a fifth of tolerance, not a p-value.
    for kind in kinds:
        assert asked[kind] / possible == pytest.approx(1 / 3, abs=0.07)


@pytest.mark.parametrize("name", ["atr/easy", "atr/left", "atr/large_vocab"])
def test_document_and_roles(name):
    task = load_task(name)
    for row in rows(task, 300):
        ids, roles = row["input_ids"], row["roles"]
        end = roles["divider"]
        assert ids == [1, *ids[1:end], 2, ids[roles["key"]], ids[roles["value"]], 2]
        assert roles["query"] == end + 1
        assert roles["answer"] == end + 2 == len(ids) - 2
        assert row["labels"] == [-100] * (end + 2) + [row["answer"], -100]
        assert all(token in task.kinds["terminal"] for token in ids[1:end])
        assert row["candidates"] == sorted(set(ids[1:end]))
        assert row["answer"] == ids[roles["value"]] == ids[roles["answer"]]
        following = [*ids[1:end], None][roles["key"]]
        assert row["metadata"]["answer_is_next_token"] == (following == row["answer"])
        assert row["metadata"]["answer_is_rightmost"] == (ids[end - 1] == row["answer"])
        assert row["metadata"]["distance"] == abs(roles["key"] - roles["value"])


@pytest.mark.parametrize("headedness", ["right", "left"])
def test_trees_are_projective_and_headed(headedness):
    task = load_task("atr/easy", headedness=headedness)
    for row in rows(task, 200):
        tokens, parents = tree(row)
        inside = {i: {i} for i in range(len(tokens))}
        order = sorted(range(len(tokens)), reverse=headedness == "left")
        for place in order:  # children before their head
            parent = parents[place]
            if parent is None:
                assert place == (len(tokens) - 1 if headedness == "right" else 0)
                continue
            assert (parent > place) == (headedness == "right")
            inside[parent] |= inside[place]
        for span in inside.values():
            assert span == set(range(min(span), max(span) + 1))
        depth = max(_depth(parents, i) for i in range(len(tokens)) if i in parents)
        assert row["metadata"]["depth"] == depth


def _depth(parents, place):
    return 0 if place is None else 1 + _depth(parents, parents[place])


def test_the_rule_in_words_is_the_oracle_s():
    for name in ("atr/easy", "atr/child", "atr/sibling", "atr/left"):
        task = load_task(name)
        for row in rows(task, 200):
            tokens, parents = tree(row)
            query = row["input_ids"][row["roles"]["query"]]
            expected = oracle.treecall(tokens, parents, query, task.config.query_kinds[0])
            assert set(task.solve(row["input_ids"], row["metadata"]["parents"])) == expected
            assert row["metadata"]["num_answers"] == len(expected)
            assert row["answer"] in expected


def test_held_out_pairs_are_asked_in_test_only():
    task = load_task("atr/held_out")
    asked = {
        split: {(r["input_ids"][r["roles"]["query"]], r["answer"]) for r in rows(task, 3000, split)}
        for split in ("train", "dev", "test")
    }
    assert not asked["test"] & (asked["train"] | asked["dev"])
    assert len(asked["train"] & asked["dev"]) > 100
    assert len(asked["test"]) > 40


def test_sentence_limits():
    task = load_task("atr/medium", min_length=10, max_sentence_length=12)
    lengths = {row["roles"]["divider"] - 1 for row in rows(task, 300)}
    assert lengths == {10, 11, 12}
    assert task.max_length == 12 + 5


def test_too_long_trees_are_cut_early():
    import tracemalloc

    # Uncut, these trees have up to 19 ** 10 tokens.
    task = load_task("atr/easy", max_rhs_length=20, num_nonterminals=400, max_sentence_length=64)
    tracemalloc.start()
    examples, counts = task.chunk("test", 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(examples) > 100
    assert counts.rejected > 1000
    assert peak < 300e6


def test_the_grammar_has_a_seed_of_its_own():
    first, second = (load_task("atr/easy", seed=seed, grammar_seed=7) for seed in (0, 1))
    np.testing.assert_array_equal(first.grammar.rhs, second.grammar.rhs)
    assert rows(first, 10) != rows(second, 10)
    assert not np.array_equal(load_task("atr/easy", seed=0).grammar.rhs, first.grammar.rhs)


def measured(name, seed):
    """Return next-token floor, rightmost floor and mean sentence length of one grammar."""
    task = load_task(name, seed=seed, keep_uncorruptible=True)
    examples, _ = task.chunk("test", 0)
    flags = examples.metadata
    length = (examples.roles["divider"] - 1).mean()
    return flags["answer_is_next_token"].mean(), flags["answer_is_rightmost"].mean(), length


# The paper's grammars are one draw each, so the spread between ours is the yardstick. The length
# of its easy grammar, 15, is left out: it is longer than any of 60 of ours (see the docstring of
# `patchbench.tasks.atr`), and the next test shows that ours have the length of the definition.
@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("atr/easy", (0.52, 0.44, None)),
        ("atr/medium", (0.43, 0.43, 39)),
        ("atr/large_vocab", (0.49, 0.43, 13)),
    ],
    ids=["easy", "medium", "large_vocab"],
)
def test_heuristic_floors_of_the_paper(name, paper):
    found = np.array([measured(name, seed) for seed in range(24)])
    mean, spread = found.mean(axis=0), found.std(axis=0, ddof=1)
    for value, center, deviation in zip(paper, mean, spread, strict=True):
        assert value is None or abs(value - center) < 3 * deviation


def test_floors_and_lengths_of_grammars_that_the_oracle_draws():
    """Grammars, sentences and queries all from the definition: nothing shared but the numbers."""
    rng, theirs = random.Random(0), []
    for _ in range(30):
        grammar = oracle.cumulated(oracle.draw_grammar(rng, 20, 40, 5, 5, 10))
        documents = [oracle.atr_document(rng, grammar) for _ in range(300)]
        flags = [
            (
                [*d["tokens"], None][d["key"] + 1] == d["tokens"][d["value"]],
                d["tokens"][-1] == d["tokens"][d["value"]],
                len(d["tokens"]),
            )
            for d in documents
        ]
        theirs.append(np.mean(flags, axis=0))
    ours = np.array([measured("atr/easy", seed) for seed in range(30)])
    error = np.sqrt((ours.var(axis=0, ddof=1) + np.var(theirs, axis=0, ddof=1)) / 30)
    assert (np.abs(ours.mean(axis=0) - np.mean(theirs, axis=0)) < 4 * error).all()


def test_heuristic_floor_reads_the_rows():
    task = load_task("atr/easy")
    dataset = task.dataset("test", 500)
    flags = [row["metadata"] for row in dataset.to_list()]
    following = np.mean([f["answer_is_next_token"] for f in flags])
    last = np.mean([f["answer_is_rightmost"] for f in flags])
    either = np.mean([f["answer_is_next_token"] or f["answer_is_rightmost"] for f in flags])
    expected = {"next_token": following, "rightmost": last, "either": either}
    assert task.heuristic_floor(dataset) == pytest.approx(expected)
    some = dataset.select([3, 1])
    assert task.heuristic_floor(some)["next_token"] == np.mean(
        [flags[i]["answer_is_next_token"] for i in (3, 1)]
    )


def test_symbols_and_vocabulary():
    task = load_task("atr/easy")
    assert task.vocab_size == 26
    assert task.symbols[:4] == ["<pad>", "<bos>", "<eos>", "t0"]
    assert task.symbols[23:] == ["<parent>", "<child>", "<sibling>"]
    assert sorted(i for ids in task.kinds.values() for i in ids) == list(range(26))
    assert load_task("atr/large_vocab").vocab_size == 8198
    assert task.max_length == 1029


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_kinds": "parnt"}, "unknown query kind 'parnt': did you mean 'parent'"),
        ({"query_kinds": ()}, "each once"),
        ({"query_kinds": ("child", "child")}, "each once"),
        ({"headedness": "middle"}, "known: left, right"),
        ({"held_out": 1.0}, "a share"),
        ({"max_sentence_length": 2}, "the smallest allowed is 3"),
        ({"grammar_seed": -1}, "the smallest allowed is 0"),
    ],
    ids=lambda value: (
        "-".join(map(str, next(iter(value.items())))) if isinstance(value, dict) else ""
    ),
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        load_task("atr/easy", **settings)


def test_an_impossible_task_says_so():
    # Chains of one terminal each: sentences of two tokens only, all too short.
    task = load_task("atr/easy", max_rhs_length=2, max_depth=1, num_terminals=2)
    with pytest.raises(UserError, match=r"keeps 0 of \d+ candidates in test"):
        task.dataset("test", 1)
