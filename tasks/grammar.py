"""The random acyclic grammar of associative treecall.

Drawn once per seed: every nonterminal has a level, rules whose nonterminals are strictly deeper,
probabilities for its rules (Dirichlet, flat) and a distribution over the terminal that heads it.

Source: Arora et al., arXiv 2505.15105, section 3 and appendix.

Use:

    grammar = Grammar.draw(rng, GrammarConfig(num_terminals=20))
    grammar.rules.draw(rng, nonterminals)      # rule numbers
    grammar.draw_heads(rng, nonterminals)      # terminals
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from patchbench.common import UserError
from patchbench.tasks.sampling import Categoricals
from patchbench.tasks.settings import MOST_TOKENS, check_at_least, check_at_most

Heads = Literal["dirichlet", "private", "uniform"]


# Of the tables of rules and of heads.
_MOST_ENTRIES = 10_000_000


@dataclass(frozen=True, kw_only=True)
class GrammarConfig:
    """Size and shape of the grammar.

    Attributes:
        num_terminals: the alphabet.
        num_nonterminals: all may start a sentence.
        max_rhs_length: exclusive; a right-hand side has 1 … max_rhs_length − 1 symbols.
        max_rules: largest number of rules of a nonterminal.
        max_depth: number of levels.
        terminal_occurrence_factor: weight of all terminals together in a right-hand side, against
            1 for each nonterminal; None weighs every terminal 1. With a fixed weight the shapes
            of the trees do not depend on the alphabet.
        heads: "dirichlet" draws each nonterminal its own distribution over heads, "private" gives
            it one terminal of its own, "uniform" makes heads carry nothing.
    """

    num_terminals: int = 20
    num_nonterminals: int = 40
    max_rhs_length: int = 5
    max_rules: int = 5
    max_depth: int = 10
    terminal_occurrence_factor: float | None = None
    heads: Heads = "dirichlet"

    def __post_init__(self) -> None:
        check_at_least(
            1,
            num_nonterminals=self.num_nonterminals,
            max_rules=self.max_rules,
            max_depth=self.max_depth,
        )
        check_at_least(2, num_terminals=self.num_terminals, max_rhs_length=self.max_rhs_length)
        check_at_most(MOST_TOKENS, num_terminals=self.num_terminals)
        rules = self.num_nonterminals * self.max_rules * self.max_rhs_length
        heads = self.num_nonterminals * self.num_terminals
        if max(rules, heads, self.max_depth) > _MOST_ENTRIES:
            raise UserError(
                f"{self.num_nonterminals} nonterminals with up to {self.max_rules} rules of "
                f"{self.max_rhs_length} symbols and {self.num_terminals} terminals are too many",
                f"rules and heads may take {_MOST_ENTRIES:,} entries each",
            )
        factor = self.terminal_occurrence_factor
        if factor is not None and not factor > 0:
            raise UserError(f"terminal_occurrence_factor={factor}", "a positive weight is needed")
        if self.heads == "private" and self.num_nonterminals > self.num_terminals:
            raise UserError(
                f"heads='private' with {self.num_nonterminals} nonterminals and "
                f"{self.num_terminals} terminals",
                f"the largest allowed num_nonterminals is {self.num_terminals}",
            )


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A drawn grammar; rules are numbered on from one nonterminal to the next.

    Attributes:
        levels: of each nonterminal, 1 … max_depth.
        rules: distribution over rule numbers for each nonterminal.
        rhs: the right-hand sides, rule after rule; terminals are 0 … num_terminals − 1,
            nonterminal i is num_terminals + i.
        rhs_start: where each rule's right-hand side starts in `rhs`.
        rhs_length: its number of symbols.
        private_heads: the head of each nonterminal with `heads="private"`, otherwise empty.
        head_distribution: over terminals for each nonterminal, with `heads="dirichlet"`.
    """

    config: GrammarConfig
    levels: np.ndarray
    rules: Categoricals
    rhs: np.ndarray
    rhs_start: np.ndarray
    rhs_length: np.ndarray
    private_heads: np.ndarray
    head_distribution: Categoricals | None

    @classmethod
    def draw(cls, rng: np.random.Generator, config: GrammarConfig) -> "Grammar":
        """Draw a grammar."""
        nonterminals = config.num_nonterminals
        levels = rng.integers(1, config.max_depth + 1, size=nonterminals)
        num_rules = rng.integers(1, config.max_rules + 1, size=nonterminals)
        lengths = rng.integers(1, config.max_rhs_length, size=int(num_rules.sum()))
        sides = [
            _draw_rhs(rng, config, np.flatnonzero(levels > levels[nonterminal]), length)
            for nonterminal, length in zip(
                np.repeat(np.arange(nonterminals), num_rules), lengths, strict=True
            )
        ]
        rules = Categoricals.flat_dirichlet(rng, num_rules)
        private, distribution = np.empty(0, np.int64), None
        if config.heads == "private":
            private = rng.permutation(config.num_terminals)[:nonterminals]
        elif config.heads == "dirichlet":
            distribution = Categoricals.flat_dirichlet(
                rng, np.full(nonterminals, config.num_terminals)
            )
        return cls(
            config=config,
            levels=levels,
            rules=rules,
            rhs=np.concatenate(sides),
            rhs_start=np.cumsum(lengths) - lengths,
            rhs_length=lengths,
            private_heads=private,
            head_distribution=distribution,
        )

    def draw_heads(self, rng: np.random.Generator, nonterminals: np.ndarray) -> np.ndarray:
        """Return a head terminal for each of the given nonterminals."""
        terminals = self.config.num_terminals
        if self.config.heads == "private":
            return self.private_heads[nonterminals]
        if self.head_distribution is None:
            return rng.integers(terminals, size=len(nonterminals))
        return self.head_distribution.draw(rng, nonterminals) - nonterminals * terminals


def _draw_rhs(
    rng: np.random.Generator, config: GrammarConfig, deeper: np.ndarray, length: int
) -> np.ndarray:
    """Draw one right-hand side; `deeper` are the nonterminals it may hold."""
    terminals = config.num_terminals
    weight = terminals if config.terminal_occurrence_factor is None else (
        config.terminal_occurrence_factor
    )  # fmt: skip
    is_terminal = rng.random(length) * (weight + len(deeper)) < weight
    terminal = rng.integers(terminals, size=length)
    if not len(deeper):
        return terminal
    nonterminal = deeper[rng.integers(len(deeper), size=length)]
    return np.where(is_terminal, terminal, terminals + nonterminal)
