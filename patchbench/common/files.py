"""Writing files so that a killed process leaves the old state or the new one, never half.

Use:

    with atomic_write(path) as temporary:
        temporary.write_text("…")
    with fresh_directory(out, overwrite=False) as temporary:
        (temporary / "result.json").write_text("…")
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from patchbench.common.errors import UserError
from patchbench.common.temporaries import NEW, OLD, clear, hidden, leftovers, temporary

_REPLACED = "replaced"
# Stands for the name of temporaries that are beside no path in particular.
_OURS = "patchbench"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path` in one step.

    Raises:
        UserError: it cannot be written, for example because the disk is full.
    """
    path = Path(path)
    with explained(path):
        clear(path, NEW)
        with temporary(path, NEW, folder=False) as new:
            new.chmod(0o644)  # at first it is its owner's alone
            yield new
            _flush(new)
            os.replace(new, path)


@contextmanager
def fresh_directory(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; on success it becomes `path`.

    Raises:
        UserError: `path` exists and `overwrite` is false, or it cannot be written, for example
            because the disk is full.
    """
    path = Path(path)
    check_writable(path, overwrite=overwrite)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, NEW, folder=True) as new:
            new.chmod(0o755)
            yield new
            _flush_all(new)
            if not overwrite:  # another process may have made it meanwhile
                _check_free(path)
            _put_in_place(new, path)


@contextmanager
def added_to(folder: Path) -> Iterator[Path]:
    """Yield a temporary directory in `folder`; on success each item in it takes its place there.

    Raises:
        UserError: they cannot be written, for example because the disk is full.
    """
    with explained(folder):
        clear(folder / _OURS, NEW)
        with temporary(folder / _OURS, NEW, folder=True) as new:
            yield new
            _flush_all(new)
            for item in sorted(new.iterdir()):
                if item.is_dir():
                    _put_in_place(item, folder / item.name)
                else:
                    os.replace(item, folder / item.name)


def _put_in_place(new: Path, path: Path) -> None:
    """Rename `new` to `path`; what is there comes back if that fails or is interrupted."""
    if not os.path.lexists(path):
        os.replace(new, path)
        return
    with temporary(path, OLD, folder=True) as old:
        try:
            os.replace(path, old / _REPLACED)
            os.replace(new, path)
        except BaseException:
            if not os.path.lexists(path):
                os.replace(old / _REPLACED, path)
            raise


def recover(path: str | Path) -> None:
    """Put back what a process that was killed while it replaced `path` had moved aside.

    Does nothing where `path` exists, nothing was moved aside, or it cannot be moved back.
    """
    path = Path(path)
    if os.path.lexists(path):
        return
    for aside in leftovers(path, OLD, sure=False):
        with suppress(OSError):
            if os.listdir(aside) == [_REPLACED]:
                os.replace(aside / _REPLACED, path)
                aside.rmdir()
                return


def check_writable(
    path: str | Path, *, overwrite: bool = False, keep: Iterable[str | Path | None] = ()
) -> None:
    """Check that `path` can be created; call it before the long work.

    What a killed process had moved aside comes back first, and what it had half written goes.

    Args:
        path: the file or folder.
        overwrite: whether it may replace what is there.
        keep: what it must not replace in any case; what is no path does not matter.

    Raises:
        UserError: it exists and `overwrite` is false, it holds what must stay (the folder one
            stands in, the home, `keep`), or it cannot be written.
    """
    path = Path(path)
    with explained(path):
        place = Path(os.path.realpath(path))  # Path.resolve refuses a link to itself
        if Path.cwd().is_relative_to(place):
            raise UserError(f"{path} is the working directory or above it", "choose another --out")
        recover(path)
        # What had been replaced is given up only by who replaces it again.
        clear(path, NEW, *([OLD] if overwrite and os.path.lexists(path) else []))
        if not overwrite:
            _check_free(path)
        for kept in (Path(item).resolve() for item in (Path.home(), *keep) if item):
            if kept.is_relative_to(place):
                raise UserError(f"{path} is not replaced: it holds {kept}", "choose another --out")
        parent = path.parent
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        # Permissions do not tell: a read-only or virtual file system refuses even its owner. Nor
        # do they tell whether a name is too long, also with what is added to it while writing.
        within = path.relative_to(parent).with_name(f"{hidden(path, OLD)}12345678")
        clear(parent / _OURS, NEW)
        with temporary(parent / _OURS, NEW, folder=True) as trial:
            (trial / within).mkdir(parents=True)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise UserError(f"{path} exists", "choose another --out or pass --overwrite")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's refusals into a `UserError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise UserError(
            f"{path} cannot be written ({reason})",
            "choose another place, in a folder that is writable and has room",
        ) from error


def _flush_all(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            _flush(file)


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
