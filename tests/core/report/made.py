"""Results with known numbers, for the tests of what shows them."""

import copy
from typing import Any

import pyarrow as pa

from patchbench.results import Result
from patchbench.statistics import Estimate
from patchbench.training.dynamics import SCHEMA
from tests.core.rows import PROVENANCE, make_rows

EVIL = "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>"
EFFECTS = {
    "L0.block_input@key": 1.0,
    "L0.block_input@value": 0.0,
    "L0.block_input@query": 0.0,
    "L1.block_input@key": 0.25,
    "L1.block_input@value": 0.75,
    "L1.block_input@query": 0.0,
}


def result(
    effects=EFFECTS,
    *,
    name="m",
    n=40,
    right=36,
    digest="a",
    tables: list[pa.Table] | None = None,
    config: dict[str, Any] | None = None,
    **rows,
) -> Result:
    """Return a Result whose rows are `tables`, by default those of `effects`."""
    model = PROVENANCE["model"] | {
        "name": name,
        "num_layers": 2,
        "components": ["block_input"],
    }
    origin = {
        "model": model,
        "notes": [name],
        "command": f"patchbench evaluate --model {name}",
        "dataset": {"rows": n, "sha256": digest},
        "task": PROVENANCE["task"] | {"config": {}},
        "example": {
            "tokens": ["a", name, "c", "d"],
            "roles": {"key": 0, "value": 1, "query": 2, "answer": 3},
            "corruptions": {"key": ["b", name, "c", "d"]},
        },
    }
    return Result.from_rows(
        pa.concat_tables(tables or [make_rows(effects, n=n, right=right, **rows)]),
        config={"resamples": 300, "components": ["block_input"], "corruptions": ["key"]}
        | (config or {}),
        provenance=PROVENANCE | origin,
    )


def scored(scores, found=None):
    """Return a Result with first-order scores of some sites."""
    found = copy.deepcopy(found or result())
    lines = [
        {"site": site, "attrib": Estimate(value, value, value, n=40).to_json()}
        for site, value in scores.items()
    ]
    found.summary["attribution"] = {
        "ig_steps": 0,
        "runs": [{"corruption": "key", "direction": "denoise", "scores": lines}],
    }
    return found


def dynamics(changes=None):
    """Return what was measured at three steps of a training of two layers."""
    lines = []
    for step, loss, effect in [(100, 4.0, None), (200, 1.5, 0.25), (300, 0.25, 0.875)]:
        for layer, position in [(0, "value"), (1, "value"), (1, "key")]:
            scale = {(0, "value"): 0.0, (1, "value"): 1.0, (1, "key"): 0.5}[layer, position]
            attrib = None if effect is None else effect * scale
            lines.append(
                {
                    "step": step,
                    "loss": loss,
                    "accuracy": None,
                    "dev_loss": loss,
                    "dev_accuracy": 1 / loss / 4,
                    "site": f"L{layer}.block_input@{position}",
                    "layer": layer,
                    "component": "block_input",
                    "position": position,
                    "n": 64,
                    "p_clean": 0.5,
                    "p_corrupted": 0.1,
                    "p_patched": 0.2,
                    "attrib": attrib,
                    "attrib_low": None if attrib is None else attrib - 0.125,
                    "attrib_high": None if attrib is None else attrib + 0.0625,
                }
                | (changes or {})
            )
    return pa.Table.from_pylist(lines, schema=SCHEMA)
