"""Which of several processes this is, as `torchrun` numbers them."""

import os


def is_main_process() -> bool:
    """Return whether this process is the one that writes."""
    return os.environ.get("RANK", "0") == "0"
