"""patchbench: where does a sequence model store an association?

Use:

    import patchbench as pb
    result = pb.evaluate(pb.load_model("EleutherAI/pythia-70m"), pb.load_task("ar", num_pairs=4))

Everything is imported on first use, so that `import patchbench` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {
    "load_model": "patchbench.adapters",
    "load_task": "patchbench.tasks",
    "evaluate": "patchbench.evaluation",
    "plan": "patchbench.planning",
    "pool": "patchbench.pooling",
    "MechanisticCallback": "patchbench.callback",
    "train": "patchbench.training",
    "ModelSpec": "patchbench.training",
    "Result": "patchbench.results",
    "Estimate": "patchbench.statistics",
    "Site": "patchbench.sites",
    "Position": "patchbench.sites",
    "Intervention": "patchbench.interventions",
    "UserError": "patchbench.common",
}

__all__ = [
    "Estimate",
    "Intervention",
    "MechanisticCallback",
    "ModelSpec",
    "Position",
    "Result",
    "Site",
    "UserError",
    "__version__",
    "evaluate",
    "load_model",
    "load_task",
    "plan",
    "pool",
    "train",
]

if TYPE_CHECKING:
    from patchbench.adapters import load_model
    from patchbench.callback import MechanisticCallback
    from patchbench.common import UserError
    from patchbench.evaluation import evaluate
    from patchbench.interventions import Intervention
    from patchbench.planning import plan
    from patchbench.pooling import pool
    from patchbench.results import Result
    from patchbench.sites import Position, Site
    from patchbench.statistics import Estimate
    from patchbench.tasks import load_task
    from patchbench.training import ModelSpec, train


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'patchbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
