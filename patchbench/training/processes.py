"""Training in several processes: what each does, as `torchrun` numbers them.

Use:

    torchrun --nproc-per-node 2 --no-python patchbench train --arch mamba --task ar --out m …

Each takes its share of every batch; the first alone writes files.
"""

import os

import torch.distributed

from patchbench.common import UserError


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


def is_main_process() -> bool:
    """Return whether this process is the one that writes."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_everyone() -> None:
    """Return when all processes have come here."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
