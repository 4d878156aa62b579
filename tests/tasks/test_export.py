"""Exported folders and the hub."""

import json
import os

import datasets
import pytest
import yaml

from patchbench.common import UserError
from patchbench.tasks import export_task, load_task, push_to_hub
from patchbench.tasks.example import features


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize("name", ["ar/tiny", "atr/easy", "atr/child", "mqar/tiny", "kv_retrieval"])
def test_load_dataset_reads_what_was_exported(name, tmp_path):
    task = load_task(name, seed=3)
    sizes = {"train": 200, "dev": 20, "test": 30}
    folder = export_task(task, tmp_path / "out", n=sizes)
    assert sorted(os.listdir(folder)) == [
        "README.md", "dev.parquet", "test.parquet", "train.parquet"
    ]  # fmt: skip
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "read"))
    assert {split: len(rows) for split, rows in loaded.items()} == sizes
    assert loaded["test"].features == features()
    for split in sizes:
        assert loaded[split].to_list() == task.dataset(split, sizes[split]).to_list()


def test_card(tmp_path):
    task = load_task("atr/easy", seed=3, num_terminals=12)
    folder = export_task(task, tmp_path / "out", splits=["test"], n=500)
    text = (folder / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter["configs"] == [
        {"config_name": "default", "data_files": [{"split": "test", "path": "test.parquet"}]}
    ]
    assert matter["size_categories"] == ["n<1K"]
    rows = task.dataset("test", 500)
    floor = task.heuristic_floor(rows)
    counts = task.counts("test", 500)
    cells = f"| test | 500 | {counts.drop_share:.1%} | {floor['next_token']:.1%} |"
    assert cells in body
    assert "keep_uncorruptible" in body
    assert "load_task('atr/easy', seed=3, num_terminals=12)" in body
    assert task.source in body
    assert json.loads(body.split("```json\n")[1].split("```")[0])["num_terminals"] == 12


def test_an_existing_folder_is_kept(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="exists"):
        export_task(load_task("ar/tiny"), out, n=4)
    assert (out / "mine.txt").read_text() == "precious"
    export_task(load_task("ar/tiny"), out, n=4, overwrite=True)
    assert not (out / "mine.txt").exists()
    assert (out / "test.parquet").exists()


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments, **settings):
        raise RuntimeError("disk full")

    monkeypatch.setattr(datasets.Dataset, "to_parquet", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        export_task(load_task("ar/tiny"), tmp_path / "out", n=4)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"splits": []}, "no split to export"),
        ({"splits": ["tset"]}, "did you mean 'test'"),
        ({"n": 0}, "at least 1 row"),
        ({"n": {"test": 0}}, "at least 1 row"),
        ({"n": {"tets": 4}}, "unknown split 'tets': did you mean 'test'"),
    ],
    ids=["none", "unknown", "zero", "zero of one", "rows of an unknown split"],
)
def test_impossible_exports(settings, message, tmp_path):
    arguments = {"n": 4, **settings}
    with pytest.raises(UserError, match=message):
        export_task(load_task("ar/tiny"), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_push_uploads_the_exported_folder(monkeypatch):
    calls = []

    class FakeApi:
        def create_repo(self, repo, **settings):
            calls.append(("create", repo, settings))
            return f"https://hub/{repo}"

        def upload_folder(self, *, folder_path, **settings):
            calls.append(("upload", sorted(os.listdir(folder_path)), settings))

    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    url = push_to_hub(load_task("ar/tiny"), "me/mini", private=True, splits=["test"], n=4)
    assert url == "https://hub/me/mini"
    assert calls == [
        ("create", "me/mini", {"repo_type": "dataset", "private": True, "exist_ok": True}),
        ("upload", ["README.md", "test.parquet"], {"repo_id": "me/mini", "repo_type": "dataset"}),
    ]


def test_push_without_a_hub_is_one_line(monkeypatch):
    class FakeApi:
        def create_repo(self, repo, **settings):
            raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.HfApi", FakeApi)
    with pytest.raises(UserError, match="me/mini cannot be uploaded") as caught:
        push_to_hub(load_task("ar/tiny"), "me/mini", splits=["test"], n=4)
    assert "\n" not in str(caught.value)
