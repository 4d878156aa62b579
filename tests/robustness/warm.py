"""Command lines that begin at once: forked after everything heavy has been imported.

Use:

    pid = start(["evaluate", "--out", "x"], log=Path("log"), cache=Path("cache"))
    ended(pid)                                 # exit code; negative: the signal

What is imported is not what is tested, and takes longer than a small run does.
"""

import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import datasets
import torch

import patchbench.cli
import patchbench.evaluation
import patchbench.report.html
import patchbench.sweeping
import patchbench.tasks.export
import patchbench.training.loop
from patchbench.cli_options import calm_libraries
from patchbench.sweeping import local, worker

# What may be half done when a process is killed there.
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "shutil.copyfile")
# More than a process has open.
_HANDLES = 4096
_at_end: list[Callable[[], None]] = []


def start(
    arguments: Sequence[str],
    *,
    log: Path,
    cache: Path,
    before: Callable[[], None] | None = None,
    in_worker: Callable[[], None] | None = None,
) -> int:
    """Start a command line in a session of its own, and return its process id.

    Args:
        arguments: without the program's name.
        log: gets stdout and stderr.
        cache: of `datasets`.
        before: called in the new process.
        in_worker: called in each process that a sweep starts.
    """
    pid = os.fork()
    if pid:
        return pid
    os.setsid()

    def run() -> None:
        _write_to(log, 1, 2)
        datasets.config.HF_DATASETS_CACHE = cache
        local.subprocess = _Forking(in_worker)
        if before is not None:
            before()
        sys.argv = ["patchbench", *arguments]
        patchbench.cli.main()

    _leave(run)


def ended(pid: int) -> int:
    """Wait for a process, and return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def changes(count: int | None, told: Path | None = None) -> Callable[[], None]:
    """Return what makes a process kill itself before its change number `count` to the disk.

    Args:
        count: None to let it live.
        told: gets a byte for each change.
    """

    def install() -> None:
        seen, here = 0, os.getpid()
        handle = None if told is None else os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def hook(event: str, arguments: tuple) -> None:
            nonlocal seen
            if os.getpid() != here:  # a hook cannot be taken away, and is forked as well
                return
            if event not in _CHANGES and not (event == "open" and _writes(arguments)):
                return
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            if handle is not None:
                os.write(handle, b".")

        sys.addaudithook(hook)

    return install


def modules(told: Path) -> Callable[[], None]:
    """Return what makes a process tell at its end what it had imported, for `import_all`."""

    def install() -> None:
        def tell() -> None:
            told.write_text("\n".join(sys.modules), encoding="utf-8")

        _at_end.append(tell)

    return install


def import_all(told: Path) -> None:
    """Import what another process told, so that those forked from now on have it."""
    for name in told.read_text(encoding="utf-8").splitlines():
        with suppress(Exception):  # made by hand, or not to be imported by itself
            importlib.import_module(name)


def _writes(arguments: tuple) -> bool:
    _, mode, flags = arguments
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) and mode != "r"


class _Forking:
    """Stands for the module `subprocess` where a sweep starts its workers."""

    PIPE, TimeoutExpired = subprocess.PIPE, subprocess.TimeoutExpired

    def __init__(self, in_worker: Callable[[], None] | None) -> None:
        self._in_worker = in_worker

    def Popen(self, command: Sequence[str], *, stderr, **_: object) -> "_Worker":
        return _Worker(self._in_worker, stderr)


class _Worker:
    """A forked worker with the pipes and the methods of `subprocess.Popen`."""

    def __init__(self, in_worker: Callable[[], None] | None, stderr) -> None:
        jobs, self.stdin = os.pipe()
        self.stdout, outcomes = os.pipe()
        self._pid = os.fork()
        self.returncode: int | None = None
        if not self._pid:
            os.setsid()

            def run() -> None:
                os.dup2(jobs, 0)
                os.dup2(outcomes, 1)
                os.dup2(stderr.fileno(), 2)
                os.closerange(3, _HANDLES)  # locks among them
                sys.stdin = os.fdopen(0)
                torch.set_num_threads(1)
                if in_worker is not None:
                    in_worker()
                worker.main()

            _leave(run)
        os.close(jobs)
        os.close(outcomes)
        self.stdin, self.stdout = os.fdopen(self.stdin, "wb"), os.fdopen(self.stdout, "rb")

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = ended(self._pid)
        return self.returncode

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


def _write_to(path: Path, *handles: int) -> None:
    with open(path, "ab") as file:
        for handle in handles:
            os.dup2(file.fileno(), handle)


def _leave(run: Callable[[], None]) -> None:
    """Run, and end the process without what its parent would do at its end."""
    code = 1
    try:
        run()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except BaseException:
        traceback.print_exc()
    finally:
        for tell in _at_end:
            tell()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


calm_libraries()
torch.set_num_threads(1)
