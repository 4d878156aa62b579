"""The tasks once more, slow and obvious, with nothing of the package in them.

A grammar here is a list with, per nonterminal, its rules [(probability, right-hand side)] and its
head probabilities; in a right-hand side terminals are integers and nonterminals ("N", index).
A sentence is a list of tokens and the list of their parents' positions (None for the root).
"""

import itertools
import math
import random
from collections import defaultdict

BOS, EOS = "BOS", "EOS"


# Associative recall.


def ar_document(rng: random.Random, pairs: int, keys: int, values: int) -> list:
    """Draw a document: BOS ("k", 3) ("v", 8) … EOS ("k", 3) ("v", 8) EOS."""
    drawn_keys = rng.sample(range(keys), pairs)
    drawn_values = rng.sample(range(values), pairs)
    document = [BOS]
    for key, value in zip(drawn_keys, drawn_values, strict=True):
        document += [("k", key), ("v", value)]
    asked = rng.randrange(pairs)
    return [*document, EOS, ("k", drawn_keys[asked]), ("v", drawn_values[asked]), EOS]


# Associative treecall: sampling.


def draw_grammar(rng: random.Random, terminals, nonterminals, max_rhs, max_rules, depth) -> list:
    """Draw a grammar by the definition, every terminal of weight 1."""
    levels = [rng.randint(1, depth) for _ in range(nonterminals)]
    grammar = []
    for level in levels:
        deeper = [("N", i) for i in range(nonterminals) if levels[i] > level]
        symbols = list(range(terminals)) + deeper
        sides = [
            [rng.choice(symbols) for _ in range(rng.randint(1, max_rhs - 1))]
            for _ in range(rng.randint(1, max_rules))
        ]
        grammar.append(
            {
                "level": level,
                "rules": list(zip(_flat_dirichlet(rng, len(sides)), sides, strict=True)),
                "heads": _flat_dirichlet(rng, terminals),
            }
        )
    return grammar


def _flat_dirichlet(rng: random.Random, size: int) -> list[float]:
    weights = [rng.expovariate(1) for _ in range(size)]
    return [weight / sum(weights) for weight in weights]


def cumulated(grammar: list) -> list:
    """Return the grammar in the form that `sentence` reads."""
    return [
        (
            [side for _, side in entry["rules"]],
            list(itertools.accumulate(p for p, _ in entry["rules"])),
            list(itertools.accumulate(entry["heads"])),
        )
        for entry in grammar
    ]


def sentence(rng: random.Random, grammar: list, headedness: str) -> tuple[list, list]:
    """Draw a sentence from a cumulated grammar, nonterminal by nonterminal."""
    tokens, parents = [], []

    def expand(nonterminal: int) -> int:
        """Emit a nonterminal and return its head's position."""
        sides, rule_weights, head_weights = grammar[nonterminal]
        side = rng.choices(sides, cum_weights=rule_weights)[0]
        head = rng.choices(range(len(head_weights)), cum_weights=head_weights)[0]
        place = None
        if headedness == "left":
            place = len(tokens)
            tokens.append(head)
            parents.append(None)
        children = []
        for symbol in side:
            if isinstance(symbol, tuple):
                children.append(expand(symbol[1]))
            else:
                children.append(len(tokens))
                tokens.append(symbol)
                parents.append(None)
        if place is None:
            place = len(tokens)
            tokens.append(head)
            parents.append(None)
        for child in children:
            parents[child] = place
        return place

    expand(rng.randrange(len(grammar)))
    return tokens, parents


def eligible_pairs(tokens: list, parents: list, kind: str) -> list[tuple[int, int]]:
    """Return every (query, answer) pair of positions that may be asked."""
    last = {token: place for place, token in enumerate(tokens)}
    children = defaultdict(list)
    for place, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(place)
    pairs = []
    for query, parent in enumerate(parents):
        if last[tokens[query]] != query:
            continue
        if kind == "child":
            pairs += [(query, child) for child in children[query]]
        elif parent is None:
            continue
        elif kind == "parent":
            pairs.append((query, parent))
        else:
            siblings = [child for child in children[parent] if child != query]
            if siblings and last[tokens[siblings[-1]]] == siblings[-1]:
                pairs.append((query, siblings[-1]))
    return pairs


def atr_document(rng: random.Random, grammar: list, kind="parent", headedness="right") -> dict:
    """Draw a document from a cumulated grammar."""
    while True:
        tokens, parents = sentence(rng, grammar, headedness)
        if not 3 <= len(tokens) <= 1024:
            continue
        pairs = eligible_pairs(tokens, parents, kind)
        if not pairs:
            continue
        answer = rng.choice(sorted({a for _, a in pairs}))
        query = rng.choice([q for q, a in pairs if a == answer])
        return {
            "document": [BOS, *tokens, EOS, tokens[query], tokens[answer], EOS],
            "tokens": tokens,
            "parents": parents,
            "key": query,
            "value": answer,
        }


# Associative treecall: exact enumeration.


def enumerate_sentences(grammar: list, headedness: str) -> list[tuple[float, tuple, tuple]]:
    """Return (probability, tokens, parents) of every derivation of a small grammar."""

    def derivations(nonterminal: int) -> list:
        """Return (probability, tokens, parents relative to the first token, head's place)."""
        found = []
        for rule_p, side in grammar[nonterminal]["rules"]:
            parts = [
                derivations(symbol[1])
                if isinstance(symbol, tuple)
                else [(1.0, (symbol,), (None,), 0)]
                for symbol in side
            ]
            for head, head_p in enumerate(grammar[nonterminal]["heads"]):
                for choice in itertools.product(*parts):
                    found.append(_join(choice, head, rule_p * head_p, headedness))
        return found

    return [
        (p / len(grammar), tokens, parents)
        for nonterminal in range(len(grammar))
        for p, tokens, parents, _ in derivations(nonterminal)
    ]


def _join(choice: tuple, head: int, probability: float, headedness: str) -> tuple:
    tokens, parents, tops = [], [], []
    if headedness == "left":
        tokens, parents = [head], [None]
    for p, part, up, top in choice:
        offset = len(tokens)
        probability *= p
        tokens += part
        parents += [None if parent is None else parent + offset for parent in up]
        tops.append(top + offset)
    place = 0
    if headedness == "right":
        place = len(tokens)
        tokens.append(head)
        parents.append(None)
    for top in tops:
        parents[top] = place
    return probability, tuple(tokens), tuple(parents), place


def enumerate_documents(
    grammar: list, kind: str, headedness: str, shortest: int = 3
) -> dict[tuple, float]:
    """Return the exact probability of every (tokens, parents, key, value)."""
    weights: dict[tuple, float] = defaultdict(float)
    for p, tokens, parents in enumerate_sentences(grammar, headedness):
        pairs = eligible_pairs(list(tokens), list(parents), kind)
        if len(tokens) < shortest or not pairs:
            continue
        answers = {a for _, a in pairs}
        for query, answer in pairs:
            sharing = sum(a == answer for _, a in pairs)
            weights[tokens, parents, query, answer] += p / len(answers) / sharing
    total = math.fsum(weights.values())
    return {outcome: weight / total for outcome, weight in weights.items()}


# The rule, for one document of either task.


def recall(context: list[int], query: int, reverse: bool = False) -> set[int]:
    """Return what stands beside the query in a list of pairs."""
    pairs = list(zip(context[::2], context[1::2], strict=True))
    if reverse:
        return {key for key, value in pairs if value == query}
    return {value for key, value in pairs if key == query}


def treecall(tokens: list[int], parents: list, query: int, kind: str) -> set[int]:
    """Return what is related to the rightmost occurrence of the query (parents: None for none)."""
    key = max((i for i, token in enumerate(tokens) if token == query), default=None)
    if key is None:
        return set()
    if kind == "child":
        return {tokens[i] for i, parent in enumerate(parents) if parent == key}
    if parents[key] is None:
        return set()
    if kind == "parent":
        return {tokens[parents[key]]}
    siblings = [i for i, parent in enumerate(parents) if parent == parents[key] and i != key]
    return {tokens[siblings[-1]]} if siblings else set()


# Corrupted twins, by trying.


def ar_row(rng: random.Random, pairs: int, keys: int, values: int) -> dict:
    """Draw a whole row of associative recall."""
    document = ar_document(rng, pairs, keys, values)
    query, answer = document[-3], document[-2]
    key, value = document.index(query), document.index(answer)
    absent_key = absent_value = document[0]
    while absent_key in document:
        absent_key = ("k", rng.randrange(keys))
    while absent_value in document:
        absent_value = ("v", rng.randrange(values))
    partner = rng.choice([i for i in range(2, 2 * pairs + 1, 2) if i != value])
    return {
        "input_ids": document,
        "labels": [-100] * (len(document) - 2) + [answer, -100],
        "roles": {"key": key, "value": value},
        "candidates": document[2 : 2 * pairs + 1 : 2],
        "key": _with(document, {key: absent_key}),
        "value": _with(document, {value: absent_value}),
        "swap": _with(document, {value: document[partner], partner: answer}),
    }


def atr_row(rng: random.Random, grammar: list, kind="parent", headedness="right") -> dict:
    """Draw a whole row of associative treecall; sentences that cannot be corrupted are redrawn."""
    while True:
        found = atr_document(rng, grammar, kind, headedness)
        tokens, parents, key, value = (found[n] for n in ("tokens", "parents", "key", "value"))
        query, answer = tokens[key], tokens[value]
        present, alphabet = set(tokens), len(grammar[0][2])
        if len(present) == alphabet:
            continue
        absent = [tokens[0], tokens[0]]
        while absent[0] in present:
            absent[0] = rng.randrange(alphabet)
        while absent[1] in present:
            absent[1] = rng.randrange(alphabet)
        other_key = _with(tokens, {key: absent[0]})
        other_value = _with(tokens, {value: absent[1]})
        if any(answer in treecall(twin, parents, query, kind) for twin in (other_key, other_value)):
            continue
        swaps = []
        for place, token in enumerate(tokens):
            if token not in (query, answer) and place != key:
                swaps.append(_with(tokens, {value: token, place: answer}))
        document = found["document"]
        return {
            "input_ids": document,
            "labels": [-100] * (len(document) - 2) + [answer, -100],
            "roles": {"key": key, "value": value},
            "candidates": sorted(present),
            "next": tokens[(key + 1) % len(tokens)] == answer,
            "last": tokens[-1] == answer,
            "key": [BOS, *other_key, *document[len(tokens) + 1 :]],
            "value": [BOS, *other_value, *document[len(tokens) + 1 :]],
            "swap": rng.choice(swaps) if swaps else [],
            "parents": parents,
        }


def _with(tokens: list, new: dict) -> list:
    return [new.get(place, token) for place, token in enumerate(tokens)]
