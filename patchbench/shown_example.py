"""One example in words that a reader can look at, for reports.

Use:

    shown = first_example(dataset, task, tokenizer=None, template="symbolic")
    shown["tokens"], shown["roles"]["value"], shown["corruptions"]["key"]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

    from patchbench.tasks import Task

# Many solved documents in front would be most of a report.
MOST_TOKENS = 512


def first_example(
    dataset: "Dataset", task: "Task", *, tokenizer: Any, template: str | None
) -> dict[str, Any] | None:
    """Return the first row in words, up to its answer; None if it has too many tokens to look at.

    Args:
        dataset: rows as the model reads them.
        task: names the tokens of its own vocabulary by kind and number ("k3" is key 3).
        tokenizer: writes all others.
        template: how the rows are written.
    """
    row = dataset[0]
    end = row["roles"]["answer"] + 1
    if end > MOST_TOKENS:
        return None

    def words(ids: list[int]) -> list[str]:
        if template == "symbolic" or tokenizer is None:
            return [_name(task, token) for token in ids[:end]]
        return [tokenizer.decode([token]) for token in ids[:end]]

    return {
        "tokens": words(row["input_ids"]),
        "roles": {name: index for name, index in row["roles"].items() if 0 <= index < end},
        "corruptions": {
            name: words(twin["input_ids"])
            for name, twin in row["corruptions"].items()
            if twin is not None
        },
    }


def _name(task: "Task", token: int) -> str:
    for kind, ids in task.kinds.items():
        if token in ids:
            return f"{kind[0]}{ids.index(token)}"
    return str(token)
