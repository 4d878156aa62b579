"""What is kept of the unpatched runs must fit: interventions take turns where it does not.

Use:

    sizes = Sizes(loaded)
    for part in rounds(interventions, batch, sizes, budget): ...
    sizes.bytes_of(point, batch)          # of one activation there
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import Function
from patchbench.adapters.running import explained
from patchbench.engines.base import Batch
from patchbench.engines.native.places import watching
from patchbench.engines.native.work import WHOLE, hookable
from patchbench.engines.scoring import ReadOut
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


class Sizes:
    """How many bytes an activation takes at each place, seen in runs of one document."""

    def __init__(self) -> None:
        self._known: dict[tuple[HookPoint, int], int] = {}

    def learn(self, loaded: "LoadedModel", points: Sequence[HookPoint], batch: Batch) -> int:
        """Look at the places that are new; return how many forwards that took.

        Raises:
            UserError: a place does not fire exactly once.
        """
        new = {point for point in points if _key(point, batch) not in self._known}
        if not new:
            return 0
        tokens = torch.as_tensor(batch.clean[:1], device=loaded.device)
        end = torch.as_tensor(batch.read_out[:1], device=loaded.device)
        arguments = ReadOut.at(loaded.model, end, batch.length).arguments
        readers = {point: self._reader(_key(point, batch)) for point in new}
        with watching(loaded, readers), explained(loaded.name, tokens):
            loaded.model(input_ids=tokens, **arguments)
        return 1

    def bytes_of(self, point: HookPoint, batch: Batch) -> int:
        """Return the size of one activation; `learn` has seen the place."""
        return self._known[_key(point, batch)]

    def _reader(self, key: tuple[HookPoint, int]) -> Function:
        def read(hidden: Tensor) -> None:
            self._known[key] = hidden[0, 0].nbytes

        return read


def _key(point: HookPoint, batch: Batch) -> tuple[HookPoint, int]:
    return point, batch.length if point.component in WHOLE else 0


def donor_points(loaded: "LoadedModel", intervention: Intervention) -> list[HookPoint]:
    """Return where an intervention takes its activations from."""
    return [
        hookable(loaded.hook_map.point(site.layer, site.component)) for site in intervention.donors
    ]


def rounds(
    interventions: Sequence[Intervention],
    loaded: "LoadedModel",
    batch: Batch,
    sizes: Sizes,
    budget: float,
) -> Iterator[list[Intervention]]:
    """Yield the interventions in order, as many at a time as their activations fit the budget.

    One that does not fit alone is yielded alone.
    """
    part: list[Intervention] = []
    kept: set[tuple] = set()
    used = 0
    for intervention in interventions:
        needed, size = set(), 0
        points = donor_points(loaded, intervention)
        for point, site in zip(points, intervention.donors, strict=True):
            key = (intervention.donor_run, point, site.position)
            if key not in kept | needed:
                needed.add(key)
                size += len(batch) * sizes.bytes_of(point, batch)
        if part and used + size > budget:
            yield part
            part, kept, used = [], set(), 0
            # What it shares with the round before is kept anew.
            needed = {
                (intervention.donor_run, point, site.position)
                for point, site in zip(points, intervention.donors, strict=True)
            }
            size = sum(len(batch) * sizes.bytes_of(key[1], batch) for key in needed)
        part.append(intervention)
        kept |= needed
        used += size
    if part:
        yield part
