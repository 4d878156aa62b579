"""Evaluations that are killed, go on, or meet another process at the same `--out`."""

import json
import os
import signal
import subprocess
import sys

import pytest

import patchbench as pb
from patchbench.common import UserError
from patchbench.partial import partial_folder
from patchbench.results import Result
from tests.tiny_models import tiny

SETTINGS = ("--task", "ar/tiny", "--n", "40", "--batch-size", "4", "--template", "symbolic")
# Waits after each part, so that it can be killed between two.
SLOW = """
import sys, time
from patchbench import partial
from patchbench.cli import main
add = partial.Partial.add
def slow(self, table, state):
    add(self, table, state)
    print("part", flush=True)
    time.sleep(600 if len(self.states) == 3 else 0)
partial.Partial.add = slow
main()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "gpt2"
    tiny("gpt2", vocab=64).save_pretrained(folder)
    return folder


def start(model, out, *more, script=SLOW):
    command = ["evaluate", "--model", model, *SETTINGS, "--out", out, "--quiet", *more]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )


def finish(*arguments, **settings):
    process = start(*arguments, script="from patchbench.cli import main; main()", **settings)
    _, stderr = process.communicate(timeout=300)
    return process.returncode, stderr


def test_kill_9_then_resume_gives_the_rows_of_an_uninterrupted_run(model, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert finish(model, whole) == (0, "")
    process = start(model, out)
    for _ in range(3):
        assert process.stdout.readline() == "part\n"

    code, stderr = finish(model, out, "--resume")
    assert code == 2
    assert "another process is writing" in stderr

    process.send_signal(signal.SIGKILL)
    process.wait()
    partial = tmp_path / "out.partial"
    assert len(list(partial.glob("part-*.parquet"))) == 3
    assert not out.exists()

    code, stderr = finish(model, out)
    assert code == 2
    assert "--resume" in stderr
    assert "--overwrite" in stderr

    code, stderr = finish(model, out, "--resume", "--positions", "key")
    assert code == 2
    assert "settings.positions" in stderr

    # A part that is only half there counts as none.
    (partial / "part-00002.parquet").write_bytes(b"PAR1")
    assert finish(model, out, "--resume") == (0, "")
    assert not partial.exists()
    resumed, uninterrupted = Result.load(out), Result.load(whole)
    assert resumed.rows.equals(uninterrupted.rows)
    assert resumed.summary["runs"] == uninterrupted.summary["runs"]
    assert "resumed: 2 of 10 parts were there" in resumed.provenance["notes"]


def test_what_is_made_of_the_rows_may_change_and_the_rows_may_not(tmp_path):
    """Another number of resamples, or a self-check that is left out, is no other evaluation."""
    settings = {"n": 12, "batch_size": 4, "template": "symbolic"}

    def run(*, resume=False, stop=False, **changed):
        def stopped(done, total):
            if stop:
                raise KeyboardInterrupt

        with partial_folder(tmp_path / "out", resume=resume) as partial:
            how = {"progress": stopped, "partial": partial, **settings, **changed}
            return pb.evaluate(tiny("gpt2", vocab=64), "ar/tiny", **how)

    with pytest.raises(KeyboardInterrupt):
        run(stop=True)
    for name, value in (("n", 13), ("batch_size", 3), ("seed", 1), ("engine", "pyvene")):
        with pytest.raises(UserError, match=f"settings.{name}"):
            run(resume=True, **{name: value})
    resumed = run(resume=True, resamples=300, selfcheck=False)
    assert "resumed: 1 of 3 parts were there" in resumed.provenance["notes"]
    assert resumed.config["resamples"] == 300
    whole = pb.evaluate(tiny("gpt2", vocab=64), "ar/tiny", **settings)
    assert resumed.rows.equals(whole.rows)


def test_a_finished_or_failed_run_leaves_no_parts(tmp_path):
    out = tmp_path / "out"
    with partial_folder(out) as partial:
        partial.open({"n": 1})

    def fail() -> None:
        with partial_folder(out) as partial:
            partial.open({"n": 1})
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time(tmp_path):
    with partial_folder(tmp_path / "out"):
        for settings in ({}, {"resume": True}, {"overwrite": True}):
            with (
                pytest.raises(UserError, match="another process"),
                partial_folder(tmp_path / "out", **settings),
            ):
                pass
        with partial_folder(tmp_path / "other"):
            pass
    with partial_folder(tmp_path / "out"):
        pass


def test_what_was_killed_when_all_was_written_is_finished_by_resume(model, tmp_path):
    """While it logs to a server, say: the Result is there, and its parts are too."""
    out = tmp_path / "out"
    settings = ["--n", "8", "--quiet", "--no-report", "--no-selfcheck", "--task", "ar/tiny"]
    command = ["evaluate", "--model", str(model), *settings, "--out", str(out)]
    killed = (
        "import os, sys\nfrom patchbench import partial\nfrom patchbench.cli import main\n"
        "save = partial.Partial.save\n"
        "partial.Partial.save = lambda *args: (save(*args), os.kill(os.getpid(), 9))\nmain()"
    )

    def run(*more, script="from patchbench.cli import main; main()"):
        done = subprocess.run(
            [sys.executable, "-c", script, *command, *more], capture_output=True, text=True
        )
        return done.returncode, done.stderr

    assert run(script=killed)[0] == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["out", "out.partial"]
    written = {path: path.stat().st_ino for path in out.rglob("*")}
    code, stderr = run("--resume")
    assert (code, stderr) == (0, "")
    assert os.listdir(tmp_path) == ["out"]
    assert {path: path.stat().st_ino for path in out.rglob("*")} == written


def test_parts_never_replace_what_is_not_of_their_evaluation(tmp_path):
    out = tmp_path / "out"
    first, second = (
        pb.evaluate(tiny("gpt2", vocab=64), "ar/tiny", n=8, template="symbolic", seed=seed)
        for seed in (0, 1)
    )
    first.save(out)
    with partial_folder(out) as partial:
        partial.open({"n": 1})
    with (
        pytest.raises(UserError, match=r"not of this evaluation.*--overwrite"),
        partial_folder(out, resume=True) as partial,
    ):
        partial.save({out: second}, lambda: second.save(out, overwrite=True))
    with partial_folder(out, resume=True, overwrite=True) as partial:
        partial.save({out: second}, lambda: second.save(out, overwrite=True))
    assert Result.load(out).rows.equals(second.rows)


def test_resume_without_parts_begins(tmp_path):
    with partial_folder(tmp_path / "out", resume=True) as partial:
        partial.open({"n": 1})
        assert partial.states == []
        assert json.loads((partial.path / "identity.json").read_text()) == {"n": 1}
