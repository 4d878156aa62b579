"""A verdict in one sentence, which says what the rows show and what was looked at, no more.

Use:

    sentence(verdict, grid, run, model=provenance["model"], why="")
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from patchbench.grid import CONVOLVED, place, unseen_convolutions
from patchbench.sites import Site
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    from patchbench.grid import Grid
    from patchbench.mechanism import Verdict

METRICS = {
    "p": "p(answer)",
    "logp": "log p(answer)",
    "logit": "the answer's logit",
    "logit_diff": "the logit difference",
}
# What has to be looked at before a short convolution is ruled out: see `patchbench.grid`.
_LOOK = (
    "--components block_input,conv_output "
    f"--positions key,{','.join(f'value{offset:+d}' for offset in CONVOLVED)},query"
).replace("+0", "")


def below_the_gate(run: Mapping[str, Any]) -> str:
    """Return why nothing is said about a mechanism."""
    return f"Nothing is said about a mechanism: {'; '.join(run['reasons'])}."


def only_arrival(grid: "Grid", verdict: "Verdict") -> str:
    """Return what a corruption of the fetched token itself shows."""
    start = f"With the {verdict.corruption} corrupted no mechanism is told from another"
    if verdict.arrives is None:
        return f"{start}; the query was not looked at."
    return f"{start}; at the query its effect is first seen {_layer(verdict.arrives, grid)}."


def sentence(
    verdict: "Verdict",
    grid: "Grid",
    run: Mapping[str, Any],
    *,
    model: Mapping[str, Any],
    why: str,
) -> str:
    """Return the sentence of a verdict with the key corrupted.

    Args:
        verdict: with its label and deciding sites.
        grid: its effects.
        run: of the summary.
        model: its provenance.
        why: there is no label, if there is none.
    """
    shown = [_site(name, effect, verdict) for name, effect in verdict.sites.items()]
    tail = f" (key corrupted, 95 % intervals over {grid.n} examples, {run['family']} sites tested)"
    unseen = unseen_convolutions(grid, model)
    unseen = f"; {unseen}" if unseen and unseen not in why else ""
    if verdict.label is None:
        look = f"; {_LOOK} looks at them" if "convolutions" in why + unseen else ""
        return f"No mechanism is told from the others: {why}{tail}{unseen}{look}."
    text = {
        "induction": _induction,
        "conv-bound induction": _conv_bound,
        "direct retrieval, early": _early,
        "direct retrieval, late": _late,
        "distributed": _distributed,
    }[verdict.label](shown, verdict, grid)
    arrival = ""
    if verdict.arrives is not None and grid.num_layers > 1:
        arrival = f"; at the query the answer is first seen {_layer(verdict.arrives, grid)}"
    return f"{text[0].upper()}{text[1:]}{arrival}{tail}{unseen}."


def _induction(shown: Sequence[str], verdict: "Verdict", grid: "Grid") -> str:
    where = "the value" if _position(verdict) == "@value" else "a token behind the value"
    entered = "" if verdict.appears is None else f", first seen {_layer(verdict.appears, grid)}"
    return f"the association is stored in the residual stream at {where}{entered}: {shown[0]}"


def _conv_bound(shown: Sequence[str], verdict: "Verdict", grid: "Grid") -> str:
    where = "a short convolution binds key and value"
    if len(shown) == 1:
        return f"{where}: {shown[0]}"
    name, effect = list(verdict.sites.items())[1]
    return f"{where}: {shown[0]}, against {effect} at {name}"


def _early(shown: Sequence[str], verdict: "Verdict", grid: "Grid") -> str:
    if grid.num_layers == 1:
        return (
            f"the only layer fetches the answer, and nothing was seen to bind it before: {shown[0]}"
            f"{_shifted(grid)}"
        )
    return (
        f"the answer is fetched to the query in the first half of the layers, without being stored "
        f"in the residual stream at the value: {shown[0]}{_most(grid)}{_shifted(grid)}"
    )


def _late(shown: Sequence[str], verdict: "Verdict", grid: "Grid") -> str:
    return (
        f"the answer is fetched to the query in the second half of the layers, without being "
        f"stored in the residual stream at the value: {shown[0]}{_most(grid)}{_shifted(grid)}"
    )


def _distributed(shown: Sequence[str], verdict: "Verdict", grid: "Grid") -> str:
    return f"no single position that was looked at carries more than half: {' and '.join(shown)}"


def _most(grid: "Grid") -> str:
    """Return the largest effect of the value in the residual stream between layers."""
    at = [i for found in grid.boundaries().values() for i in found]
    at = [i for i in at if place(grid.sites[i]) == "value"]
    if not at:
        return ""
    best = max(at, key=lambda index: grid.effects[index].value)
    return f", against {grid.effects[best]} at {grid.sites[best]}"


def _shifted(grid: "Grid") -> str:
    """Return what a convolution's output at the value shows, which alone decides nothing."""
    for index, site in enumerate(grid.sites):
        at_value = site.component == "conv_output" and str(site.position) == "value"
        if at_value and grid.carries(index):
            return f"; the key reaches the value in {site} ({grid.effects[index]})"
    return ""


def _site(name: str, effect: Estimate, verdict: "Verdict") -> str:
    verb = "restores" if verdict.direction == "denoise" else "removes"
    return f"{name} alone {verb} {effect} of {METRICS[verdict.metric]}"


def _position(verdict: "Verdict") -> str:
    return f"@{Site.parse(next(iter(verdict.sites))).position}"


def _layer(layer: Estimate, grid: "Grid") -> str:
    """Return a layer with its interval, in words: as far as layers were looked at."""
    if layer.value < grid.num_layers:
        text = f"at the input of layer {layer.value:.0f}"
    elif (last := max(grid.boundaries(), default=0)) == grid.num_layers - 1:
        text = "behind the last layer"
    else:
        text = f"behind the input of layer {last}, the last that was looked at"
    if layer.low != layer.high:
        text += f" [{layer.low:.0f}, {layer.high:.0f}]"
    return text
