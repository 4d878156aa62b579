"""The rules of the tasks with lists once more, by plain search, with nothing of the package."""

from fractions import Fraction
from itertools import pairwise, permutations


def followers(context: list[int], query: int) -> set[int]:
    """Induction: what follows the query somewhere."""
    return {b for a, b in pairwise(context) if a == query}


def in_block(context: list[int], is_context, asked: int, key: int) -> set[int]:
    """Joint recall: the tokens after the key while the last context token was the asked one."""
    found, now = set(), None
    for place, token in enumerate(context):
        if is_context(token):
            now = token
        elif token == key and now == asked:
            found.add(context[place + 1])
    return found


def after_sequence(context: list[int], sequence: list[int]) -> set[int]:
    """Inverse matching: what follows the sequence as it stands."""
    text = " " + " ".join(map(str, context)) + " "
    wanted = " " + " ".join(map(str, sequence)) + " "
    found, place = set(), text.find(wanted)
    while place >= 0:
        found.add(int(text[place + len(wanted) :].split()[0]))
        place = text.find(wanted, place + 1)
    return found


def gap_probabilities(places: int, pairs: int, power: float) -> dict[tuple, float]:
    """Multi-query recall: the probability of the gaps of all keys, drawn one after the other."""
    weights = [Fraction((gap + 1) ** (power - 1)) for gap in range(places)]
    found = {}
    for gaps in permutations(range(places), pairs):
        p, left = Fraction(1), sum(weights)
        for gap in gaps:
            p *= weights[gap] / left
            left -= weights[gap]
        found[gaps] = float(p)
    return found
