"""What a tracked run consists of: settings, scalars by stable names, a table, figures, curves.

Use:

    content = measured(result, "mamba")
    content.scalars["attrib/key/L1.block_input@value"]
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.sites import single_site

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from patchbench.comparing import Comparison
    from patchbench.results import Result

_ESTIMATES = ("accuracy", "accuracy_in_context", "accuracy_beyond_heuristics")
_COSTS = ("p_clean", "p_corrupted", "gap")
_COLUMNS = ("corruption", "direction", "site", "layer", "component", "position")
_LIMITS = ("value", "low", "high")
# What transformers calls the step of a training.
STEP = "train/global_step"


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a run consists of, besides a folder."""

    name: str
    config: dict[str, Any]
    scalars: dict[str, Any]
    table: tuple[str, list[Any], list[Any]]
    figures: "Mapping[str, go.Figure] | None" = None  # None: those of the Result


def measured(result: "Result", name: str) -> Content:
    """Return what a Result consists of."""
    origin = {key: value for key, value in result.provenance.items() if key != "example"}
    return Content(
        name=name,
        config={**result.config, "provenance": origin},
        scalars=scalars(result),
        table=("sites", *site_table(result)),
    )


def compared(comparison: "Comparison", results: "Mapping[str, Result]") -> Content:
    """Return what a comparison consists of."""
    from patchbench.report.compare import as_frame
    from patchbench.report.comparison_figures import comparison_figures

    frame = as_frame(comparison)
    plain: dict[str, Any] = comparison.to_json()
    del plain["rows"]
    rows = json.loads(frame.to_json(orient="values") or "[]")
    return Content(
        name="comparison",
        config=plain,
        scalars={"runs": len(rows)},
        table=("comparison", list(frame.columns), rows),
        figures=comparison_figures(comparison, results),
    )


def training_curves(folder: Path) -> list[dict[str, float]]:
    """Return a training's history by transformers' names; [] for a Result that is of none.

    Args:
        folder: of the Result.

    Raises:
        UserError: the record of the training is damaged.
    """
    from patchbench.training.folder import FILE, RESULT, read_folder

    if folder.name != RESULT or not (folder.parent / FILE).is_file():
        return []
    history = read_folder(folder.parent).content.get("history") or []
    named = [{f"train/{name}": value for name, value in line.items()} for line in history]
    return [
        {STEP: line.pop("train/step")} | {n: v for n, v in line.items() if v is not None}
        for line in named
    ]


def scalars(result: "Result") -> dict[str, float | str]:
    """Return what is worth a column, by names that do not change.

    `accuracy`, `gap/key`, `attrib/key/L1.block_input@value` (denoised; `attrib_noise/…` noised),
    each with `…/low` and `…/high`; `floor`, `verdict`, `n`. What was not measured is left out.
    """
    found: dict[str, float | str] = {}

    def add(name: str, estimate: Mapping[str, Any] | None) -> None:
        if estimate is None or estimate["value"] is None:
            return
        found[name] = estimate["value"]
        found[f"{name}/low"], found[f"{name}/high"] = estimate["low"], estimate["high"]

    summary = result.summary
    for name in _ESTIMATES:
        add(name, summary.get(name))
    for run in summary["runs"]:
        noise = "" if run["direction"] == "denoise" else "_noise"
        for name in _COSTS:
            add(f"{name}{noise}/{run['corruption']}", run.get(name))
        for effect in run["effects"]:
            add(f"attrib{noise}/{run['corruption']}/{effect['site']}", effect.get("attrib"))
    found["floor"], found["n"] = summary["floor"], summary["n"]
    found["verdict"] = str(result.verdict)
    return found


def site_table(result: "Result") -> tuple[list[str], list[list[Any]]]:
    """Return the header and a row for each site, corruption and direction above the gate."""
    rows = []
    for run in result.summary["runs"]:
        for effect in run["effects"]:
            text = effect["site"]
            site = single_site(text)
            place = (site.layer, site.component, str(site.position)) if site else (None,) * 3
            numbers = [(effect.get("attrib") or {}).get(limit) for limit in _LIMITS]
            which = [run["corruption"], run["direction"], text]
            rows.append([*which, *place, *numbers, effect.get("p_value"), effect.get("q_value")])
    header = [*_COLUMNS, "attrib", "attrib_low", "attrib_high", "p_value", "q_value"]
    return header, rows
