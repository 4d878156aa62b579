"""Training in several processes: what each does, as `torchrun` numbers them.

Use:

    torchrun --nproc-per-node 2 --no-python patchbench train --arch mamba --task ar --out m …

Each takes its share of every batch; the first alone makes folders and writes files, and tells the
others what it found there:

    join_processes("cpu")
    folder = from_main(lambda: open_folder(out))     # in every process the same, or the same error
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed

from patchbench.common import UserError
from patchbench.common.processes import is_main_process

T = TypeVar("T")


def process_share(batch_size: int) -> tuple[int, int]:
    """Return (index, count) of this process among those that train together under torchrun.

    Raises:
        UserError: they cannot share a batch evenly.
    """
    index, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % count:
        raise UserError(
            f"{count} processes cannot share batches of {batch_size} evenly",
            f"for example --batch-size {-(-batch_size // count) * count}",
        )
    return index, count


def wait_for_everyone() -> None:
    """Return when all processes have come here."""
    if _joined():
        torch.distributed.barrier()


def join_processes(device: str) -> None:
    """Let the processes that torchrun started know one another; return when all have come.

    Args:
        device: "auto" or "cpu".
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState(cpu=device == "cpu")


def from_main(make: Callable[[], T]) -> T:
    """Return what the main process makes, in every process; they wait for it.

    Args:
        make: called in the main process alone.

    Raises:
        UserError: it did, in the main process.
    """
    if not _joined():
        return make()
    made: list[Any] = [None, None]
    if is_main_process():
        try:
            made[0] = make()
        except UserError as error:
            made[1] = error
    torch.distributed.broadcast_object_list(made, src=0)
    if made[1] is not None:
        raise made[1]
    return made[0]


def _joined() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
