"""The command line as a process of its own: signals, pipes, bugs, what it imports."""

import os
import signal
import subprocess
import sys
import time

import pytest

from patchbench import cli
from patchbench.adapters.bundled import WEIGHTS
from tests.tiny_models import tiny

RESULT = str(WEIGHTS / "ar-based" / "result").encode()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "gpt2"
    tiny("gpt2", vocab=64).save_pretrained(folder)
    return folder


def test_a_bug_is_code_1_and_shows_where(model_dir):
    script = (
        "import sys; from patchbench import cli, controls\n"
        "controls.check = lambda *_, **__: 1 / 0\n"
        f"sys.argv = ['patchbench', 'evaluate', '--model', {str(model_dir)!r}, '--task', 'ar/tiny',"
        " '--n', '4']\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 67 bytes."),
    ],
)
def test_no_memory_is_one_line_and_code_2(run, monkeypatch, error):
    def list_tasks():
        raise error

    monkeypatch.setattr("patchbench.tasks.list_tasks", list_tasks)
    code, _, stderr = run("tasks")
    assert (code, stderr.count("\n")) == (2, 1)
    assert stderr.startswith("patchbench: out of memory")
    assert "--batch-size" in stderr


@pytest.mark.parametrize("name", [RESULT, b"\xff\xfe"], ids=["numbers", "no text"])
def test_a_terminal_that_knows_ascii_alone(name):
    done = subprocess.run(
        [sys.executable, "-c", "from patchbench.cli import main; main()", "show", name],
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        encoding="ascii",
    )
    if name != RESULT:
        assert done.returncode == 2
        assert done.stderr.startswith("patchbench: '\\udcff\\udcfe' is not text in this locale: ")
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "wrong position 0.00 \\xb10.00" in done.stdout


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-c", "from patchbench.cli import main; main()", "tasks"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.wait(timeout=60)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "kill"])
def test_interrupting_leaves_nothing_half_written(sign, model_dir, tmp_path):
    script = (
        "import patchbench.preparation as preparation\n"
        "from patchbench.cli import main\n"
        "make = preparation.make_batches\n"
        "def begin(*args):\n"
        "    print('measuring', flush=True)\n"
        "    return make(*args)\n"
        "preparation.make_batches = begin\n"
        "main()"
    )
    out = tmp_path / "run"
    arguments = ["evaluate", "--model", str(model_dir), "--task", "ar/tiny", "--n", "4096"]
    arguments += ["--batch-size", "1", "--engine", "pyvene", "--out", str(out), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
        # Whoever runs the tests in the background has them ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"measuring\n"
    time.sleep(1)
    process.send_signal(sign)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    left = [path.name for path in tmp_path.iterdir()]
    assert left in ([], ["run.partial"])
    assert (b"--resume" if left else b"nothing was written") in stderr
    assert len(stderr.splitlines()) == 1


@pytest.mark.parametrize("first_fails", [True, False])
def test_of_several_processes_the_first_tells_a_mistake(monkeypatch, capsys, first_fails):
    """Another does only where the first goes on, so that no failure is silent."""

    def wait(seconds):
        if first_fails:  # then torchrun ends this one
            raise KeyboardInterrupt

    monkeypatch.setattr(cli.time, "sleep", wait)
    told = {}
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(sys, "argv", ["patchbench", "train", "--arch", "nonsense"])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        told[rank] = stopped.value.code, len(capsys.readouterr().err.splitlines())
    assert told == {"0": (2, 1), "1": (2, 0 if first_fails else 1)}


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['patchbench', '--help']\n"
        "from patchbench.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'pyvene', 'numpy', 'plotly', 'scipy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
