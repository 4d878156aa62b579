"""Held-out pairs: how test, which asks pairs that training never asks, differs from dev.

| what the interval of test − dev shows             | outcome   | where it is said          |
|----------------------------------------------------|-----------|---------------------------|
| it excludes 0                                      | lower,    | in the verdict            |
|                                                    | higher    |                           |
| it includes 0, and excludes a difference of 0.05   | alike     | beside the verdict: recall|
| either way                                         |           | generalises to the pairs  |
| it includes 0 and 0.05 or −0.05                    | undecided | beside the verdict, so    |

So the verdict speaks of generalisation only where a difference is told from 0, and an interval that
merely includes 0 says nothing. What is compared is accuracy, and Attrib of the sites that decided
the verdict; its intervals hold together at 95 % (each at 1 − 0.05 / their number). Test and dev are
different examples, so that both are resampled by themselves. The pairs are taken as they are: other
pairs held out would be another experiment.

Use:

    recorded = check(loaded, task, split="test")
    with_dev(result, dev, recorded=recorded).summary["held_out"]["accuracy"]
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchbench.common import UserError
from patchbench.effects import differences
from patchbench.result_file import DEV
from patchbench.results import Result
from patchbench.statistics import LEVEL, ROUNDING, Estimate, interval, newcombe, ratio_draws
from patchbench.summary import run_of

if TYPE_CHECKING:
    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task

# A difference of accuracy or Attrib below this is none that is worth a word.
MARGIN = 0.05
LOWER, HIGHER, ALIKE, UNDECIDED = "lower", "higher", "alike", "undecided"


def check(loaded: "LoadedModel", task: "Task", *, split: str) -> bool:
    """Return whether it is on record that training asked none of the pairs that test asks.

    Raises:
        UserError: the task holds no pairs out, test is not what is measured, or the model's folder
            says that it was trained on other pairs.
    """
    if not getattr(task.config, "held_out", 0.0):
        raise UserError(
            f"task {task.name!r} holds no pairs out", "add --set held_out=0.2, as the training had"
        )
    if split != "test":
        raise UserError(
            f"held-out pairs with split {split!r}", "they are those of test: leave --split out"
        )
    from patchbench.adapters.bundled import find_bundled

    bundled = find_bundled(loaded.name)
    return _check_training(Path(loaded.name) if bundled is None else bundled.folder, task)


def _check_training(folder: Path, task: "Task") -> bool:
    from patchbench.common.differences import differences as settings_that_differ
    from patchbench.training.folder import FILE, read_folder

    if not (folder / FILE).is_file():
        return False
    training = read_folder(folder).content["config"]
    trained = training.get("task") or {}
    family, own = (str(name).partition("/")[0] for name in (trained.get("name"), task.name))
    wanted = {"task": own, "seed": task.seed, **asdict(task.config)}
    before = {"task": family, "seed": trained.get("seed"), **(trained.get("config") or {})}
    if found := settings_that_differ(before, wanted):
        raise UserError(
            f"{folder} was trained on another task, whose pairs kept out are not these "
            f"({', '.join(found[:3])})",
            "take the training's own --task, --seed and --set",
        )
    for stage in training.get("training", {}).get("curriculum") or ():
        if "held_out" in (part.partition("=")[0].strip() for part in stage.split(",")):
            raise UserError(
                f"{folder} was trained with the curriculum {stage}, which asks other pairs",
                "train without held_out in a stage",
            )
    return True


@dataclass(frozen=True)
class _Compared:
    """One thing on test and on dev, with the draws or counts that its intervals come from."""

    name: str
    test: float
    dev: float
    difference: Any  # level → Estimate


def with_dev(test: Result, dev: Result, *, recorded: bool) -> Result:
    """Return the Result on test with that on dev beside it, and what their difference says.

    Args:
        test: the Result on test.
        dev: of the same settings on dev.
        recorded: whether it is on record that training asked none of the pairs of test.
    """
    found, words = _compare(test, dev)
    summary = {**test.summary, "held_out": {**found, "recorded": recorded}}
    summary["verdict"] = {**summary["verdict"], "generalises": words}
    return replace(test, summary=summary, beside={**test.beside, DEV: dev})


def _compare(test: Result, dev: Result) -> tuple[dict[str, Any], str]:
    """Return the comparison, ready for JSON, and the verdict's words on it."""
    hits, of_dev = ((round(r.accuracy.value * r.accuracy.n), r.accuracy.n) for r in (test, dev))
    accuracy = _Compared(
        "accuracy",
        test.accuracy.value,
        dev.accuracy.value,
        lambda level: newcombe(hits, of_dev, level),
    )
    verdict = test.verdict
    runs, spoken = [], [accuracy]
    for run in test.summary["runs"]:
        which = {"corruption": run["corruption"], "direction": run["direction"]}
        other = run_of(dev.summary["runs"], **which)
        effects = [] if other is None else _effects(test, dev, run, other)
        runs.append(which | {"effects": [_to_json(effect) for effect in effects]})
        if which == {"corruption": verdict.corruption, "direction": verdict.direction}:
            spoken += [effect for effect in effects if effect.name in verdict.sites]
    level = 1 - (1 - LEVEL) / len(spoken)
    decided = [(item, item.difference(level)) for item in spoken]
    outcomes = {item.name: _outcome(difference) for item, difference in decided}
    solved = verdict.label != "not solved"
    found = {
        "accuracy": _to_json(accuracy),
        "dev_verdict": dev.summary["verdict"]["label"],
        "margin": MARGIN,
        "level": level,
        "outcomes": outcomes,
        "reading": _reading(decided, outcomes, solved=solved),
        "runs": runs,
    }
    apart = [
        _phrase(item, difference)
        for item, difference in decided
        if outcomes[item.name] in (LOWER, HIGHER)
    ]
    words = f"Generalisation to held-out pairs: {'; '.join(apart)}." if apart else ""
    return found, words


def _effects(
    test: Result, dev: Result, run: Mapping[str, Any], other: Mapping[str, Any]
) -> list[_Compared]:
    """Return Attrib of the sites that both have, where both are above the gate."""
    there = {effect["site"] for effect in other["effects"]}
    sites = [effect["site"] for effect in run["effects"] if effect["site"] in there]
    if not sites:
        return []
    metric = run["primary"] if run["primary"] == other["primary"] else "p"
    values, drawn, n = [], [], []
    for number, result in enumerate((test, dev)):
        _, top, bottom = differences(
            result.rows,
            corruption=run["corruption"],
            direction=run["direction"],
            metric=metric,
            sites=sites,
        )
        # Two streams: equal draws would pass for equal examples.
        rng = np.random.default_rng([result.config["seed"], number])
        value, draws, count = ratio_draws(
            top, bottom, rng=rng, resamples=result.config["resamples"]
        )
        values.append(value)
        drawn.append(draws)
        n.append(count)
    apart = drawn[0] - drawn[1]

    def difference(column: int, level: float) -> Estimate:
        (low,), (high,) = interval(apart[:, [column]], level)
        value = values[0][column] - values[1][column]
        return Estimate(float(value), float(low), float(high), int(n[0][column] + n[1][column]))

    return [
        _Compared(
            site,
            float(values[0][column]),
            float(values[1][column]),
            lambda level, column=column: difference(column, level),
        )
        for column, site in enumerate(sites)
    ]


def _to_json(item: _Compared) -> dict[str, Any]:
    sides = {
        name: value if np.isfinite(value) else None
        for name, value in (("test", item.test), ("dev", item.dev))
    }
    return {"site": item.name} | sides | {"difference": item.difference(LEVEL).to_json()}


def _outcome(difference: Estimate) -> str:
    """Return what the interval shows: see the module. What has no interval is undecided."""
    if difference.high < -ROUNDING:
        return LOWER
    if difference.low > ROUNDING:
        return HIGHER
    if difference.low > -MARGIN and difference.high < MARGIN:
        return ALIKE
    return UNDECIDED


def _phrase(item: _Compared, difference: Estimate) -> str:
    name = item.name if item.name == "accuracy" else f"Attrib of {item.name}"
    return f"{name} {item.test:.3f} against {item.dev:.3f}, a difference of {difference}"


def _reading(
    decided: list[tuple[_Compared, Estimate]], outcomes: Mapping[str, str], *, solved: bool
) -> str:
    """Return in a sentence what is alike and what is undecided."""
    said = []
    for item, difference in decided:
        outcome = outcomes[item.name]
        if outcome == ALIKE and item.name == "accuracy":
            # Two models that guess are alike, and nothing generalises.
            start = (
                "recall generalises to held-out pairs" if solved else "neither is above guessing"
            )
            said.append(f"{start}: {_phrase(item, difference)}, less than {MARGIN}")
        elif outcome == ALIKE:
            said.append(f"{_phrase(item, difference)}, less than {MARGIN}")
        elif outcome == UNDECIDED:
            said.append(f"{_phrase(item, difference)}, decides neither 0 nor {MARGIN}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""
