"""The checkpoints of a run: sealed when all is on disk, and trusted only while the seal fits.

Use:

    seal(folder / CHECKPOINTS / "checkpoint-20")
    checkpoint = last_checkpoint(folder)      # the newest that is whole; others are removed
    step_of(checkpoint)
    copy_weights(checkpoint, out)

A killed process leaves a checkpoint without a seal, a crashed machine or a slipped hand one that
is not what was sealed. A run that goes on from the one before ends with the same weights.
"""

import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from patchbench.common import atomic_write, parse_json

CHECKPOINTS = "checkpoints"
COMPLETE = "complete"
_WEIGHTS = ("config.json", "generation_config.json", "model*.safetensors*")
_OTHER_PROCESSES = "rng_state_*"  # which may still be writing them
_CHUNK = 1 << 24


@contextmanager
def saving() -> Iterator[None]:
    """Turn what the libraries say of a disk that takes no more into an `OSError`."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise OSError(str(error)) from error


def seal(checkpoint: Path) -> None:
    """Write down what a checkpoint that was just written consists of.

    Raises:
        UserError: it cannot be written.
    """
    sums = {
        file.name: _checksum(file)
        for file in sorted(checkpoint.iterdir())
        if file.is_file() and not file.match(_OTHER_PROCESSES)
    }
    with atomic_write(checkpoint / COMPLETE) as temporary:
        temporary.write_text(json.dumps(sums), encoding="utf-8")


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a run's folder; remove newer ones, which are not."""
    found = (folder / CHECKPOINTS).glob("checkpoint-*")
    for checkpoint in sorted(found, key=step_of, reverse=True):
        if _is_whole(checkpoint):
            return checkpoint
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def step_of(checkpoint: Path) -> int:
    """Return after how many steps a checkpoint was made, by its name; −1 where it has another."""
    step = checkpoint.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else -1


def copy_weights(checkpoint: Path, folder: Path) -> None:
    """Copy the model of a checkpoint, without what only a resumed training needs."""
    for pattern in _WEIGHTS:
        for file in checkpoint.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def _is_whole(checkpoint: Path) -> bool:
    try:
        sums = parse_json((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        return bool(sums) and all(_checksum(checkpoint / n) == sums[n] for n in sums)
    except (OSError, ValueError, TypeError):
        return False


def _checksum(file: Path) -> list[int]:
    """Return size and CRC-32, which costs far less than writing the file did."""
    size = crc = 0
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]
