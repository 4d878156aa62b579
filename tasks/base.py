"""What a task is: a pure function from (config, seed, split, chunk) to examples, and a rule.

A subclass draws clean examples and states its rule twice: `solve` for one document, as plainly as
it can be said, and `derive` for many at once. Corruptions, the proof that they corrupt, and the
dataset come from here.

Use:

    class MyTask(Task):
        Config = MyConfig
        def draw(self, rng, split): ...
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from patchbench.common import UserError, near_names
from patchbench.tasks.catalog import VARIANTS, Variant
from patchbench.tasks.example import CORRUPTIONS, ROLES, Examples
from patchbench.tasks.sampling import generator

if TYPE_CHECKING:
    import datasets

PAD, BOS, EOS = 0, 1, 2
FIRST_SYMBOL = 3

ARORA = (
    "Arora et al., *Mechanistic evaluation of Transformers and state space models*, "
    "arXiv 2505.15105."
)

# Part of every dataset's cache key: raise it whenever the same arguments give other bytes.
GENERATOR_VERSION = "1.0.0"

SPLITS: Mapping[str, int] = {"train": 100_032, "dev": 1024, "test": 1024}
# They would take some 10 GB of disk.
MOST_ROWS = 10_000_000
# Streams 0 and 1 belong to the grammar and to the held-out pairs.
_STREAMS = {"train": 2, "dev": 3, "test": 4}

# A task that keeps less than one of this many candidates is taken to be impossible.
_PATIENCE = 200_000


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What became of the candidates that were drawn, in whole chunks.

    Attributes:
        drawn: candidates.
        rejected: those outside the task's distribution (too short, too long, nothing to ask).
        dropped: those inside it that cannot be corrupted; they shift the distribution.
    """

    drawn: int = 0
    rejected: int = 0
    dropped: int = 0

    @property
    def drop_share(self) -> float:
        """Dropped rows as a share of the rows of the task's distribution."""
        accepted = self.drawn - self.rejected
        return self.dropped / accepted if accepted else 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            drawn=self.drawn + other.drawn,
            rejected=self.rejected + other.rejected,
            dropped=self.dropped + other.dropped,
        )


@dataclass(frozen=True)
class Derived:
    """What the rule gives on many contexts.

    Attributes:
        count: how many different answers the rule accepts.
        answer: the answer where there is exactly one, else −1.
        accepts: whether the rule accepts the token asked about.
    """

    count: np.ndarray
    answer: np.ndarray
    accepts: np.ndarray


class Task(ABC):
    """A recall task of one config and one seed.

    Attributes:
        Config: the frozen dataclass of the family's settings.
        variants: named configs of the family; "" is the bare family name.
        source: where the task comes from, for the card.
        words: kind → the words that its symbols are rendered as; other kinds take any.
    """

    Config: ClassVar[type]
    variants: ClassVar[Mapping[str, Variant]] = {"": Variant("a task of another package")}
    roles: ClassVar[tuple[str, ...]] = ROLES
    corruptions: ClassVar[tuple[str, ...]] = CORRUPTIONS
    source: ClassVar[str] = ""
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, *, name: str, config: Any, seed: int = 0) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise UserError(f"seed={seed!r}", "an integer of at least 0 is needed")
        self.name = name
        self.config = config
        self.seed = int(seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, seed={self.seed}, config={self.config})"

    # What a family provides.

    @cached_property
    @abstractmethod
    def symbols(self) -> list[str]:
        """A readable name for every token id."""

    @cached_property
    @abstractmethod
    def kinds(self) -> dict[str, range | tuple[int, ...]]:
        """Kind of token → token ids; "special" is one of them."""

    @cached_property
    def drawn(self) -> dict[str, range | tuple[int, ...]]:
        """Kind of token → those that occur, and that a corruption may put in another's place."""
        return self.kinds

    @property
    @abstractmethod
    def max_length(self) -> int:
        """The longest possible document, in tokens."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw one chunk of clean examples (no corruptions yet).

        Returns:
            The examples, and the number of candidates they were chosen from.
        """

    @abstractmethod
    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the answers that the rule accepts for one document, ascending.

        Args:
            input_ids: a document, clean or corrupted; what follows the query is not read.
            parents: `metadata["parents"]` of the row, for tasks with trees.
        """

    @abstractmethod
    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents.

        Args:
            tokens: the values of documents with the shape of `examples.tokens`.
            examples: where the roles and the trees are read from.
            token: (rows,) asked about.
        """

    @abstractmethod
    def heuristic_floor(self, dataset: "datasets.Dataset") -> dict[str, float]:
        """Return the accuracy on `dataset` of each heuristic that does not solve the task."""

    def swappable(self, examples: Examples) -> np.ndarray:
        """Return for each token whether the value may change places with it."""
        return np.ones(len(examples.tokens.values), bool)

    @property
    def template(self) -> str:
        """The template of prompts for pretrained models; "auto" goes by the kinds of tokens."""
        return "auto"

    def longer_by(self, pair: int = 2) -> Mapping[str, int]:
        """Return how many tokens a document grows by with each setting, to say what would fit.

        Args:
            pair: tokens of a key–value pair, with what is written around it.
        """
        return {}

    # What every task has.

    @property
    def special(self) -> dict[str, int]:
        """The special tokens; "eos" divides the context from the query and ends the document."""
        return {"pad": PAD, "bos": BOS, "eos": EOS}

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return len(self.symbols)

    @property
    def variant(self) -> Variant:
        """The named config that the task was loaded by; overrides are not in it."""
        family, _, variant = self.name.partition("/")
        return VARIANTS.get(family, self.variants)[variant]

    @property
    def description(self) -> str:
        """One line on what the task is."""
        return self.variant.description

    @cached_property
    def kind_names(self) -> tuple[str, ...]:
        """The kinds, in the order that `kind_of` numbers them."""
        return tuple(self.kinds)

    @cached_property
    def kind_of(self) -> np.ndarray:
        """Token id → index into `kind_names`: (vocab_size,)."""
        table = np.empty(self.vocab_size, np.int8)
        for index, ids in enumerate(self.kinds.values()):
            table[np.asarray(ids)] = index
        return table

    def chunk(self, split: str, index: int) -> tuple[Examples, Counts]:
        """Return one chunk of corrupted and checked examples; the same on every machine.

        The length of a chunk is the family's; rows of successive chunks make up a split.
        """
        from patchbench.tasks.checks import check_examples
        from patchbench.tasks.corruptions import corrupt

        self._check_split(split)
        rng = generator(self.seed, _STREAMS[split], index)
        clean, drawn = self.draw(rng, split)
        examples = corrupt(self, clean, rng)
        check_examples(self, examples)
        counts = Counts(
            drawn=drawn, rejected=drawn - len(clean), dropped=len(clean) - len(examples)
        )
        return examples, counts

    def chunks(self, split: str) -> Iterator[tuple[Examples, Counts]]:
        """Yield the endless chunks of a split.

        Raises:
            UserError: hardly any candidate is kept.
        """
        total, rows, index = Counts(), 0, 0
        while True:
            examples, counts = self.chunk(split, index)
            total, rows, index = total + counts, rows + len(examples), index + 1
            if total.drawn > _PATIENCE * (rows + 1):
                raise UserError(
                    f"task {self.name!r} with seed {self.seed} keeps {rows} of {total.drawn} "
                    f"candidates in {split} ({total.dropped} cannot be corrupted)",
                    "choose another seed or other settings",
                )
            yield examples, counts

    def dataset(self, split: str, n: int | None = None) -> "datasets.Dataset":
        """Return the first `n` rows of a split, from the `datasets` cache if they are there.

        Args:
            split: "train", "dev" or "test".
            n: rows; by default 100,032 for train and 1,024 for dev and test. Fewer rows are a
                prefix of more.

        Raises:
            UserError: an unknown split, no rows, or a cache folder that cannot be written.
        """
        from patchbench.tasks.builder import build

        return build(self, self._check_split(split), self.rows_of(split, n))

    def counts(self, split: str, n: int | None = None) -> Counts:
        """Return what became of the candidates of `dataset(split, n)`."""
        from patchbench.tasks.builder import read_counts

        return read_counts(self.dataset(split, n))

    def rows_of(self, split: str, n: int | None) -> int:
        """Return `n`, or the split's default number of rows.

        Raises:
            UserError: `n` is no positive integer.
        """
        if n is None:
            return SPLITS[split]
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise UserError(f"n={n!r}", "at least 1 row is needed")
        if n > MOST_ROWS:
            raise UserError(f"n={n}", f"at most {MOST_ROWS:,} rows are made")
        return int(n)

    def decode(self, input_ids: Sequence[int]) -> str:
        """Return the symbols of a document, separated by spaces."""
        return " ".join(self.symbols[token] for token in input_ids)

    def _check_split(self, split: str) -> str:
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}", near_names(split, SPLITS))
        return split
