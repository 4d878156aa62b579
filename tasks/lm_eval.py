"""A task for lm-evaluation-harness: the behavioural side alone, in the prompts used here.

Use:

    export_lm_eval(load_task("kv_retrieval"), tokenizer, "harness", n=256)
    # lm_eval --include_path harness --tasks patchbench_kv_retrieval --model hf …

It is a multiple choice among the answers in each context, so that `acc` is `accuracy_in_context`.
The words are single tokens of the given tokenizer, with which the model should be run.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from patchbench.common import fresh_directory
from patchbench.tasks.rendering import RenderConfig, Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from patchbench.tasks.base import Task

_YAML = """\
# {description}
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
# The words of the choices begin with their space.
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1
"""


def export_lm_eval(
    task: "Task",
    tokenizer: "PreTrainedTokenizerBase",
    out: str | Path,
    *,
    config: RenderConfig | None = None,
    n: int | None = None,
    overwrite: bool = False,
) -> str:
    """Write a folder for the harness's `--include_path`, which appears only when it is complete.

    Args:
        task: what to write; its test split.
        tokenizer: whose words are used.
        out: the folder.
        config: template and shots.
        n: rows; by default the split's.
        overwrite: replace an existing folder.

    Returns:
        The name of the task in the harness.

    Raises:
        UserError: the tokenizer cannot write the task, or `out` exists or cannot be written.
    """
    renderer = Renderer(task, tokenizer, config)
    name = "patchbench_" + re.sub(r"\W", "_", task.name)
    lines = []
    for row in renderer.dataset("test", n).to_list():
        # A prefix such as BOS is the harness's to add.
        start = row["roles"]["bos"] + 1
        choices = [_word(tokenizer, token) for token in row["candidates"]]
        line = {
            "context": str(tokenizer.decode(row["input_ids"][start : row["roles"]["answer"]])),
            "choices": choices,
            "gold": row["candidates"].index(row["answer"]),
        }
        lines.append(json.dumps(line, ensure_ascii=False))
    with fresh_directory(out, overwrite=overwrite) as folder:
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        # `datasets` reads paths from the working directory, which is not this folder.
        text = _YAML.format(
            name=name,
            description=f"patchbench {task.name}, seed {task.seed}: {task.description}",
            rows=json.dumps(str(Path(out).resolve() / f"{name}.jsonl")),
        )
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def _word(tokenizer: "PreTrainedTokenizerBase", token: int) -> str:
    """Return a word with the space before it, which some tokenizers leave out at a text's start."""
    return " " + str(tokenizer.decode([token])).strip()
