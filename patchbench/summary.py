"""What the rows say, in a page: the gate first, then the effects.

Use:

    summary = summarise(rows, config=config, provenance=provenance, controls=checks)
    summary["runs"][0]["reasons"]      # why no effects are shown; empty above the gate

A ratio says where an association is stored only if there is one. Below the gate, that is when the
model does no better than a heuristic, or when the corruption hardly changes its answer, the
denominator is noise and there are no effects.

Which metric is read first (`primary` of a run): the logit difference where every example has a
counterfactual answer and the corruption costs margin, else the answer's probability. An answer
that competes with a definite other one is told from it by their difference; where nothing competes
only the probability is left. Attrib without a word is that of the probability.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench import soft_controls
from patchbench.common import UserError
from patchbench.effects import attribs, columns, select
from patchbench.mechanism import decide
from patchbench.statistics import (
    FEWEST,
    RESAMPLES,
    Estimate,
    adjusted,
    mean,
    p_values_of_means,
)
from patchbench.strata import accuracies, distance_bins, share, strata

# The corruption must cost this much probability at least, at the lower end of the interval.
MIN_GAP = 0.01
# Expected share of false ones among the sites that are said to have an effect.
FALSE_DISCOVERIES = 0.05


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
    measured = rows.filter(pc.field("control").is_null())
    examples = _one_each(measured)
    correct = examples["correct"].to_numpy()
    hard = ~examples["heuristic"].to_numpy()
    accuracy = share(correct)
    draws: dict[str, Any] = {
        "seed": config.get("seed", 0),
        "resamples": config.get("resamples", RESAMPLES),
    }
    runs = [
        _run(
            measured,
            corruption,
            direction,
            accuracy=accuracy,
            floor=floor,
            draws=draws,
            controls=controls,
        )
        for corruption, direction in measured_pairs(rows)
    ]
    for run in runs:
        run["soft_controls"] = soft_controls.effects(
            rows, run["corruption"], run["direction"], **draws
        )
        run["verdict"] = decide(
            measured,
            run,
            model=provenance["model"],
            solved=accuracy.low > floor,
            with_value=run_of(runs, "value", run["direction"]),
            **draws,
        ).to_json()
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
        "accuracy_in_context": share(examples["correct_in_context"].to_numpy()).to_json(),
        "accuracy_beyond_heuristics": share(correct[hard]).to_json(),
        "accuracy_by_distance": _by_distance(correct, examples["distance"].to_numpy()),
        "strata": accuracies(examples),
        "floor": floor,
        "runs": runs,
        # With the key corrupted and restored, as the labels are defined; else the first there is.
        "verdict": (run_of(runs, "key", "denoise") or run_of(runs, "key", "noise") or runs[0])[
            "verdict"
        ],
    }


def run_of(
    runs: Sequence[dict[str, Any]], corruption: str, direction: str
) -> dict[str, Any] | None:
    """Return the run of a corruption and direction, None if it was not measured."""
    found = (
        run for run in runs if (run["corruption"], run["direction"]) == (corruption, direction)
    )
    return next(found, None)


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
    return reasons + _small(gap)


def _small(gap: Estimate) -> list[str]:
    if gap.n < FEWEST:
        return [f"{FEWEST} examples are needed for an interval, and there are {gap.n}"]
    if gap.low > MIN_GAP:
        return []
    return [
        f"the corruption costs {_plain(gap.value)} of p(answer) (at least {_plain(gap.low)}), and "
        f"{MIN_GAP} is needed"
    ]


def _plain(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # no negative zero


def costs(
    chosen: pa.Table, *, seed: int, resamples: int, metric: str = "p"
) -> tuple[Estimate, Estimate, Estimate]:
    """Return a metric in the clean run, in the corrupted one, and their difference.

    Args:
        chosen: rows of one corruption and direction.
        seed: of the bootstrap.
        resamples: of the bootstrap.
        metric: one of `METRICS`.
    """
    examples = _one_each(chosen)
    base, source = (examples[f"{metric}_{run}"].to_numpy() for run in ("base", "source"))
    denoise = examples["direction"][0].as_py() == "denoise"
    clean, corrupted = (source, base) if denoise else (base, source)

    def estimate(values: np.ndarray, bounds: tuple[float, float]) -> Estimate:
        rng = np.random.default_rng(seed)
        return mean(values, rng=rng, resamples=resamples, bounds=bounds)

    # Only a probability has limits.
    own, gap = ((0.0, 1.0), (-1.0, 1.0)) if metric == "p" else ((nan, nan), (nan, nan))
    return estimate(clean, own), estimate(corrupted, own), estimate(clean - corrupted, gap)


def _run(
    measured: pa.Table,
    corruption: str,
    direction: str,
    *,
    accuracy: Estimate,
    floor: float,
    draws: Mapping[str, Any],
    controls: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    chosen = select(measured, corruption, direction)
    clean, corrupted, gap = costs(chosen, **draws)
    reasons = gate(accuracy, floor, gap)
    return {
        "corruption": corruption,
        "direction": direction,
        "n": gap.n,
        "p_clean": clean.to_json(),
        "p_corrupted": corrupted.to_json(),
        "gap": gap.to_json(),
        "reasons": reasons,
        "primary": _primary(chosen, draws),
        "family": len(chosen["site"].unique()),
        "false_discoveries": FALSE_DISCOVERIES,
        "controls": [
            dict(control)
            for control in controls
            if (control["corruption"], control["direction"]) == (corruption, direction)
        ],
        "effects": [] if reasons else _effects(chosen, corruption, direction, draws),
        "strata": [] if reasons else _strata(chosen, corruption, direction, draws),
    }


def _primary(chosen: pa.Table, draws: Mapping[str, Any]) -> str:
    """Return the metric that is read first: see the module."""
    if chosen["logit_diff_base"].null_count or chosen["logit_diff_source"].null_count:
        return "p"
    return "logit_diff" if costs(chosen, metric="logit_diff", **draws)[2].low > 0 else "p"


def _effects(
    chosen: pa.Table, corruption: str, direction: str, draws: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return Attrib of every site by every metric, and whether it is told from 0."""
    which = {"corruption": corruption, "direction": direction, **draws}
    names, numerator, _ = columns(chosen)
    p = p_values_of_means(numerator)
    q = adjusted(p)
    found: dict[str, Mapping[str, Estimate]] = {"attrib": attribs(chosen, **which)}
    for metric in ("logp", "logit_diff"):
        found[f"attrib_{metric}"] = {}
        if metric == "logit_diff" and chosen["logit_diff_base"].null_count == len(chosen):
            continue
        # A model that excludes the answer somewhere has no mean log p.
        with suppress(UserError):
            found[f"attrib_{metric}"] = attribs(chosen, metric=metric, **which)
    return [
        {"site": site}
        | {key: by[site].to_json() if site in by else None for key, by in found.items()}
        | {"p_value": float(p[index]), "q_value": float(q[index])}
        for index, site in enumerate(names)
    ]


def _strata(
    chosen: pa.Table, corruption: str, direction: str, draws: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the gap and the effects of each stratum; no effects where the gap is too small."""
    found = []
    for stratum in strata(_one_each(chosen)):
        part = stratum.rows(chosen)
        gap = costs(part, **draws)[2]
        reasons = _small(gap)
        effects = attribs(part, corruption=corruption, direction=direction, **draws)
        found.append(
            {
                "stratum": stratum.name,
                "n": len(stratum.examples),
                "gap": gap.to_json(),
                "reasons": reasons,
                "effects": []
                if reasons
                else [{"site": name, "attrib": e.to_json()} for name, e in effects.items()],
            }
        )
    return found


def _one_each(rows: pa.Table) -> pa.Table:
    """Return the first row of each example."""
    return rows.take(np.unique(rows["example"].to_numpy(), return_index=True)[1])


def _by_distance(correct: np.ndarray, distance: np.ndarray) -> list[dict[str, Any]]:
    low = distance_bins(distance)
    return [
        {
            "from": int(start),
            "to": int(2 * start - 1),
            "accuracy": share(correct[low == start]).to_json(),
        }
        for start in np.unique(low)
    ]
