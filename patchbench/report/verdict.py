"""The verdict in the terminal, and what stands behind it: metrics, directions and strata.

Use:

    print_verdict(console, result.verdict)
    print_verdicts({"ar-mamba": result, …})          # several Results, a line each
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from patchbench.mechanism import Verdict
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.results import Result

# Sites that are shown by every metric and stratum.
STRONGEST = 4
_METRICS = (("attrib", "p"), ("attrib_logp", "log p"), ("attrib_logit_diff", "Δlogit"))


def print_verdict(console: Console, verdict: Verdict) -> None:
    """Print the label and the sentence."""
    style = "bold green" if verdict.is_mechanism else "yellow"
    console.print(f"verdict  [{style}]{verdict}[/]: {escape(verdict.sentence)}")
    if verdict.generalises:
        console.print(escape(verdict.generalises))


def print_verdicts(console: Console, results: "Mapping[str, Result]") -> None:
    """Print the verdict of each Result with the sites that decided it."""
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("acc.", justify="right", no_wrap=True)
    table.add_column("verdict")
    table.add_column("decided by", overflow="fold")
    for name, result in results.items():
        verdict = result.verdict
        sites = [f"{site} {effect.value + 0.0:.2f}" for site, effect in verdict.sites.items()]
        accuracy = f"{result.accuracy.value:.2f}"
        table.add_row(escape(name), accuracy, str(verdict), escape(", ".join(sites)))
    console.print(table)


def strongest(run: Mapping[str, Any]) -> list[str]:
    """Return the sites that decided a run, and then those with the largest effects.

    The input of the first layer is left out: there the effect of a token is its own.
    """
    name = "attrib_logit_diff" if run["primary"] == "logit_diff" else "attrib"
    inner = [
        e for e in run["effects"] if e[name] and not e["site"].startswith(("L0.block_", "emb"))
    ]
    inner.sort(key=lambda e: -abs(e[name]["value"] or 0.0))
    decided = list(run["verdict"]["sites"])
    return list(dict.fromkeys([*decided, *(e["site"] for e in inner)]))[:STRONGEST]


def print_found(console: Console, run: Mapping[str, Any]) -> None:
    """Print how many sites of the grid have an effect at all."""
    level = run["false_discoveries"]
    count = sum(effect["q_value"] <= level for effect in run["effects"])
    console.print(
        f"{count} of {run['family']} sites differ from 0 (false discovery rate {level:.0%})"
    )


def print_metrics(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Print the strongest sites by every metric, both directions of a corruption side by side."""
    runs = [run for run in runs if not run["reasons"]]
    if not runs:
        return
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{runs[0]['corruption']} corrupted", overflow="fold")
    columns = []
    for run in runs:
        by_site = {effect["site"]: effect for effect in run["effects"]}
        for key, name in _METRICS:
            if any(effect[key] for effect in run["effects"]):
                columns.append((key, by_site))
                table.add_column(f"{run['direction']}\n{name}", justify="right", no_wrap=True)
    for site in dict.fromkeys(site for run in runs for site in strongest(run)):
        values = [(by_site.get(site) or {}).get(key) for key, by_site in columns]
        table.add_row(escape(site), *(_value(value) for value in values))
    console.print(table)


def print_strata(console: Console, summary: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Print accuracy and the strongest sites' Attrib for each stratum, if there are strata."""
    if not run["strata"]:
        return
    sites = strongest(run)[:2]
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("examples", no_wrap=True)
    for name in ("n", "accuracy", "Δp"):
        table.add_column(name, justify="right", no_wrap=True)
    for site in sites:
        # A long name breaks where its position begins.
        table.add_column(escape(site.replace("@", "\n@")), justify="right", overflow="fold")
    accuracies = {item["stratum"]: item["accuracy"] for item in summary["strata"]}
    for stratum in run["strata"]:
        effects = {e["site"]: Estimate.from_json(e["attrib"]) for e in stratum["effects"]}
        accuracy = accuracies.get(stratum["stratum"])
        table.add_row(
            stratum["stratum"],
            str(stratum["n"]),
            _value(accuracy),
            _value(stratum["gap"]),
            *(_with_side(effects.get(site)) for site in sites),
        )
    console.print(table)


def _value(estimate: Mapping[str, Any] | None) -> str:
    value = None if estimate is None else estimate["value"]
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"


def _with_side(estimate: Estimate | None) -> Text:
    from patchbench.report.terminal import cell

    return cell(estimate)
