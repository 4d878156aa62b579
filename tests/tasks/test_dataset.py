"""Rows as `datasets`: the same bytes, prefixes, disjoint splits, a cache that never lies."""

import hashlib
import json
import os
import subprocess
import sys

import datasets
import pytest

from patchbench.common import UserError
from patchbench.tasks import builder as builder_module
from patchbench.tasks import export_task, load_task
from patchbench.tasks.example import CORRUPTIONS, METADATA, ROLES, features

# Changing one of these means that published results can no longer be regenerated: raise
# GENERATOR_VERSION together with it.
DIGESTS = {
    "ar": "51f5bb5e71e275ac",
    "ar/held_out": "8decab6502c0f0eb",
    "ar/tiny": "59ac7280bf2fc6a4",
    "ar/reverse": "fed5f43237404f6a",
    "atr/child": "6aae52c8314ab860",
    "atr/easy": "524343af576b233f",
    "atr/held_out": "d5ed192ce78cd79b",
    "atr/large_vocab": "acfd73000212484a",
    "atr/left": "d79b20ebd206de20",
    "atr/medium": "2522a68db090ef30",
    "atr/sibling": "168f2b660999bfc1",
    "atr/uniform_heads": "62418eacf91d79ec",
    "induction": "14ad41dc4ef8e3fc",
    "induction/tiny": "c27f3a00b2910e30",
    "inverse_match": "62edda52c2e39126",
    "inverse_match/forward": "695a07304f65c4f7",
    "joint_recall": "fa2ea40b106d0c50",
    "kv_retrieval": "46c50946da3df3cb",
    "mqar": "980dbaef398a1968",
    "mqar/512": "d155fc3c1ed75965",
}


def digest(name):
    """Return a digest of 64 rows as JSON: independent of Arrow's and NumPy's own formats."""
    rows = load_task(name, seed=0).dataset("test", 64).to_list()
    text = json.dumps(rows, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_bytes_are_the_same_on_every_machine(name):
    assert digest(name) == DIGESTS[name]


def test_schema():
    rows = load_task("atr/easy").dataset("test", 4)
    assert rows.features == features()
    assert list(rows[0]) == [
        "input_ids", "labels", "roles", "answer", "candidates", "corruptions", "metadata"
    ]  # fmt: skip
    assert list(rows[0]["roles"]) == list(ROLES)
    assert list(rows[0]["corruptions"]) == list(CORRUPTIONS)
    assert list(rows[0]["metadata"]) == [*METADATA, "parents"]


@pytest.mark.parametrize("name", ["ar", "atr/easy"])
def test_fewer_rows_are_a_prefix_of_more(name):
    task = load_task(name)
    # Chunks have at most 8,192 candidates: the larger set spans three.
    many = task.dataset("train", 17_000)
    assert len(many) == 17_000
    for n in (1, 100, 9000):
        some = task.dataset("train", n)
        assert len(some) == n
        assert some[n - 1] == many[n - 1]
        assert some[0] == many[0]
    assert many[8191] != many[0]


@pytest.mark.parametrize("name", ["ar", "atr/large_vocab"])
def test_splits_and_seeds_share_no_document(name):
    documents = [
        set(map(tuple, load_task(name, seed=seed).dataset(split, 1000)["input_ids"]))
        for seed in (0, 1)
        for split in ("train", "dev", "test")
    ]
    # Short sentences of one grammar recur by chance; whole streams would share everything.
    for i, first in enumerate(documents):
        for second in documents[:i]:
            assert len(first & second) < 0.2 * len(first)


def test_default_sizes():
    task = load_task("ar/tiny")
    assert (len(task.dataset("dev")), len(task.dataset("test"))) == (1024, 1024)
    assert task.rows_of("train", None) == 100_032


def test_rows_are_read_from_the_cache(monkeypatch):
    task = load_task("ar/tiny")
    first = task.dataset("test", 16).to_list()
    monkeypatch.setattr(type(task), "draw", None)  # would fail
    assert load_task("ar/tiny").dataset("test", 16).to_list() == first


def test_the_cache_keeps_apart_what_differs(monkeypatch):
    base = load_task("ar/tiny")
    seen = [base.dataset("test", 16).to_list()]
    for task, split in (
        (load_task("ar/tiny", seed=1), "test"),
        (load_task("ar/tiny", num_keys=17), "test"),
        (load_task("ar/tiny", reverse=True), "test"),
        (base, "dev"),
    ):
        rows = task.dataset(split, 16).to_list()
        assert rows not in seen
        seen.append(rows)
    names = builder_module.cache_names(base, "test", 16)
    monkeypatch.setattr(builder_module, "GENERATOR_VERSION", "9.9.9")
    assert builder_module.cache_names(base, "test", 16)["hash"] != names["hash"]


def test_an_edited_task_of_another_package_makes_new_rows(tmp_path):
    """The same module, class and arguments in a new process: only the code is another."""
    module = tmp_path / "theirs.py"
    code = (
        "from patchbench.tasks.ar import ARTask\n"
        "class Theirs(ARTask):\n"
        "    def draw(self, rng, split):\n"
        "        rng.integers(9, size={})\n"
        "        return super().draw(rng, split)\n"
    )
    use = (
        "from theirs import Theirs; from patchbench.tasks.ar import ARConfig\n"
        "task = Theirs(name='theirs', config=ARConfig(num_pairs=4), seed=0)\n"
        "print(task.dataset('test', 4)['input_ids'][:])"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    rows = []
    for size in (1, 1, 2):
        module.write_text(code.format(size))
        done = subprocess.run(
            [sys.executable, "-B", "-c", use], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        rows.append(done.stdout)
    assert rows[0] == rows[1] != rows[2]


def test_two_processes_may_build_the_same_rows(tmp_path):
    code = (
        "from patchbench.tasks import load_task; import hashlib\n"
        "rows = load_task('atr/easy').dataset('train', 5000)\n"
        "print(len(rows), hashlib.sha256(str(rows[4999]).encode()).hexdigest())"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "shared")}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("5000 ")


def test_counts_are_stored_with_the_rows():
    task = load_task("atr/easy")
    counts = task.counts("test", 100)
    assert counts == task.chunk("test", 0)[1]
    assert counts == load_task("atr/easy").counts("test", 100)
    assert (counts.drawn, counts.rejected > 0, counts.dropped > 0) == (8192, True, True)
    assert counts.drop_share == counts.dropped / (counts.drawn - counts.rejected)


def test_nothing_is_printed(capfd, tmp_path):
    export_task(load_task("ar/tiny"), tmp_path / "out", n=4)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize(
    ("split", "n", "message"),
    [
        ("validation", 4, "unknown split 'validation': known: dev, test, train"),
        ("test", 0, "n=0: at least 1 row is needed"),
        ("test", -1, "n=-1"),
        ("test", 2.5, "n=2.5"),
        ("test", True, "n=True"),
    ],
)
def test_impossible_rows(split, n, message):
    with pytest.raises(UserError, match=message):
        load_task("ar/tiny").dataset(split, n)


@pytest.mark.parametrize("seed", [-1, "zero", 1.5, True])
def test_impossible_seeds(seed):
    with pytest.raises(UserError, match="an integer of at least 0 is needed"):
        load_task("ar/tiny", seed=seed)


def test_a_cache_that_is_a_file_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    with pytest.raises(UserError, match="set HF_DATASETS_CACHE"):
        load_task("ar/tiny").dataset("test", 4)


def test_trainer_style_tensors():
    torch_rows = load_task("ar/tiny").dataset("test", 8).with_format("torch")
    batch = torch_rows[:8]["input_ids"]
    assert batch.shape == (8, 13)
