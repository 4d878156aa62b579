"""Engines run interventions on a model and return rows; all of them give the same numbers.

Use:

    engine = ENGINES["pyvene"]()
    rows = engine.run(loaded, interventions, batch)
"""

from collections.abc import Callable

from patchbench.common import Registry
from patchbench.engines.base import Batch, Counters, Engine, make_batches

__all__ = ["ENGINES", "Batch", "Counters", "Engine", "make_batches"]

ENGINES: Registry[Callable[[], Engine]] = Registry("engine")
ENGINES.add("pyvene", "patchbench.engines.pyvene:PyveneEngine")
ENGINES.add("native", "patchbench.engines.native:NativeEngine")
ENGINES.add("nnsight", "patchbench.engines.nnsight:NnsightEngine")
