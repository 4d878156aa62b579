"""The random grammar against its definition."""

from dataclasses import replace

import numpy as np
import pytest

from patchbench.common import UserError
from patchbench.tasks.grammar import Grammar, GrammarConfig
from patchbench.tasks.sampling import generator
from tests.tasks.oracle import draw_grammar
from tests.tasks.plain import plain_grammar

EASY = GrammarConfig()
MEDIUM = GrammarConfig(max_rhs_length=10)
LARGE = GrammarConfig(num_terminals=8192, terminal_occurrence_factor=20.0)


def owners(grammar: Grammar) -> np.ndarray:
    """Return the nonterminal of every right-hand-side symbol."""
    rule_owner = np.searchsorted(grammar.rules.first, np.arange(len(grammar.rhs_length)), "right")
    return np.repeat(rule_owner - 1, grammar.rhs_length)


@pytest.mark.parametrize("config", [EASY, MEDIUM, LARGE], ids=["easy", "medium", "large"])
def test_nonterminals_are_strictly_deeper(config):
    for seed in range(10):
        grammar = Grammar.draw(generator(seed), config)
        inner = grammar.rhs >= config.num_terminals
        levels = grammar.levels
        inner_level = levels[grammar.rhs[inner] - config.num_terminals]
        assert (inner_level > levels[owners(grammar)[inner]]).all()


def test_numbers_are_uniform_over_their_ranges():
    grammars = [Grammar.draw(generator(seed), MEDIUM) for seed in range(100)]
    levels = np.concatenate([g.levels for g in grammars])
    lengths = np.concatenate([g.rhs_length for g in grammars])
    rules = np.concatenate([np.diff(np.append(g.rules.first, len(g.rhs_length))) for g in grammars])
    for values, low, high in ((levels, 1, 10), (lengths, 1, 9), (rules, 1, 5)):
        found = np.bincount(values)[low:]
        assert len(found) == high - low + 1
        share = 1 / len(found)
        # Five standard errors of the share.
        error = 5 * np.sqrt(share * (1 - share) / len(values))
        np.testing.assert_allclose(found / len(values), share, atol=error)


def test_symbols_agree_with_an_obvious_generator():
    import random

    def shares(grammars):
        """Return the share of terminals among the symbols of each level."""
        counts = np.zeros((11, 2))
        for grammar in grammars:
            for level, sides in grammar:
                for side in sides:
                    inner = sum(isinstance(symbol, tuple) for symbol in side)
                    counts[level] += (inner, len(side))
        return (counts[:, 0] / np.maximum(counts[:, 1], 1))[1:], counts[1:, 1]

    drawn = [Grammar.draw(generator(seed), EASY) for seed in range(100)]
    ours = [
        [
            (level, [side for _, side in entry["rules"]])
            for level, entry in zip(g.levels, plain_grammar(g), strict=True)
        ]
        for g in drawn
    ]
    rng = random.Random(0)
    theirs = [
        [
            (entry["level"], [side for _, side in entry["rules"]])
            for entry in draw_grammar(rng, 20, 40, 5, 5, 10)
        ]
        for _ in range(100)
    ]
    (mine, n), (other, m) = shares(ours), shares(theirs)
    # Symbols of one grammar share its levels: allow twice the binomial error, five times.
    np.testing.assert_array_less(np.abs(mine - other), 10 * np.sqrt(0.25 / n + 0.25 / m))
    assert mine[-1] == 0
    assert mine[0] > 0.5


def test_weighted_terminals_make_shapes_independent_of_the_alphabet():
    for seed in range(5):
        small = Grammar.draw(generator(seed), replace(EASY, terminal_occurrence_factor=20.0))
        large = Grammar.draw(generator(seed), LARGE)
        np.testing.assert_array_equal(small.levels, large.levels)
        np.testing.assert_array_equal(small.rhs_length, large.rhs_length)
    share = np.mean([np.mean(Grammar.draw(generator(s), LARGE).rhs < 8192) for s in range(40)])
    plain = np.mean([np.mean(Grammar.draw(generator(s), EASY).rhs < 20) for s in range(40)])
    assert share == pytest.approx(plain, abs=0.02)


def test_heads():
    nonterminals = np.repeat(np.arange(40), 500)
    rng = generator(0)
    private = Grammar.draw(rng, replace(EASY, heads="private", num_terminals=40))
    heads = private.draw_heads(rng, nonterminals).reshape(40, 500)
    assert (heads == heads[:, :1]).all()
    assert len(set(heads[:, 0])) == 40
    uniform = Grammar.draw(rng, replace(EASY, heads="uniform"))
    counts = np.bincount(uniform.draw_heads(rng, nonterminals), minlength=20)
    np.testing.assert_allclose(counts / 20_000, 0.05, atol=0.01)
    own = Grammar.draw(rng, EASY)
    drawn = own.draw_heads(rng, np.full(20_000, 7))
    expected = own.head_distribution.probabilities(7)
    np.testing.assert_allclose(np.bincount(drawn, minlength=20) / 20_000, expected, atol=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_terminals": 1}, "num_terminals=1: the smallest allowed is 2"),
        ({"max_rhs_length": 1}, "max_rhs_length=1: the smallest allowed is 2"),
        ({"max_depth": 0}, "max_depth=0: the smallest allowed is 1"),
        ({"heads": "private"}, "the largest allowed num_nonterminals is 20"),
        ({"terminal_occurrence_factor": 0.0}, "a positive weight is needed"),
        ({"terminal_occurrence_factor": float("nan")}, "a positive weight is needed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_settings(settings, message):
    with pytest.raises(UserError, match=message):
        GrammarConfig(**settings)
