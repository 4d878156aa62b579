"""Writing files so that a killed process leaves the old state or the new one, never half.

Use:

    with atomic_write(path) as temporary:
        temporary.write_text("…")
    with fresh_directory(out, overwrite=False) as temporary:
        (temporary / "result.json").write_text("…")
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchbench.common.errors import UserError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path` in one step."""
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    temporary.chmod(0o644)  # mkstemp's files are their owner's alone
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def fresh_directory(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary directory beside `path`; on success it becomes `path`.

    Raises:
        UserError: `path` exists and `overwrite` is false, or its parent cannot be written.
    """
    path = Path(path)
    check_writable(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    temporary.chmod(0o755)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / "replaced")
        os.replace(temporary, path)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_writable(path: str | Path, *, overwrite: bool = False) -> None:
    """Check that `path` can be created; call it before the long work.

    Raises:
        UserError: it exists and `overwrite` is false, it is what one stands in, or its folder
            cannot be written.
    """
    path = Path(path)
    if Path.cwd().is_relative_to(path.resolve()):
        raise UserError(f"{path} is the working directory or above it", "choose another --out")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists", "choose another --out or pass --overwrite")
    parent = path.parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    try:
        # Permissions do not tell: a read-only or virtual file system refuses even its owner.
        with tempfile.TemporaryDirectory(prefix=".patchbench.", dir=parent):
            pass
    except OSError as error:
        raise UserError(
            f"{path} cannot be written", f"{parent} is not a writable folder ({error.strerror})"
        ) from error


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
