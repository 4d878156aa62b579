"""Which ordered (query, answer) pairs are kept from training.

Each pair is prohibited with a fixed probability, independently. Train and dev ask only allowed
pairs, test only prohibited ones; in the context any pair may stand.

Use:

    pairs = HeldOutPairs(seed=0, share=0.2)
    pairs.eligible("train", query, answer)      # boolean array
"""

from dataclasses import dataclass

import numpy as np

from patchbench.tasks.sampling import generator

_STREAM = 1


@dataclass(frozen=True)
class HeldOutPairs:
    """A random set of pairs of token ids, as a hash: 8192 terminals have 67 million pairs.

    Attributes:
        seed: the task's.
        share: probability that a pair is prohibited; 0 prohibits none and allows test to ask all.
    """

    seed: int
    share: float

    def prohibited(self, query: np.ndarray, answer: np.ndarray) -> np.ndarray:
        """Return whether each pair is prohibited."""
        key = generator(self.seed, _STREAM).integers(1 << 63, dtype=np.int64)
        # The finaliser of SplitMix64 (Steele, Lea and Flood 2014), once per coordinate.
        mixed = _mix(_mix(np.asarray(query).astype(np.uint64) + np.uint64(key)) ^ _odd(answer))
        return (mixed >> np.uint64(11)) < np.uint64(int(self.share * 2**53))

    def eligible(self, split: str, query: np.ndarray, answer: np.ndarray) -> np.ndarray:
        """Return whether each pair may be asked in `split`."""
        if self.share == 0:
            return np.ones(np.shape(query), bool)
        prohibited = self.prohibited(query, answer)
        return prohibited if split == "test" else ~prohibited


def _odd(value: np.ndarray) -> np.ndarray:
    return np.asarray(value).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
