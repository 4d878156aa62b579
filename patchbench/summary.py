"""What the rows say, in a page: the gate first, then the effects.

Use:

    summary = summarise(rows, config=config, provenance=provenance, controls=checks)
    summary["runs"][0]["reasons"]      # why no effects are shown; empty above the gate

A ratio says where an association is stored only if there is one. Below the gate, that is when the
model does no better than a heuristic, or when the corruption hardly changes its answer, the
denominator is noise and there are no effects.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench.effects import attribs, select
from patchbench.statistics import RESAMPLES, Estimate, mean, wilson

# The corruption must cost this much probability at least, at the lower end of the interval.
MIN_GAP = 0.01


def summarise(
    rows: pa.Table,
    *,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    controls: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the summary, ready for JSON; estimates as `Estimate.to_json` gives them.

    Args:
        rows: of `ROW_SCHEMA`.
        config: may have `seed`, `resamples`, `split`, `template`, `shots`.
        provenance: what `collect_provenance` returned.
        controls: outcome of each control, with its `corruption` and `direction`.
    """
    task = provenance["task"]
    floor = task["floors"][task["floor"]]
    first = np.unique(rows["example"].to_numpy(), return_index=True)[1]
    examples = rows.take(first)
    correct = examples["correct"].to_numpy()
    hard = ~examples["heuristic"].to_numpy()
    accuracy = _share(correct)
    return {
        "model": provenance["model"],
        "task": {
            "name": task["name"],
            "seed": task["seed"],
            "split": config.get("split"),
            "template": provenance.get("template") or config.get("template"),
            "shots": config.get("shots", 0),
            "floor": task["floor"],
        },
        "n": len(examples),
        "accuracy": accuracy.to_json(),
        "accuracy_in_context": _share(examples["correct_in_context"].to_numpy()).to_json(),
        "accuracy_beyond_heuristics": _share(correct[hard]).to_json(),
        "accuracy_by_distance": _by_distance(correct, examples["distance"].to_numpy()),
        "floor": floor,
        "runs": [
            _run(
                rows,
                corruption,
                direction,
                accuracy=accuracy,
                floor=floor,
                seed=config.get("seed", 0),
                resamples=config.get("resamples", RESAMPLES),
                controls=controls,
            )
            for corruption, direction in measured_pairs(rows)
        ],
    }


def measured_pairs(rows: pa.Table) -> list[tuple[str, str]]:
    """Return the (corruption, direction) pairs that were measured, in the order of the rows."""
    measured = rows.filter(pc.field("control").is_null())
    columns = (measured[name].to_pylist() for name in ("corruption", "direction"))
    return list(dict.fromkeys(zip(*columns, strict=True)))


def gate(accuracy: Estimate, floor: float, gap: Estimate) -> list[str]:
    """Return why the effects would mean nothing; empty if they mean something."""
    reasons = []
    if not accuracy.low > floor:
        reasons.append(
            f"accuracy {accuracy.value:.3f} (at least {accuracy.low:.3f}) is not above the floor "
            f"{floor:.3f}"
        )
    if not gap.low > MIN_GAP:
        reasons.append(
            f"the corruption costs {gap.value:.3f} of p(answer) (at least {gap.low:.3f}), and "
            f"{MIN_GAP} is needed"
        )
    return reasons


def _run(
    rows: pa.Table,
    corruption: str,
    direction: str,
    *,
    accuracy: Estimate,
    floor: float,
    seed: int,
    resamples: int,
    controls: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    chosen = select(rows, corruption, direction)
    first = np.unique(chosen["example"].to_numpy(), return_index=True)[1]
    base, source = (chosen[f"p_{run}"].to_numpy()[first] for run in ("base", "source"))
    clean, corrupted = (source, base) if direction == "denoise" else (base, source)

    def estimate(values: np.ndarray, bounds: tuple[float, float]) -> Estimate:
        rng = np.random.default_rng(seed)
        return mean(values, rng=rng, resamples=resamples, bounds=bounds)

    gap = estimate(clean - corrupted, (-1.0, 1.0))
    reasons = gate(accuracy, floor, gap)
    which = {"corruption": corruption, "direction": direction, "seed": seed, "resamples": resamples}
    effects = {} if reasons else attribs(rows, **which)
    has_twin = chosen["logit_diff_base"].null_count < len(chosen)
    margins = attribs(rows, metric="logit_diff", **which) if effects and has_twin else {}
    return {
        "corruption": corruption,
        "direction": direction,
        "n": len(first),
        "p_clean": estimate(clean, (0.0, 1.0)).to_json(),
        "p_corrupted": estimate(corrupted, (0.0, 1.0)).to_json(),
        "gap": gap.to_json(),
        "reasons": reasons,
        "controls": [
            dict(control)
            for control in controls
            if (control["corruption"], control["direction"]) == (corruption, direction)
        ],
        "effects": [
            {
                "site": site,
                "attrib": effect.to_json(),
                "attrib_logit_diff": margins[site].to_json() if site in margins else None,
            }
            for site, effect in effects.items()
        ],
    }


def _by_distance(correct: np.ndarray, distance: np.ndarray) -> list[dict[str, Any]]:
    """Return the accuracy in bins of distance: 1, 2–3, 4–7, 8–15 and so on."""
    bins = np.floor(np.log2(np.maximum(distance, 1))).astype(int)
    return [
        {
            "from": int(2**number),
            "to": int(2 ** (number + 1) - 1),
            "accuracy": _share(correct[bins == number]).to_json(),
        }
        for number in np.unique(bins)
    ]


def _share(hits: np.ndarray) -> Estimate:
    return wilson(int(hits.sum()), len(hits))
