"""The reference engine: every intervention is a pyvene intervention.

Use:

    engine = PyveneEngine()
    rows = engine.run(loaded, interventions, batch)
    engine.counters.forwards
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from patchbench.adapters.hook_map import HookPoint
from patchbench.engines.one_by_one import Budget, OneByOneEngine
from patchbench.engines.safe_intervenable import SafeIntervenable, collect_config, swap_config
from patchbench.sites import Site

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


class PyveneEngine(OneByOneEngine):
    """See `OneByOneEngine`."""

    name = "pyvene"

    def _runner(self, loaded: "LoadedModel") -> "_Runner":
        return _Runner(loaded)


class _Runner:
    """See `patchbench.engines.one_by_one.Runner`."""

    def __init__(self, loaded: "LoadedModel") -> None:
        self._hook_map, self._model = loaded.hook_map, loaded.model
        self._wrapped: dict[tuple, SafeIntervenable] = {}

    def collect(
        self,
        inputs: dict[str, Any],
        points: Sequence[HookPoint],
        locations: Sequence[np.ndarray],
        budget: Budget,
    ) -> tuple[list[Tensor], Any]:
        config = collect_config(self._model, points, budget)
        (_, collected), output = SafeIntervenable(config, self._model)(
            inputs, unit_locations={"base": [where.tolist() for where in locations]}
        )
        return collected, output

    def swap(
        self,
        inputs: dict[str, Any],
        sites: Sequence[Site],
        locations: Sequence[np.ndarray],
        values: Sequence[Tensor],
    ) -> Any:
        wrapped = self._wrap(sites)
        _, output = wrapped(
            inputs,
            unit_locations={"sources->base": (None, [where.tolist() for where in locations])},
            source_representations=dict(zip(wrapped.sorted_keys, values, strict=True)),
        )
        return output

    def _wrap(self, sites: Sequence[Site]) -> SafeIntervenable:
        """Return the wrapped model; sites that differ in position only share one."""
        key = tuple((site.layer, site.component, site.head) for site in sites)
        if key not in self._wrapped:
            config = swap_config(self._hook_map, self._model, sites)
            self._wrapped[key] = SafeIntervenable(config, self._model)
        return self._wrapped[key]
