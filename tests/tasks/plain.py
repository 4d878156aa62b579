"""A task's grammar in the plain form of the oracle."""

from patchbench.tasks.grammar import Grammar


def plain_grammar(grammar: Grammar) -> list:
    """Return per nonterminal its rules and head probabilities as lists and tuples."""
    terminals = grammar.config.num_terminals
    plain = []
    for nonterminal in range(grammar.config.num_nonterminals):
        first = int(grammar.rules.first[nonterminal])
        sides = []
        for rule, p in enumerate(grammar.rules.probabilities(nonterminal), first):
            start, length = grammar.rhs_start[rule], grammar.rhs_length[rule]
            side = [
                int(s) if s < terminals else ("N", int(s) - terminals)
                for s in grammar.rhs[start : start + length]
            ]
            sides.append((float(p), side))
        if grammar.config.heads == "private":
            heads = [float(i == grammar.private_heads[nonterminal]) for i in range(terminals)]
        elif grammar.head_distribution is None:
            heads = [1 / terminals] * terminals
        else:
            heads = grammar.head_distribution.probabilities(nonterminal).tolist()
        plain.append({"rules": sides, "heads": heads})
    return plain
