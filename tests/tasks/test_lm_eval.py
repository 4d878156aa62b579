"""The folder for lm-evaluation-harness: well formed, and about the same rows."""

import json

import datasets
import pytest
import yaml

from patchbench.common import UserError
from patchbench.tasks import load_task
from patchbench.tasks.lm_eval import export_lm_eval
from patchbench.tasks.rendering import RenderConfig, Renderer
from tests.tasks.tiny_tokenizers import tiny_tokenizer

TASK = {"num_pairs": 3, "num_keys": 12, "num_values": 12}


@pytest.mark.parametrize("shots", [0, 1])
@pytest.mark.parametrize("make", ["byte_bpe", "byte_bpe_bos", "unigram"])
def test_rows_and_prompts(make, shots, tmp_path):
    task, tokenizer = load_task("ar", **TASK), tiny_tokenizer(make)
    config = RenderConfig(shots=shots)
    name = export_lm_eval(task, tokenizer, tmp_path / "out", config=config, n=20)
    assert name == "patchbench_ar"
    described = yaml.safe_load((tmp_path / "out" / f"{name}.yaml").read_text())
    assert described["task"] == name
    rows = datasets.load_dataset(
        described["dataset_path"], **described["dataset_kwargs"],
        split=described["test_split"], cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    assert len(rows) == 20
    prompts = Renderer(task, tokenizer, config).dataset("test", 20)
    for row, prompt in zip(rows, prompts, strict=True):
        # What the harness feeds: the context and a choice, tokenised together.
        text = row["context"] + row["choices"][row["gold"]]
        assert tokenizer(text)["input_ids"][: len(prompt["input_ids"])] == prompt["input_ids"]
        assert len(row["choices"]) == 3
        asked = row["context"].split("\n")[-1].split(":")[0].split()[-1]
        listed = dict(line.replace(":", "").split() for line in row["context"].split("\n")[-4:-1])
        assert row["choices"][row["gold"]] == " " + listed[asked]


def test_the_templates_are_the_harness_s_own(tmp_path):
    name = export_lm_eval(load_task("ar", **TASK), tiny_tokenizer("byte_bpe"), tmp_path / "o", n=2)
    text = (tmp_path / "o" / f"{name}.yaml").read_text()
    assert 'doc_to_text: "{{context}}"' in text
    assert 'doc_to_choice: "{{choices}}"' in text
    line = json.loads((tmp_path / "o" / f"{name}.jsonl").read_text().splitlines()[0])
    assert sorted(line) == ["choices", "context", "gold"]
    with pytest.raises(UserError, match="exists"):
        export_lm_eval(load_task("ar", **TASK), tiny_tokenizer("byte_bpe"), tmp_path / "o", n=2)
