"""Every random state of a process, kept: for what happens in the middle of somebody's training.

Use:

    with random_state_kept():
        ...                                # may draw and seed as it likes
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give back the states of Python, NumPy, and PyTorch on the CPU and on every CUDA device."""
    import numpy as np
    import torch

    python, cpu = random.getstate(), torch.get_rng_state()
    numpy = np.random.get_state()  # noqa: NPY002 - it is what is kept
    # Devices that were never used have no state yet, and asking for it would start them.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - it is what is kept
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
