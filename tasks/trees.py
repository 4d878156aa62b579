"""Sentences of a grammar with their trees, thousands at once.

All trees of a chunk grow together, one level at a time: a level is an array of nonterminals and
the array of their right-hand-side *slots*. A slot yields one token of its own (the terminal, or
the head of its nonterminal), so that a sentence is as long as its slots are many, plus one for
the root's head. Subtree sizes are summed from the leaves up, positions follow from the root down.

Use:

    forest = grow(grammar, rng, count=1000, shortest=3, longest=1024, headedness="right")
    forest.tokens.row(0), forest.parents.row(0)
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from patchbench.tasks.grammar import Grammar
from patchbench.tasks.ragged import Ragged

Headedness = Literal["right", "left"]


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Sentences and their trees.

    Attributes:
        tokens: the terminals of each sentence.
        parents: position of each token's parent within the sentence, −1 for the root's head.
        depths: nonterminals on the longest path of each tree: (sentences,).
    """

    tokens: Ragged
    parents: Ragged
    depths: np.ndarray

    def __len__(self) -> int:
        return len(self.depths)

    def select(self, mask: np.ndarray) -> "Forest":
        """Return the sentences where `mask` is true."""
        return replace(
            self,
            tokens=self.tokens.select(mask),
            parents=self.parents.select(mask),
            depths=self.depths[mask],
        )


@dataclass(frozen=True, kw_only=True)
class _Level:
    """The nonterminals of all trees at one depth, and their slots.

    Attributes:
        tree: of each nonterminal.
        head: its head terminal.
        first: its first slot.
        owner: the nonterminal of each slot.
        symbol: of each slot.
        inner: the slots that the next level expands, in its order.
    """

    tree: np.ndarray
    head: np.ndarray
    first: np.ndarray
    owner: np.ndarray
    symbol: np.ndarray
    inner: np.ndarray


def grow(
    grammar: Grammar,
    rng: np.random.Generator,
    *,
    count: int,
    shortest: int,
    longest: int,
    headedness: Headedness,
) -> Forest:
    """Draw `count` sentences and return those of `shortest` to `longest` tokens.

    Trees are cut as soon as they are too long, so that memory stays within count × longest.
    """
    levels, sizes = _expand(grammar, rng, count, longest)
    forest = _lay_out(grammar, levels, count, headedness)
    return forest.select((sizes >= shortest) & (sizes <= longest))


def _expand(
    grammar: Grammar, rng: np.random.Generator, count: int, longest: int
) -> tuple[list[_Level], np.ndarray]:
    """Draw the trees from the root down; sizes are true for trees that are not too long."""
    terminals = grammar.config.num_terminals
    nonterminal = rng.integers(grammar.config.num_nonterminals, size=count)
    tree, sizes = np.arange(count), np.ones(count, np.int64)
    levels = []
    while len(nonterminal):
        rule = grammar.rules.draw(rng, nonterminal)
        head = grammar.draw_heads(rng, nonterminal)
        length = grammar.rhs_length[rule]
        first = np.cumsum(length) - length
        owner = np.repeat(np.arange(len(rule)), length)
        shift = np.repeat(grammar.rhs_start[rule] - first, length)
        symbol = grammar.rhs[np.arange(len(owner)) + shift]
        sizes += np.bincount(tree, weights=length, minlength=count).astype(np.int64)
        inner = np.flatnonzero(symbol >= terminals)
        inner_tree = tree[owner[inner]]
        growing = sizes[inner_tree] <= longest
        if not growing.all():
            inner, inner_tree = inner[growing], inner_tree[growing]
        levels.append(
            _Level(tree=tree, head=head, first=first, owner=owner, symbol=symbol, inner=inner)
        )
        nonterminal, tree = symbol[inner] - terminals, inner_tree
    return levels, sizes


def _lay_out(grammar: Grammar, levels: list[_Level], count: int, headedness: Headedness) -> Forest:
    """Give every token its place: sizes from the leaves up, positions from the root down."""
    slot_sizes, node_sizes = [], np.empty(0, np.int64)
    for level in reversed(levels):
        size = np.ones(len(level.owner), np.int64)
        size[level.inner] = node_sizes
        node_sizes = 1 + np.add.reduceat(size, level.first)
        slot_sizes.append(size)
    lengths = node_sizes
    base = np.cumsum(lengths) - lengths

    total = int(lengths.sum())
    tokens, parents = np.zeros(total, np.int32), np.full(total, -1, np.int32)
    depths = np.zeros(count, np.int32)
    start, parent = base, np.full(count, -1)
    for depth, (level, size) in enumerate(zip(levels, reversed(slot_sizes), strict=True), 1):
        depths[level.tree] = depth
        before = np.cumsum(size) - size
        ends = before + size
        within = ends[np.append(level.first[1:], len(size)) - 1] - before[level.first]
        head = start + within if headedness == "right" else start
        tokens[head] = level.head
        parents[head] = parent
        lead = 0 if headedness == "right" else 1
        place = before + (start - before[level.first] + lead)[level.owner]
        own_parent = (head - base[level.tree])[level.owner]
        leaf = level.symbol < grammar.config.num_terminals
        tokens[place[leaf]] = level.symbol[leaf]
        parents[place[leaf]] = own_parent[leaf]
        start, parent = place[level.inner], own_parent[level.inner]
    return Forest(tokens=Ragged(tokens, lengths), parents=Ragged(parents, lengths), depths=depths)
