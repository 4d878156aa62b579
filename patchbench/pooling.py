"""Several Results of one experiment as one: effects over seeds, and how many agree on the verdict.

Use:

    pooled = pool([result_0, result_1, result_2])         # the same training with three seeds
    pooled.agreement                                      # Estimate(1.0, 0.44, 1.0, n=3)
    pooled.attrib("L1.block_input@value", corruption="key")

Every number is computed from the Results' rows, by drawing seeds, grammars and examples (see
`patchbench.hierarchy`). Effects are of the Results above the gate, accuracy is of all. Which of the
sites differ from 0 is decided by Benjamini–Hochberg over all that the Results share.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from patchbench.common import UserError, near_names
from patchbench.common.differences import differences
from patchbench.effects import columns, select
from patchbench.hierarchy import Draws, Part, Unit
from patchbench.results import Result
from patchbench.statistics import RESAMPLES, Estimate, adjusted, wilson
from patchbench.summary import FALSE_DISCOVERIES, measured_pairs

NO_VERDICT = "no verdict"
_MOST_DIFFERENCES = 3
# Settings of an evaluation that change what its rows are about.
_SETTINGS = (
    "split", "corruptions", "directions", "components", "layers", "positions", "sites", "method",
    "shots",
)  # fmt: skip
_MODEL = ("type", "num_layers", "components", "num_parameters", "dtype")
# Settings of a training that do not change what is trained.
_WATCHED = ("seed", "dev_n", "test_n", "log_every", "checkpoint_every")


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """Several Results of one experiment.

    Attributes:
        results: by name.
        units: what each is one of.
        summary: ready for JSON: accuracy, verdicts, and the effects of each corruption and
            direction.
        seed: of the bootstrap.
        resamples: of the bootstrap.
    """

    results: Mapping[str, Result]
    units: Mapping[str, Unit]
    summary: Mapping[str, Any]
    seed: int
    resamples: int

    @property
    def accuracy(self) -> Estimate:
        """Accuracy over the vocabulary, every seed with equal weight."""
        return Estimate.from_json(self.summary["accuracy"])

    @property
    def label(self) -> str:
        """The commonest verdict, "no verdict" included."""
        return self.summary["verdict"]["label"]

    @property
    def agreement(self) -> Estimate:
        """Share of the Results that give the commonest verdict, with Wilson's interval."""
        return Estimate.from_json(self.summary["verdict"]["agreement"])

    def attrib(
        self,
        site: str,
        corruption: str = "key",
        direction: str = "denoise",
        metric: str = "p",
    ) -> Estimate:
        """Return the Attrib of one site over the Results above the gate.

        Raises:
            UserError: none of that was measured, or none is above the gate.
        """
        taken = _above(self.results, corruption, direction)
        if not taken:
            raise UserError(
                f"no Result is above the gate with the {corruption} corrupted, {direction}",
                "there is no effect to pool",
            )
        draws = _draws(taken, self.units, self.seed, self.resamples)
        sites, parts = _parts(taken, corruption, direction, metric)
        found = dict(zip(sites, draws.ratio(parts), strict=True))
        if site not in found:
            raise UserError(f"not all Results have site {site!r}", near_names(site, found))
        return found[site]


def pool(
    results: Mapping[str, Result] | Sequence[Result],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Pooled:
    """Pool Results that differ in nothing but the seed and the grammar.

    A Result's seed is its training's; where the training is not recorded, each model is one.

    Args:
        results: at least two; by name, or named by their models.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Raises:
        UserError: fewer than two, two of the same measurement or of parts of one dataset, or of
            different experiments.
    """
    if not isinstance(results, Mapping):
        named = [f"{number}: {r.summary['model']['name']}" for number, r in enumerate(results)]
        results = dict(zip(named, results, strict=True))
    if len(results) < 2:
        raise UserError(f"{len(results)} Result to pool", "name at least two")
    _check_alike(results)
    units = _units(results)
    draws = _draws(results, units, seed, resamples)
    summary = {
        "model": _parts_of(next(iter(results.values())).provenance["model"], _MODEL),
        "task": {
            name: next(iter(results.values())).summary["task"][name]
            for name in ("name", "split", "template", "shots")
        },
        "seeds": len({unit.seed for unit in units.values()}),
        "grammars": len({unit.grammar for unit in units.values() if unit.grammar}),
        "results": [_one(name, result, units[name]) for name, result in results.items()],
        "accuracy": _accuracy(results, draws, "correct").to_json(),
        "accuracy_in_context": _accuracy(results, draws, "correct_in_context").to_json(),
        "verdict": _agreement([r.summary["verdict"]["label"] for r in results.values()]),
        "runs": [
            _run(results, units, corruption, direction, seed, resamples)
            for corruption, direction in measured_pairs(next(iter(results.values())).rows)
        ],
    }
    return Pooled(results=results, units=units, summary=summary, seed=seed, resamples=resamples)


def _check_alike(results: Mapping[str, Result]) -> None:
    trained = all("training" in result.provenance for result in results.values())
    first, *others = results
    wanted = experiment(results[first], trained=trained)
    for name in others:
        if found := differences(wanted, experiment(results[name], trained=trained)):
            more = len(found) - _MOST_DIFFERENCES
            raise UserError(
                f"{name} is another experiment than {first} ({', '.join(found[:_MOST_DIFFERENCES])}"
                + (f", and {more} more)" if more > 0 else ")"),
                "pool what differs in the seed alone; `patchbench compare` takes any",
            )


def experiment(result: Result, *, trained: bool) -> dict[str, Any]:
    """Return everything but the seeds that the numbers depend on."""
    task, model = result.provenance["task"], result.provenance["model"]
    config = {k: v for k, v in task["config"].items() if k != "grammar_seed"}
    found = {
        "task": {"name": task["name"], **config},
        "evaluation": _parts_of(result.config, _SETTINGS),
        "template": result.summary["task"]["template"],
        "model": _parts_of(model, _MODEL),
    }
    if trained:
        training = result.provenance["training"]
        found["architecture"] = training["model"]
        found["training"] = {
            k: v
            for k, v in training["training"].items()
            if k not in _WATCHED and not k.startswith("dynamics")
        }
    return found


def _parts_of(tree: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: tree.get(name) for name in names}


def _units(results: Mapping[str, Result]) -> dict[str, Unit]:
    trained = all("training" in result.provenance for result in results.values())
    units: dict[str, Unit] = {}
    for name, result in results.items():
        task, dataset = result.provenance["task"], result.provenance["dataset"]["sha256"]
        grammar = ""
        if "grammar_seed" in task["config"]:
            own = task["config"]["grammar_seed"]
            grammar = str(task["seed"] if own is None else own)
        if trained:
            seed = str(result.provenance["training"]["training"]["seed"])
        else:
            seed = result.summary["model"]["name"]
        units[name] = Unit(seed=seed, grammar=grammar, dataset=dataset)
        for other in list(units)[:-1]:
            of_other = results[other].provenance
            rows = [of_other["dataset"]["rows"], result.provenance["dataset"]["rows"]]
            same = of_other["task"]["seed"] == task["seed"] and units[other].grammar == grammar
            if same and rows[0] != rows[1]:
                # The fewer are among the more, and would pass for others.
                raise UserError(
                    f"{other} and {name} have {rows[0]} and {rows[1]} items of one dataset",
                    "evaluate both on as many",
                )
            if units[other] == units[name]:
                raise UserError(
                    f"{name} and {other} are of one seed, on the same examples",
                    "name each measurement once",
                )
    return units


def _draws(
    results: Mapping[str, Result], units: Mapping[str, Unit], seed: int, resamples: int
) -> Draws:
    sizes = {
        units[name].dataset: result.provenance["dataset"]["rows"]
        for name, result in results.items()
    }
    rng = np.random.default_rng(seed)
    return Draws.of([units[name] for name in results], sizes, rng=rng, resamples=resamples)


def _one(name: str, result: Result, unit: Unit) -> dict[str, Any]:
    summary = result.summary
    return {
        "name": name,
        "seed": unit.seed,
        "grammar": unit.grammar or None,
        "n": summary["n"],
        "accuracy": summary["accuracy"],
        "floor": summary["floor"],
        "verdict": summary["verdict"]["label"],
    }


def _agreement(labels: Sequence[str | None]) -> dict[str, Any]:
    counted = Counter(label or NO_VERDICT for label in labels).most_common()
    label, count = counted[0]
    return {
        "label": label,
        "count": count,
        "of": len(labels),
        "agreement": wilson(count, len(labels)).to_json(),
        "labels": dict(counted),
    }


def _accuracy(results: Mapping[str, Result], draws: Draws, column: str) -> Estimate:
    parts = []
    for result in results.values():
        number = result.rows["example"].to_numpy()
        number, first = np.unique(number, return_index=True)
        correct = result.rows[column].to_numpy()[first].astype(float)[:, None]
        parts.append((number, correct, np.ones_like(correct)))
    (found,) = draws.ratio(parts)
    # A share is between 0 and 1, also where there is no interval.
    limits = np.array([found.low, found.high])
    low, high = np.where(np.isnan(limits), [0.0, 1.0], limits).clip(0, 1)
    return Estimate(found.value, float(low), float(high), found.n)


def _runs_of(results: Mapping[str, Result], corruption: str, direction: str) -> dict[str, Any]:
    return {
        name: run
        for name, result in results.items()
        for run in result.summary["runs"]
        if (run["corruption"], run["direction"]) == (corruption, direction)
    }


def _above(results: Mapping[str, Result], corruption: str, direction: str) -> dict[str, Result]:
    """Return the Results that are above the gate."""
    runs = _runs_of(results, corruption, direction)
    return {name: results[name] for name, run in runs.items() if not run["reasons"]}


def _run(
    results: Mapping[str, Result],
    units: Mapping[str, Unit],
    corruption: str,
    direction: str,
    seed: int,
    resamples: int,
) -> dict[str, Any]:
    runs = _runs_of(results, corruption, direction)
    taken = _above(results, corruption, direction)
    difference = all(runs[name]["primary"] == "logit_diff" for name in taken)
    found: dict[str, Any] = {
        "corruption": corruption,
        "direction": direction,
        "above_gate": list(taken),
        "primary": "logit_diff" if taken and difference else "p",
        "verdict": _agreement([run["verdict"]["label"] for run in runs.values()]),
        "family": 0,
        "false_discoveries": FALSE_DISCOVERIES,
        "effects": [],
    }
    if not taken:
        return found
    draws = _draws(taken, units, seed, resamples)
    sites, parts = _parts(taken, corruption, direction, "p")
    by = {"attrib": dict(zip(sites, draws.ratio(parts), strict=True))}
    p = draws.p_values(parts)
    if found["primary"] == "logit_diff":
        _, others = _parts(taken, corruption, direction, "logit_diff")
        by["attrib_logit_diff"] = dict(zip(sites, draws.ratio(others), strict=True))
    key = list(by)[-1]
    own = {
        name: {e["site"]: (e[key] or {}).get("value") for e in runs[name]["effects"]}
        for name in taken
    }
    found["family"] = len(sites)
    found["effects"] = [
        {"site": site}
        | {name: effects[site].to_json() for name, effects in by.items()}
        | {"p_value": float(p_value), "q_value": float(q_value)}
        | {"each": {name: own[name].get(site) for name in taken}}
        for site, p_value, q_value in zip(sites, p, adjusted(p), strict=True)
    ]
    return found


def _parts(
    results: Mapping[str, Result], corruption: str, direction: str, metric: str
) -> tuple[list[str], list[Part]]:
    """Return the sites that all Results have, and what their pooled Attrib is computed from."""
    chosen = {name: select(r.rows, corruption, direction) for name, r in results.items()}
    every = [list(dict.fromkeys(rows["site"].to_pylist())) for rows in chosen.values()]
    sites = [site for site in every[0] if all(site in other for other in every)]
    if not sites:
        raise UserError("the Results have no site in common", "evaluate the same sites")
    parts: list[Part] = []
    for rows in chosen.values():
        _, numerator, denominator = columns(rows, metric=metric, sites=sites)
        parts.append((np.unique(rows["example"].to_numpy()), numerator, denominator))
    return sites, parts
