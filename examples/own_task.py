"""A task of one's own: recall where the *last* pair with a key counts, and overwrites earlier ones.

The new rule is a few lines; the corruptions, their proof, the files and the command line come from
`Task`. In a package, an entry point makes it known (see the README); here a decorator does.

    python examples/own_task.py
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

import patchbench as pb
from patchbench.tasks import TASKS, Examples, Variant
from patchbench.tasks.ar import ARTask
from patchbench.tasks.base import EOS, Derived


@TASKS.register("overwritten")
class Overwritten(ARTask):
    """Associative recall whose second half repeats the keys of the first with new values."""

    variants: ClassVar = {"": Variant("recall of the newest value of a key", {"num_pairs": 4})}
    source: ClassVar = "an example of patchbench."

    def draw(self, rng: np.random.Generator, split: str) -> tuple[Examples, int]:
        """Draw lists, and give the first half the keys of the second; the second is asked."""
        examples, drawn = super().draw(rng, split)
        half = self.config.num_pairs // 2
        examples = examples.select(examples.roles["key"] > 2 * half)
        documents = examples.tokens.values.reshape(len(examples), -1)
        documents[:, 1 : 2 * half : 2] = documents[:, 1 + 2 * half : 1 + 4 * half : 2]
        return examples, drawn

    def solve(self, input_ids: Sequence[int], parents: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the value after the query's last occurrence in the list."""
        divider = list(input_ids).index(EOS)
        places = [i for i in range(1, divider, 2) if input_ids[i] == input_ids[divider + 1]]
        return (int(input_ids[places[-1] + 1]),) if places else ()

    def derive(self, tokens: np.ndarray, examples: Examples, token: np.ndarray) -> Derived:
        """Apply the rule to many documents."""
        documents = tokens.reshape(-1, self.max_length)
        pairs = documents[:, 1:-4].reshape(len(documents), -1, 2)[:, ::-1]
        matches = pairs[:, :, 0] == documents[:, -3:-2]
        found, row = matches.any(axis=1), np.arange(len(documents))
        answer = np.where(found, pairs[row, matches.argmax(axis=1), 1], -1)
        return Derived(count=found.astype(np.int32), answer=answer, accepts=answer == token)


def main(n: int = 32) -> pb.Result:
    """Ask a model that was trained on plain recall, and print a document and how it does."""
    task = pb.load_task("overwritten", num_keys=64, num_values=64)
    print(task.decode(task.dataset("test", n)[0]["input_ids"]))
    result = pb.evaluate("patchbench/ar-attention", task, n=n)
    print("accuracy", result.accuracy, "·", result.verdict)
    return result


if __name__ == "__main__":
    main()
