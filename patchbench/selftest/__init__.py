"""Models whose mechanism is known, and whether the verdict on them is right.

Use:

    for outcome in run(seeds=1):
        outcome.name, outcome.expected, outcome.verdict.label, outcome.passed
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.mechanism import Verdict

__all__ = ["CASES", "Case", "Outcome", "run"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A hand-built model and the verdict that it must get.

    Attributes:
        model: of `patchbench.selftest.models`.
        idle: layers that do nothing; see there.
        expected: the label.
    """

    model: str
    idle: Sequence[int] = ()
    expected: str


CASES = (
    Case(model="induction", expected="induction"),
    Case(model="induction", idle=(1, 1, 1), expected="induction"),
    Case(model="direct", expected="direct retrieval, early"),
    Case(model="direct", idle=(1, 3), expected="direct retrieval, early"),
    Case(model="direct", idle=(3, 1), expected="direct retrieval, late"),
    Case(model="conv_bound", expected="conv-bound induction"),
    Case(model="conv_bound", idle=(1, 1), expected="conv-bound induction"),
    Case(model="no_context", expected="not solved"),
)
# (keys and values, width above the least)
SIZES = ((6, 0), (12, 9), (24, 40))
PAIRS = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the verdict on one model was.

    Attributes:
        name: of the model, with its number of layers.
        symbols: keys, and as many values.
        width: of the residual stream.
    """

    name: str
    symbols: int
    width: int
    seed: int
    expected: str
    accuracy: Estimate
    verdict: "Verdict"

    @property
    def passed(self) -> bool:
        """Whether the label is the expected one, and the accuracy is 1 where the task is solved."""
        exact = self.accuracy.value == 1.0 or self.expected == "not solved"
        return exact and self.verdict.label == self.expected


def run(
    *,
    seeds: int = 1,
    n: int = 64,
    cases: Sequence[Case] = CASES,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Outcome]:
    """Build each case in several vocabularies, widths and seeds, and evaluate it.

    Args:
        seeds: rotations (and tasks) of each.
        n: examples.
        cases: which.
        progress: called with (models done, models in all).
    """
    from patchbench.evaluation import evaluate
    from patchbench.selftest.models import build, least_width
    from patchbench.tasks import load_task

    jobs = [(case, size, seed) for case in cases for size in SIZES for seed in range(seeds)]
    for done, (case, (symbols, more), seed) in enumerate(jobs):
        if progress is not None:
            progress(done, len(jobs))
        task = load_task("ar", num_pairs=PAIRS, num_keys=symbols, num_values=symbols, seed=seed)
        shape = {"vocab_size": task.vocab_size, "length": 2 * PAIRS + 5}
        width = least_width(case.model, **shape) + more
        model = build(case.model, **shape, width=width, seed=seed, idle=case.idle)
        convolves = case.model in ("direct", "conv_bound")
        result = evaluate(
            model,
            task,
            n=n,
            corruptions=("key", "value"),
            components=("block_input", "conv_output") if convolves else ("block_input",),
            positions=("key", "value", "value+1", "value+2", "query"),
            selfcheck=False,
        )
        yield Outcome(
            name=f"{case.model}, {model.config.num_hidden_layers} layers",
            symbols=symbols,
            width=width,
            seed=seed,
            expected=case.expected,
            accuracy=result.accuracy,
            verdict=result.verdict,
        )
