"""One process at a time in a folder, by a lock that the system gives up when the process ends.

Use:

    with locked(folder, out):          # makes the folder; refuses while another process is in it
        ...
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from patchbench.common.errors import UserError
from patchbench.common.files import explained
from patchbench.common.temporaries import NEW, is_temporary

LOCK = ".lock"


class Busy(UserError):
    """Another process holds the lock."""


@contextmanager
def locked(folder: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made where it is missing; its file goes with the block.

    Args:
        folder: where the file `LOCK` is.
        out: what is being written, for the message.

    Raises:
        Busy: another process holds it.
        UserError: the folder cannot be written.
    """
    with explained(out):
        file = _acquired(folder, out)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()


def is_blank(folder: Path, file: Path) -> bool:
    """Return whether a folder has nothing but a lock, and the beginnings of its first `file`."""
    return all(item.name == LOCK or is_temporary(item, file, NEW) for item in folder.iterdir())


def _acquired(folder: Path, out: Path) -> IO[str]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # No `with`: the lock is held for as long as the file is open.
            file = open(folder / LOCK, "a")  # noqa: SIM115
        except FileNotFoundError:  # the process that held it has finished and cleared up
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise Busy(
                f"another process is writing {out}", "wait for it, or choose another --out"
            ) from None
        if _is_at(file, folder / LOCK):
            return file
        file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one with that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
