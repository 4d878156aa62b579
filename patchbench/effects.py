"""Rows, and the effects that they add up to.

Use:

    effects = attribs(rows, corruption="key", direction="denoise", metric="p")
    effects["L1.block_input@value"]           # Estimate

Attrib of a site is (mean patched − mean base) / (mean source − mean base) over the examples that
have the site: a ratio of means, which may leave [0, 1].
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from patchbench.common import UserError, near_names
from patchbench.statistics import LEVEL, RESAMPLES, Estimate, ratio_of_means

METRICS = ("p", "logp", "logit", "logit_diff")

# An intervention at several sites has them all in `site`; the columns that take a site apart
# describe the first.
ROW_SCHEMA = pa.schema(
    [
        pa.field("example", pa.int64(), nullable=False),
        pa.field("site", pa.string(), nullable=False),
        pa.field("layer", pa.int32()),
        pa.field("component", pa.string(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("offset", pa.int32(), nullable=False),
        pa.field("head", pa.int32()),
        pa.field("corruption", pa.string(), nullable=False),
        pa.field("direction", pa.string(), nullable=False),
        pa.field("control", pa.string()),
        *(
            # The logit difference is null where the corruption has no counterfactual answer.
            pa.field(f"{metric}_{run}", pa.float64(), nullable=metric == "logit_diff")
            for metric in METRICS
            for run in ("base", "source", "patched")
        ),
        pa.field("kl_base", pa.float64(), nullable=False),  # KL(source ‖ base)
        pa.field("kl_patched", pa.float64(), nullable=False),  # KL(source ‖ patched)
        pa.field("correct", pa.bool_(), nullable=False),  # of the clean run
        pa.field("correct_in_context", pa.bool_(), nullable=False),  # among the candidates
        pa.field("distance", pa.int32(), nullable=False),
        pa.field("heuristic", pa.bool_(), nullable=False),
    ]
)


def select(rows: pa.Table, corruption: str, direction: str) -> pa.Table:
    """Return the measurements (not the controls) of one corruption and direction.

    Raises:
        UserError: there are none.
    """
    measured = rows.filter(pc.field("control").is_null())
    for column, value in (("corruption", corruption), ("direction", direction)):
        known = measured[column].unique().to_pylist()
        if value not in known:
            raise UserError(f"no rows with {column} {value!r}", near_names(value, known))
    return measured.filter(
        (pc.field("corruption") == corruption) & (pc.field("direction") == direction)
    )


def attribs(
    rows: pa.Table,
    *,
    corruption: str,
    direction: str,
    metric: str = "p",
    sites: Sequence[str] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, Estimate]:
    """Return Attrib by site.

    All sites share the bootstrap's draws, and so do separate calls with one seed.

    Args:
        rows: of `ROW_SCHEMA`.
        corruption: which rows.
        direction: which rows.
        metric: one of `METRICS`.
        sites: as in the `site` column; None for all, in the order of the rows.
        seed: of the bootstrap.
        resamples: of the bootstrap.
        level: of the intervals.

    Raises:
        UserError: unknown corruption, direction, site or metric.
    """
    names, numerator, denominator = differences(
        rows, corruption=corruption, direction=direction, metric=metric, sites=sites
    )
    estimates = ratio_of_means(
        numerator, denominator, rng=np.random.default_rng(seed), resamples=resamples, level=level
    )
    return dict(zip(names, estimates, strict=True))


def differences(
    rows: pa.Table,
    *,
    corruption: str,
    direction: str,
    metric: str = "p",
    sites: Sequence[str] | None = None,
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return what Attrib is a ratio of: the sites, patched − base, and source − base.

    Args:
        rows: see `attribs`.
        corruption: see `attribs`.
        direction: see `attribs`.
        metric: see `attribs`.
        sites: see `attribs`.

    Returns:
        k sites, and two arrays (examples, k); NaN where an example lacks the site.

    Raises:
        UserError: see `attribs`.
    """
    return columns(select(rows, corruption, direction), metric=metric, sites=sites)


def columns(
    chosen: pa.Table, *, metric: str = "p", sites: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return `differences` of rows that were chosen already.

    Raises:
        UserError: unknown site or metric.
    """
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r}", near_names(metric, METRICS))
    _, example = np.unique(chosen["example"].to_numpy(), return_inverse=True)
    encoded = chosen["site"].combine_chunks().dictionary_encode()
    known = encoded.dictionary.to_pylist()
    places = encoded.indices.to_numpy()
    wanted = known if sites is None else list(sites)
    for site in wanted:
        if site not in known:
            raise UserError(f"no rows for site {site!r}", near_names(site, known))
    runs = [chosen[f"{metric}_{run}"].to_numpy() for run in ("patched", "base", "source")]
    present = np.isfinite if metric == "logit_diff" else np.ones_like
    if not all(np.isfinite(values[present(values).astype(bool)]).all() for values in runs):
        raise UserError(
            f"{metric} is not finite in some rows", "the model excludes the answer there; use 'p'"
        )
    patched, base, source = runs
    shape = (int(example.max(initial=-1)) + 1, len(known))
    numerator, denominator = np.full(shape, np.nan), np.full(shape, np.nan)
    numerator[example, places] = patched - base
    denominator[example, places] = source - base
    order = [known.index(site) for site in wanted]
    return wanted, numerator[:, order], denominator[:, order]
