"""Where a Result comes from: enough to run it again, and to notice that something else was run.

Use:

    provenance = collect_provenance(loaded=loaded, task=task, dataset=dataset, seconds=12.3)
"""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from patchbench import __version__
from patchbench.shown_example import first_example

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import nn

    from patchbench.adapters.loading import LoadedModel
    from patchbench.engines.base import Engine
    from patchbench.tasks import Task

# Those whose version can change a number.
PACKAGES = ("torch", "transformers", "datasets", "pyvene", "nnsight", "numpy", "pyarrow")


def collect_provenance(
    *,
    loaded: "LoadedModel",
    task: "Task",
    dataset: "Dataset",
    seconds: float,
    engine: "Engine | None" = None,
    command: str | None = None,
    notes: Sequence[str] = (),
    template: str | None = None,
) -> dict[str, Any]:
    """Return the provenance of a run, ready for JSON.

    Args:
        loaded: the model.
        task: with its seed, config and floor.
        dataset: the examples as the model saw them.
        seconds: wall time.
        engine: what ran, with its counters.
        command: the command line.
        notes: what the user should know.
        template: the layout of the prompts, as resolved.
    """
    floors = task.heuristic_floor(dataset)
    # "either" is an oracle that knows which heuristic to follow, not a heuristic.
    floor = max((name for name in floors if name != "either"), key=floors.__getitem__)
    provenance = {
        "patchbench": __version__,
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "seconds": round(seconds, 3),
        "model": {
            "name": loaded.name,
            "type": loaded.hook_map.model_type,
            "hook_map": loaded.hook_map.origin,
            "num_layers": loaded.hook_map.num_layers,
            "components": sorted({name for _, name in loaded.hook_map.points}),
            "num_parameters": loaded.num_parameters,
            "dtype": str(loaded.dtype),
            "device": str(loaded.device),
        },
        "task": {
            "name": task.name,
            "seed": task.seed,
            "config": asdict(task.config),
            "floors": floors,
            "floor": floor,
        },
        "dataset": {"rows": len(dataset), "sha256": fingerprint(dataset)},
        "template": template,
        "example": first_example(dataset, task, tokenizer=loaded.tokenizer, template=template),
        "notes": list(notes),
    }
    if engine is not None:
        counters = asdict(engine.counters)
        provenance["notes"] += counters.pop("notes") + skip_notes(counters["skipped"])
        provenance["engine"] = {"name": engine.name, **counters}
    return provenance


def weights_digest(model: "nn.Module") -> str:
    """Return a digest of a model's parameters and buffers."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def fingerprint(dataset: "Dataset") -> str:
    """Return a digest of what the rows say, the same on every machine."""
    digest = hashlib.sha256()
    for row in dataset:
        digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()


def skip_notes(skipped: dict[str, int]) -> list[str]:
    """Return a line that says how many examples the interventions lacked, if any did."""
    if not skipped:
        return []
    worst = max(skipped, key=skipped.__getitem__)
    return [
        f"{len(skipped)} interventions do not exist in every example and use the others; "
        f"at most {skipped[worst]} examples are left out ({worst})"
    ]


def package_versions() -> dict[str, str]:
    """Return the versions of `PACKAGES`."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
