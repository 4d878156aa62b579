"""What is being written, beside what it will replace: locked by whoever is at it.

A process that is killed leaves it behind. Its lock is gone then, so that the next one that writes
to the same place can tell it from another process's work, and removes it.

Use:

    with temporary(path, NEW, folder=False) as place:     # .NAME.new.x1y2z3w4, gone afterwards
        place.write_text("…")
    clear(path)
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW, OLD = "new", "old"
_RANDOM = re.compile(r"[a-z0-9_]{8}")  # what mkdtemp adds


def hidden(path: Path, kind: str) -> str:
    """Return how the names of the temporaries of `path` begin; eight more characters follow."""
    return f".{path.name}.{kind}."


@contextmanager
def temporary(path: Path, kind: str, *, folder: bool) -> Iterator[Path]:
    """Yield a new file or folder beside `path`, held, and remove what is left of it then."""
    while (found := _made(path, kind, folder=folder)) is None:
        pass
    place, handle = found
    try:
        yield place
    finally:
        _remove(place)
        os.close(handle)


def _made(path: Path, kind: str, *, folder: bool) -> tuple[Path, int] | None:
    """Return a new file or folder, locked; None where another process took it for a leftover."""
    prefix = hidden(path, kind)
    if folder:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
        try:
            handle = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            return None
    else:
        handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
        place = Path(name)
    if _lock(handle) is not False and _is_at(handle, place):
        return place, handle
    os.close(handle)
    return None


def clear(path: Path, *kinds: str) -> None:
    """Remove temporaries of `path` that killed processes left."""
    for place in leftovers(path, *kinds):
        _remove(place)


def is_temporary(place: Path, path: Path, *kinds: str) -> bool:
    """Return whether `place` has the name of a temporary of `path`."""
    prefixes = (hidden(path, kind) for kind in kinds)
    return any(
        place.name.startswith(prefix) and _RANDOM.fullmatch(place.name[len(prefix) :])
        for prefix in prefixes
    )


def leftovers(path: Path, *kinds: str, sure: bool = True) -> Iterator[Path]:
    """Yield temporaries of `path` that nobody is at, each held until the next is asked for.

    Args:
        path: what they are beside.
        *kinds: of them.
        sure: whether to leave out those of which a file system without locks does not tell.
    """
    with suppress(OSError):  # no such folder, or one that cannot be read
        for place in sorted(path.parent.iterdir()):
            if not is_temporary(place, path, *kinds):
                continue
            with suppress(OSError):  # a link, or gone meanwhile
                handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    free = _lock(handle)
                    if free or (free is None and not sure):
                        yield place
                finally:
                    os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file or folder; False if another process has, None if there are no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, place: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.stat(place))
    return False


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(OSError):
            place.unlink(missing_ok=True)
