"""Names of tasks: the listing, mistakes, and tasks of other packages."""

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from patchbench.common import UserError
from patchbench.tasks import TASKS, Task, Variant, list_tasks, load_task
from patchbench.tasks.ar import ARConfig, ARTask
from patchbench.tasks.catalog import VARIANTS

NAMES = [
    "ar", "ar/held_out", "ar/mini", "ar/reverse", "ar/tiny",
    "atr/child", "atr/easy", "atr/held_out", "atr/large_vocab", "atr/left", "atr/medium",
    "atr/sibling", "atr/uniform_heads",
    "induction", "induction/tiny",
    "inverse_match", "inverse_match/forward", "inverse_match/tiny",
    "joint_recall", "joint_recall/tiny", "kv_retrieval", "kv_retrieval/sentences",
    "mqar", "mqar/128", "mqar/256", "mqar/512", "mqar/tiny",
]  # fmt: skip


def test_every_task_is_listed_and_loads():
    infos = [info for info in list_tasks() if info.name.split("/")[0] in VARIANTS]
    assert [info.name for info in infos] == NAMES
    for info in infos:
        task = load_task(info.name)
        assert isinstance(task, Task)
        assert (task.name, task.description) == (info.name, info.description)
        assert len(info.description) < 100


def test_listing_imports_nothing_heavy():
    code = (
        "import sys; from patchbench.tasks import list_tasks; list_tasks()\n"
        "print([m for m in ('numpy', 'pyarrow', 'datasets', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arr", "unknown task 'arr': did you mean 'ar'"),
        ("atr/eazy", "did you mean 'atr/easy'"),
        ("ar/", "unknown task 'ar/'|^$"),
        ("", "unknown task ''"),
    ],
)
def test_unknown_tasks(name, message):
    if name == "ar/":
        assert load_task(name).config == load_task("ar").config
        return
    with pytest.raises(UserError, match=message):
        load_task(name)


@dataclass(frozen=True, kw_only=True)
class Settings(ARConfig):
    num_pairs: int = 3
    num_keys: int = 8
    num_values: int = 8


def test_another_package_adds_a_task(monkeypatch, tmp_path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(TASKS, "_targets", dict(TASKS._targets))

    @TASKS.register("theirs")
    class Theirs(ARTask):
        Config = Settings
        variants: ClassVar = {
            "": Variant("a test"),
            "five": Variant("with five pairs", {"num_pairs": 5}),
        }

    assert [info.name for info in list_tasks()][-2:] == ["theirs", "theirs/five"]
    task = load_task("theirs/five", num_keys=9)
    assert task.description == "with five pairs"
    assert len(task.dataset("test", 4)[0]["input_ids"]) == 15
    with pytest.raises(UserError, match="did you mean 'theirs/five'"):
        load_task("theirs/fife")


def test_the_bare_family_name_of_treecall_is_its_easy_variant():
    assert load_task("atr", seed=3).name == "atr/easy"


@pytest.mark.parametrize("name", [None, 5])
def test_a_task_is_a_name(name):
    with pytest.raises(UserError, match="is no task: give its name"):
        load_task(name)
