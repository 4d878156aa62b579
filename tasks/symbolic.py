"""A task's rows in its own token ids, for a model that was trained on them.

Use:

    rows = symbolic_rows(task, "test", 256, vocab_size=8196, max_positions=None)
"""

from typing import TYPE_CHECKING

from patchbench.common import UserError
from patchbench.tasks.fitting import fewer_symbols, longest_context, shorter_documents
from patchbench.tasks.reading import read_examples

if TYPE_CHECKING:
    from datasets import Dataset

    from patchbench.tasks.base import Task


def symbolic_rows(
    task: "Task", split: str, n: int | None, *, vocab_size: int, max_positions: int | None
) -> "Dataset":
    """Return the rows of `task.dataset(split, n)`, if a model can read them.

    Args:
        task: the task.
        split: "train", "dev" or "test".
        n: rows.
        vocab_size: token ids that the model knows.
        max_positions: tokens that it can read, None if it does not matter. What follows the answer
            is not counted: it need not be read.

    Raises:
        UserError: the model has too few tokens or positions.
    """
    if vocab_size < task.vocab_size:
        special = len(task.kinds["special"])
        raise UserError(
            f"task {task.name!r} has {task.vocab_size} tokens, the model {vocab_size}",
            fewer_symbols(task, room=vocab_size - special, needed=task.vocab_size - special),
        )
    dataset = task.dataset(split, n)
    if max_positions is not None:
        examples = read_examples(dataset)
        longest = int(examples.roles["answer"].max()) + 1
        if longest > max_positions:
            raise UserError(
                f"the longest document of task {task.name!r} has {longest} tokens, the model reads "
                f"{max_positions}",
                shorter_documents(
                    task, excess=longest - max_positions, context=longest_context(examples)
                ),
            )
    return dataset
