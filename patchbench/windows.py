"""Role windows: every token of a document named once, as a role and an offset.

Use:

    batches = [with_windows(batch) for batch in batches]
    window_positions(batches)              # (Position("bos"), Position("key", -1), …)

A role's window reaches from its token to the next role's; what comes before the first role counts
backwards from it. So `value+3` is the same token in no two names, and where another role comes
sooner the example has no `value+3`. Examples whose roles are at different places are compared by
their distance to the role, not by their place in the document.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from patchbench.engines.base import Batch
from patchbench.sites import Position


def with_windows(batch: Batch) -> Batch:
    """Return the batch with measurements limited to the windows of its roles."""
    names = sorted(batch.positions, key=Position)
    starts = np.stack([batch.positions[name] for name in names])  # (R, B)
    # The first of several roles at one token has its window; the others have none.
    taken = np.array(
        [(starts[:number] == line).any(axis=0) for number, line in enumerate(starts)]
    ) | (starts < 0)
    later = starts[None] > starts[:, None]  # (R, R, B): whether the second is behind the first
    following = np.where(later, starts[None], batch.length).min(axis=1)
    first = np.where(starts < 0, batch.length, starts).min(axis=0)
    begin = np.where(starts == first, 0, starts)
    end = np.where(taken, begin, following)
    windows = {
        name: np.stack([begin[number], end[number]], axis=1) for number, name in enumerate(names)
    }
    return replace(batch, windows=windows)


def window_positions(batches: Sequence[Batch]) -> tuple[Position, ...]:
    """Return every position that an example has in a window, in the order of the roles."""
    found = set()
    for batch in batches:
        for name, window in batch.windows.items():
            role = batch.positions[name]
            low, high = window[:, 0] - role, window[:, 1] - role
            for begin, end in {*zip(low.tolist(), high.tolist(), strict=True)}:
                found |= {Position(name, offset) for offset in range(begin, end)}
    return tuple(sorted(found))
