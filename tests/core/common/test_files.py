"""Files and folders appear whole or not at all, and nobody's work is lost."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from patchbench.common import UserError, atomic_write, fresh_directory
from patchbench.common.files import added_to, check_writable, recover


def interrupted(path):
    """Write half of something."""
    path.write_text("ne")
    raise KeyboardInterrupt


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as temporary:
        interrupted(temporary)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_folder_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "some" / "run"
    with fresh_directory(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "a.txt").write_text("new")
        assert not path.exists()
    assert (path / "inner" / "a.txt").read_text() == "new"
    assert os.listdir(path.parent) == ["run"]


def test_a_folder_that_another_process_made_meanwhile_is_kept(tmp_path):
    path = tmp_path / "run"

    def written_twice():
        with fresh_directory(path):
            path.mkdir()
            (path / "theirs").write_text("theirs")

    with pytest.raises(UserError, match="run exists"):
        written_twice()
    assert os.listdir(tmp_path) == ["run"]
    assert os.listdir(path) == ["theirs"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failed_folder_leaves_the_old_one(tmp_path, overwrite):
    path = tmp_path / "run"
    if overwrite:
        path.mkdir()
        (path / "old.txt").write_text("precious")
    with pytest.raises(KeyboardInterrupt), fresh_directory(path, overwrite=overwrite) as temporary:
        interrupted(temporary / "a.txt")
    assert os.listdir(tmp_path) == (["run"] if overwrite else [])
    assert not overwrite or (path / "old.txt").read_text() == "precious"


@pytest.mark.parametrize("where", [".", "..", "/"])
def test_what_one_stands_in_is_never_replaced(tmp_path, monkeypatch, where):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.txt").write_text("precious")
    monkeypatch.chdir(tmp_path / "project")
    with (
        pytest.raises(UserError, match="working directory"),
        fresh_directory(where, overwrite=True),
    ):
        pass
    assert (tmp_path / "project" / "mine.txt").exists()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("there", "exists: .*--overwrite"),
        ("file/below", r"cannot be written \(Not a directory\): .*a folder that is writable"),
        ("x" * 300, r"cannot be written \(File name too long\)"),
        ("x" * 245, r"cannot be written \(File name too long\)"),
        ("x/" + "y" * 300 + "/z", r"cannot be written \(File name too long\)"),
    ],
    ids=["there", "below_a_file", "long", "too_long_while_writing", "long_below"],
)
def test_an_impossible_place_is_told_before_the_work(tmp_path, path, says):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=says):
        check_writable(tmp_path / path)
    assert sorted(os.listdir(tmp_path)) == ["file", "there"]


def test_what_has_to_be_kept_is_never_replaced(tmp_path):
    kept = tmp_path / "models" / "mine"
    kept.mkdir(parents=True)
    for path in (kept, kept.parent):
        with pytest.raises(UserError, match=f"it holds {kept}"):
            check_writable(path, overwrite=True, keep=(None, "no/path", kept))
    check_writable(kept / "below", keep=(kept,))


def test_the_home_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    for path in (tmp_path, tmp_path / "me"):
        with pytest.raises(UserError, match="it holds"):
            check_writable(path, overwrite=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_the_old_folder_comes_back_if_replacing_it_fails(tmp_path, monkeypatch, error):
    path, replace = tmp_path / "run", os.replace
    path.mkdir()
    (path / "old.txt").write_text("precious")

    def second_fails(source, target):
        if target == path and not os.path.exists(path) and not str(source).endswith("replaced"):
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", second_fails)
    with (
        pytest.raises((KeyboardInterrupt, UserError)),
        fresh_directory(path, overwrite=True) as temporary,
    ):
        (temporary / "new.txt").write_text("new")
    assert os.listdir(tmp_path) == ["run"]
    assert (path / "old.txt").read_text() == "precious"


KILLED = """
import os, signal, sys
from patchbench.common import fresh_directory
replace = os.replace

def killed_between(source, target):
    if str(target) == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = killed_between
with fresh_directory(sys.argv[1], overwrite=True) as temporary:
    (temporary / "new.txt").write_text("new")
"""


@pytest.mark.parametrize("use", ["check", "recover", "replace"])
def test_what_a_killed_process_moved_aside_comes_back_at_the_next_use(tmp_path, use):
    path = tmp_path / "run"
    path.mkdir()
    (path / "old.txt").write_text("precious")
    # Of another path, whose name begins alike.
    neighbour = tmp_path / ".run.old.b.old.abcdefgh"
    (neighbour / "replaced").mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    if use == "check":
        with pytest.raises(UserError, match="run exists"):
            check_writable(path)
    elif use == "recover":
        recover(path)
    else:
        with fresh_directory(path, overwrite=True) as temporary:
            assert (path / "old.txt").read_text() == "precious"
            (temporary / "new.txt").write_text("new")
    assert os.listdir(path) == (["new.txt"] if use == "replace" else ["old.txt"])
    aside = [name for name in os.listdir(tmp_path) if name.startswith(".run.old.")]
    assert aside == [neighbour.name]
    assert (neighbour / "replaced").is_dir()


BUSY = """
import os, signal, sys
from pathlib import Path
from patchbench.common import atomic_write, fresh_directory
from patchbench.common.files import added_to
path = Path(sys.argv[1])
write = {"file": atomic_write, "folder": fresh_directory, "items": lambda p: added_to(p.parent)}
with write[sys.argv[2]](path) as temporary:
    print(temporary.name, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder", "items"])
def test_what_a_killed_process_left_goes_and_what_another_is_at_stays(tmp_path, kind):
    path, (mine, alike) = tmp_path / "run", (".run.settings", ".run.new.mine")
    for name in (mine, alike):
        (tmp_path / name).write_text("precious")
    writers = {"file": atomic_write, "folder": fresh_directory}

    def write():
        with writers[kind](path) if kind in writers else added_to(tmp_path) as temporary:
            (temporary if kind == "file" else temporary / "a").write_text("new")
        if path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (tmp_path / "a").unlink(missing_ok=True)
        return set(os.listdir(tmp_path)) - {mine, alike}

    with subprocess.Popen(
        [sys.executable, "-c", BUSY, str(path), kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        left = process.stdout.readline().strip()
        assert write() == {left}
        process.stdin.close()
        assert process.wait() == -signal.SIGKILL
    assert left in os.listdir(tmp_path)
    assert write() == set()


def test_items_are_added_and_replaced_and_the_rest_stays(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/old", "b", "c"):
        (tmp_path / name).write_text("old")
    with added_to(tmp_path) as temporary:
        (temporary / "a").mkdir()
        for name in ("a/new", "b"):
            (temporary / name).write_text("new")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]
    assert os.listdir(tmp_path / "a") == ["new"]
    assert [(tmp_path / name).read_text() for name in ("b", "c")] == ["new", "old"]


def test_what_was_replaced_is_given_up_by_the_next_who_replaces(tmp_path):
    """Killed when the new one was in place, and the old one not yet gone."""
    aside = tmp_path / ".run.old.abcdefgh"
    for folder in (tmp_path / "run", aside / "replaced"):
        folder.mkdir(parents=True)
    with pytest.raises(UserError, match="exists"):
        check_writable(tmp_path / "run")
    assert aside.exists()
    check_writable(tmp_path / "run", overwrite=True)
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("target", ["/nowhere/at/all", "link"], ids=["to nothing", "to itself"])
def test_a_dangling_link_is_something_that_exists(tmp_path, target):
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UserError, match="exists"):
        check_writable(tmp_path / "link")


def test_a_full_disk_is_told_in_one_line(tmp_path):
    full = OSError(28, "No space left on device")
    for context in (fresh_directory(tmp_path / "run"), atomic_write(tmp_path / "a.txt")):
        with pytest.raises(UserError, match=r"written \(No space left on device\)"), context:
            raise full
    assert os.listdir(tmp_path) == []
