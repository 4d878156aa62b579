"""First-order estimates of Attrib: every site at once from two forwards and one backward.

Use:

    estimates = first_order(loaded, plan, batch)               # a row per example and site
    attribs(estimates, corruption="key", direction="denoise")  # site → Estimate
    foremost(estimates, plan, 8)                               # what is worth running exactly

Attribution patching (Syed et al., arXiv 2310.10348) takes the patched run for its linear part:
the effect of a site is Σ (source − base) · ∂p(answer)/∂activation over the site's features, with
the gradient at the base run. It is exact where p(answer) is linear in the site and can be far off
elsewhere, so it never stands in for exact numbers: a few sites are run exactly, and the report
compares the two there.

`ig_steps` = M integrates the gradient from the base's to the source's activation by the midpoint
rule, each site by itself. That approaches the exact effect as M grows, and takes M forwards and
backwards for each site: a look at how p bends, no way to save time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from patchbench.adapters.running import scoring
from patchbench.common import UserError
from patchbench.effects import attribs
from patchbench.engines.base import Batch, Counters
from patchbench.engines.scoring import halving
from patchbench.gradients import REMEDY, SCHEMA, Pair, frozen
from patchbench.interventions import Intervention

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel


def first_order(
    loaded: "LoadedModel",
    plan: Sequence[Intervention],
    batch: Batch,
    *,
    ig_steps: int = 0,
    counters: Counters | None = None,
) -> pa.Table:
    """Return the first-order estimate of each intervention on each example.

    The model is left as it was: mode, gradients, `requires_grad` and hooks.

    Args:
        loaded: the model.
        plan: interventions at one site each.
        batch: the examples; halved where they do not fit into memory.
        ig_steps: steps of the integral; 0 takes the gradient at the base.
        counters: counts the forwards.

    Returns:
        Rows of `SCHEMA`, where `p_patched` is p_base + the estimated effect. An example without
        the site has none.

    Raises:
        UserError: several sites patched together, a place that no hook reaches or that p(answer)
            cannot be differentiated by, or a gradient that is not finite.
    """
    for item in plan:
        _refuse(loaded, item)
    counters = Counters() if counters is None else counters
    pairs: dict[tuple[str, str], list[Intervention]] = {}
    for item in plan:
        pairs.setdefault((item.base_run, item.source_run), []).append(item)

    def run(part: Batch) -> pa.Table:
        with scoring(loaded.model), frozen(loaded.model):
            jobs = [Pair(loaded, part, items, counters) for items in pairs.values()]
            return pa.concat_tables([SCHEMA.empty_table(), *(job.run(ig_steps) for job in jobs)])

    return halving(run, batch, counters)


def forwards(plan: Sequence[Intervention], ig_steps: int) -> int:
    """Return how many forwards `first_order` takes for a batch."""
    return 2 * len({(item.base_run, item.source_run) for item in plan}) + ig_steps * len(plan)


def prefilter(
    loaded: "LoadedModel",
    plan: Sequence[Intervention],
    batches: Sequence[Batch],
    *,
    count: int,
    ig_steps: int,
    counters: Counters,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[pa.Table, list[Intervention]]:
    """Return the estimates of a plan's measurements, and what of the plan is to be run exactly.

    The latter are the controls, and the `foremost` of the rest; for the other arguments and the
    errors see `first_order`.

    Args:
        loaded: the model.
        plan: with its controls.
        batches: all examples.
        count: sites of each corruption and direction.
        ig_steps: see `first_order`.
        counters: counts the forwards.
        progress: called with (forward rows done, rows in all) after each batch.
    """
    measured = [item for item in plan if item.control is None]
    each = forwards(measured, ig_steps)
    tables, done, total = [], 0, each * sum(map(len, batches))
    for batch in batches:
        tables.append(first_order(loaded, measured, batch, ig_steps=ig_steps, counters=counters))
        done += each * len(batch)
        if progress is not None:
            progress(done, total)
    estimates = pa.concat_tables(tables)
    chosen = set(foremost(estimates, measured, count))
    return estimates, [item for item in plan if item.control is not None or item in chosen]


def foremost(estimates: pa.Table, plan: Sequence[Intervention], count: int) -> list[Intervention]:
    """Return the `count` interventions of each corruption and direction with the largest |score|.

    They come in the order of the plan. One that no example has is never among them.
    """
    chosen: set[Intervention] = set()
    for corruption, direction in {(item.corruption, item.direction): None for item in plan}:
        pair = [i for i in plan if (i.corruption, i.direction) == (corruption, direction)]
        scores = _values(estimates, corruption, direction)
        sizes = {
            item: np.nan_to_num(abs(scores[item.label]), nan=-1.0)
            for item in pair
            if item.label in scores
        }
        chosen |= set(sorted(sizes, key=lambda item: -sizes[item])[:count])
    return [item for item in plan if item in chosen]


def summarise(
    estimates: pa.Table,
    runs: Sequence[Mapping[str, Any]],
    *,
    ig_steps: int,
    seed: int,
    resamples: int,
) -> dict[str, Any]:
    """Return the scores and how they compare with the exact numbers, ready for JSON.

    Args:
        estimates: what `first_order` returned, of all batches.
        runs: of the summary of the exact rows. One below the gate gets no scores either.
        ig_steps: as they were computed.
        seed: of the bootstrap.
        resamples: of the bootstrap.
    """
    found = []
    for run in runs:
        which = {name: run[name] for name in ("corruption", "direction")}
        scores = (
            {} if run["reasons"] else attribs(estimates, **which, seed=seed, resamples=resamples)
        )
        exact = {effect["site"]: effect["attrib"]["value"] for effect in run["effects"]}
        found.append(
            {
                **which,
                "scores": [
                    {"site": site, "attrib": score.to_json()} for site, score in scores.items()
                ],
                "against_exact": against_exact(
                    {site: score.value for site, score in scores.items()}, exact
                ),
            }
        )
    return {"kind": "first order", "metric": "p", "ig_steps": ig_steps, "runs": found}


def against_exact(
    scores: Mapping[str, float], exact: Mapping[str, float | None]
) -> dict[str, Any] | None:
    """Return how far scores are from exact numbers, on the sites that have both.

    Returns:
        `n` sites, Spearman's `rank_correlation` (None for fewer than two sites or where one side is
        constant), the `largest_error` and the `site` that has it; None where there is no site.
    """
    from scipy.stats import rankdata

    both = {
        site: (scores[site], value)
        for site, value in exact.items()
        if value is not None and np.isfinite(scores.get(site, np.nan))
    }
    if not both:
        return None
    estimated, true = np.array(list(both.values())).T
    errors = np.abs(estimated - true)
    ranked = len(both) > 1 and np.ptp(estimated) > 0 and np.ptp(true) > 0
    return {
        "n": len(both),
        "rank_correlation": float(np.corrcoef(rankdata(estimated), rankdata(true))[0, 1])
        if ranked
        else None,
        "largest_error": float(errors.max()),
        "site": list(both)[int(errors.argmax())],
    }


def _refuse(loaded: "LoadedModel", item: Intervention) -> None:
    if len(item.sites) != 1 or item.source != "counterpart":
        raise UserError(
            f"{item.label}: first-order scores are of one site, patched from the other run", REMEDY
        )
    for site in (*item.sites, *item.donors):
        point = loaded.hook_map.point(site.layer, site.component)
        if point.source is not None:
            raise UserError(
                f"{site} is inside the forward of {point.path}, where no hook reaches",
                "use --method exact --engine nnsight",
            )


def _values(estimates: pa.Table, corruption: str, direction: str) -> dict[str, float]:
    scores = attribs(estimates, corruption=corruption, direction=direction, resamples=1)
    return {site: score.value for site, score in scores.items()}
