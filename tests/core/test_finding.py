"""Which Results a pattern names, and under what names."""

import shutil
from pathlib import Path

import pytest

from patchbench.common import UserError
from patchbench.finding import find_results
from tests.core.report.made import result


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "result"
    result().save(folder, report=False)
    return folder


@pytest.fixture
def runs(saved, tmp_path):
    """Two trainings side by side, and one a level deeper."""
    for place in ("a/result", "b/result", "sweep/runs/c/result"):
        shutil.copytree(saved, tmp_path / place)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["."], ["a", "b", "sweep/runs/c"]),
        (["a", "b"], ["a", "b"]),
        (["b", "a"], ["b", "a"]),
        (["**"], ["a", "b", "sweep/runs/c"]),
        (["a/result/result.json"], ["a"]),
        (["sweep/runs/*"], ["c"]),
    ],
    ids=" ".join,
)
def test_folders_globs_and_files(runs, monkeypatch, patterns, names):
    monkeypatch.chdir(runs)
    assert list(find_results(patterns)) == names


def test_a_run_is_found_once_by_whatever_path(runs, monkeypatch):
    monkeypatch.chdir(runs)
    (runs / "again").symlink_to(runs / "a")
    assert list(find_results(["a", "a/", "./a/result", str(runs / "a"), "again"])) == ["a"]


@pytest.mark.parametrize("pattern", [".", "a", "**", "*/*/result.json", "**/result.json", "*/*/*"])
def test_what_a_run_is_read_against_is_no_further_run(runs, saved, monkeypatch, pattern):
    monkeypatch.chdir(runs)
    for name in ("dev", "untrained"):
        shutil.copytree(saved, runs / "a" / "result" / name)
    inner = find_results(["a/result/dev"]), find_results(["a/result/dev/result.json"])
    assert [list(found.values()) for found in inner] == [[Path("a/result/dev")]] * 2
    found = [path.name for path in find_results([pattern]).values()]
    assert not {"dev", "untrained"} & set(found)
    assert "result" in found


def test_a_run_called_dev_by_itself_counts(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "dev")
    assert list(find_results([str(tmp_path)]).values()) == [tmp_path / "dev"]


def test_what_is_being_written_is_no_run(runs, saved, monkeypatch):
    monkeypatch.chdir(runs)
    shutil.copytree(saved, runs / "a" / ".result.partial" / "deep")
    shutil.copytree(saved, runs / ".half")
    assert list(find_results(["a", "."])) == ["a", "b", "sweep/runs/c"]


def test_a_folder_below_a_hidden_one_counts_when_it_is_named(saved, tmp_path):
    shutil.copytree(saved, tmp_path / ".cache" / "run")
    assert len(find_results([str(tmp_path / ".cache")])) == 1


def test_what_holds_no_run(runs):
    (runs / "empty").mkdir()
    with pytest.raises(UserError, match="holds no Result"):
        find_results([str(runs / "empty")])
    with pytest.raises(UserError, match="matches no folder"):
        find_results([str(runs / "nothing*")])
