"""The dataset card: what an exported task is, measured on the rows that are exported.

Use:

    text = card(task, {"test": task.dataset("test", 1024)})
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from patchbench.tasks.base import GENERATOR_VERSION, Task
from patchbench.tasks.builder import read_counts
from patchbench.tasks.catalog import load_task
from patchbench.tasks.example import CORRUPTIONS

if TYPE_CHECKING:
    from datasets import Dataset

_SCHEMA = """\
| column | meaning |
|---|---|
| `input_ids` | the whole document, the answer included |
| `labels` | −100, but for what is to be learnt; aligned with `input_ids` (not shifted) |
| `roles` | index of `bos`, `key`, `value`, `divider`, `query`, `answer` |
| `answer` | token id; a model is read out at `roles.answer` − 1 |
| `candidates` | the answers that stand in the context |
| `corruptions` | `key`, `value`, `swap`: `input_ids` of equal length with equal roles, and the \
counterfactual `answer` (−1: nothing definite). `input_ids` is [] where a twin cannot be built |
| `metadata` | what is asked, distance of key and value, tree depth, whether the two heuristics \
are right, the number of pairs that could be asked and of answers that the rule accepts, the \
tree's `parents` |
"""

_DROPPED = """\
Rows whose key or value cannot be replaced by an absent token, or whose answer stays derivable \
after that, are dropped. Long contexts are dropped more often than short ones, so that the kept \
rows are not quite the task's own distribution; `keep_uncorruptible=True` keeps all of them.
"""


def card(task: Task, splits: Mapping[str, "Dataset"]) -> str:
    """Return the card of the given splits, YAML front matter included, as Markdown."""
    return "\n".join(
        [
            _front_matter(task, splits),
            f"# {task.name}\n\n{task.description[0].upper()}{task.description[1:]}.\n",
            _example(task, next(iter(splits.values()))),
            _SCHEMA,
            "## Splits\n",
            _split_table(task, splits),
            task.variant.spread + "\n" if task.variant.spread else "",
            _DROPPED if any(read_counts(rows).dropped for rows in splits.values()) else "",
            "## Settings\n",
            f"Generator version {GENERATOR_VERSION}, seed {task.seed}:\n",
            "```json\n" + json.dumps(asdict(task.config), indent=2) + "\n```\n",
            "The same settings give the same bytes:\n",
            f"```python\n{_code(task)}\n```\n",
            f"Task: {task.source}\n" if task.source else "",
        ]
    )


def _front_matter(task: Task, splits: Mapping[str, "Dataset"]) -> str:
    rows = sum(map(len, splits.values()))
    sizes = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))
    size = next((name for limit, name in sizes if rows < limit), "n>1M")
    files = "\n".join(f"  - split: {split}\n    path: {split}.parquet" for split in splits)
    return (
        "---\n"
        f"pretty_name: {json.dumps('patchbench ' + task.name)}\n"
        "license: apache-2.0\n"
        "tags:\n- synthetic\n- interpretability\n- associative-recall\n- patchbench\n"
        f"size_categories:\n- {size}\n"
        f"configs:\n- config_name: default\n  data_files:\n{files}\n"
        "---\n"
    )


def _example(task: Task, rows: "Dataset") -> str:
    shortest = min(range(min(len(rows), 32)), key=lambda i: len(rows[i]["input_ids"]))
    row = rows[shortest]
    lines = [f"clean  {task.decode(row['input_ids'])}"]
    for name in CORRUPTIONS:
        twin = row["corruptions"][name]
        if twin["input_ids"]:
            answer = "none" if twin["answer"] < 0 else task.symbols[twin["answer"]]
            lines.append(f"{name:<6} {task.decode(twin['input_ids'])}   (rule: {answer})")
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _split_table(task: Task, splits: Mapping[str, "Dataset"]) -> str:
    floors = {split: task.heuristic_floor(rows) for split, rows in splits.items()}
    names = list(next(iter(floors.values())))
    head = ["split", "rows", "dropped", *(f"floor: {name.replace('_', ' ')}" for name in names)]
    lines = [" | ".join(head), "|".join("---" for _ in head)]
    for split, rows in splits.items():
        counts = read_counts(rows)
        cells = [split, f"{len(rows):,}", f"{counts.drop_share:.1%}"]
        lines.append(" | ".join([*cells, *(f"{floors[split][name]:.1%}" for name in names)]))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def _code(task: Task) -> str:
    default = load_task(task.name).config
    settings = [
        f", {name}={value!r}"
        for name, value in asdict(task.config).items()
        if value != getattr(default, name)
    ]
    return (
        "from patchbench.tasks import load_task\n\n"
        f"load_task({task.name!r}, seed={task.seed}{''.join(settings)})"
    )
