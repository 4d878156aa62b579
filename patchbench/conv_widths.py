"""Runs that differ in the width of their short convolution alone, found among others.

Use:

    for family, by_width in width_families(results).items():
        by_width[4]                       # the Results with this width, one for each seed

What a model is made of stands in the Results of trainings, and only those are found.
"""

import json
from collections.abc import Mapping
from typing import Any

from patchbench.common import UserError
from patchbench.pooling import experiment
from patchbench.results import Result

# Taps, 0 for none, or "long".
Width = int | str


def width_families(results: Mapping[str, Result]) -> dict[str, dict[Width, list[Result]]]:
    """Return the families with at least two widths, by what they are: "mamba of width 64".

    A family's runs have the same task, training and model but for the convolution and the seed. Of
    two of one width with the same seed and examples the first counts, and so it does of two that
    were evaluated in different ways.

    Args:
        results: by name.
    """
    families: dict[str, dict[Width, dict[str, Result]]] = {}
    labels: dict[str, str] = {}
    for result in results.values():
        width = conv_width(result)
        if width is None:
            continue
        identity = json.dumps(_identity(result), sort_keys=True)
        labels.setdefault(identity, _label(result))
        seeds = families.setdefault(identity, {}).setdefault(width, {})
        own = experiment(result, trained=True)
        if all(experiment(other, trained=True) == own for other in seeds.values()):
            seeds.setdefault(_seed(result), result)
    found: dict[str, dict[Width, list[Result]]] = {}
    for identity, by_width in families.items():
        if len(by_width) < 2:
            continue
        label, number = labels[identity], 2
        while label in found:  # of another task or training
            label, number = f"{labels[identity]}, {number}", number + 1
        ordered = sorted(by_width, key=lambda width: (isinstance(width, str), width))
        found[label] = {width: list(by_width[width].values()) for width in ordered}
    return found


def conv_width(result: Result) -> Width | None:
    """Return the width that a trained model's convolutions have; None without one for all."""
    training = result.provenance.get("training")
    if training is None:
        return None
    model = training["model"]
    widths = [_option(model, layer) for layer in model.get("mixers") or ()]
    known = {width for width in widths if width is not None}
    return known.pop() if len(known) == 1 else None


def _option(model: Mapping[str, Any], layer: str | Mapping[str, Any]) -> Width | None:
    """Return d_conv of a layer, by its entry, its mixer's options or its mixer's default."""
    entry: Mapping[str, Any] = {"name": layer} if isinstance(layer, str) else layer
    given = {**(model.get("mixer_options") or {}).get(entry["name"], {}), **entry}
    return given["d_conv"] if "d_conv" in given else _default(entry["name"])


def _default(mixer: str) -> Width | None:
    from patchbench.adapters import MIXERS

    try:
        return getattr(MIXERS[mixer].Options, "d_conv", None)
    except UserError:  # of a package that is not here
        return None


def _identity(result: Result) -> dict[str, Any]:
    """Return what an experiment is but for the convolution's width and what follows from it."""
    found = json.loads(json.dumps(experiment(result, trained=True)))
    for name in ("num_parameters", "components"):
        del found["model"][name]
    del found["evaluation"]["components"]
    model = found["architecture"]
    model["mixers"] = [_without(layer) for layer in model["mixers"]]
    options = model.get("mixer_options") or {}
    model["mixer_options"] = {name: _without(given) for name, given in options.items()}
    return found


def _without(layer: str | Mapping[str, Any]) -> dict[str, Any]:
    entry: Mapping[str, Any] = {"name": layer} if isinstance(layer, str) else layer
    return {name: value for name, value in entry.items() if name != "d_conv"}


def _seed(result: Result) -> str:
    seed = result.provenance["training"]["training"]["seed"]
    return json.dumps([seed, result.provenance["dataset"]["sha256"]])


def _label(result: Result) -> str:
    model = result.provenance["training"]["model"]
    layers = [layer if isinstance(layer, str) else layer["name"] for layer in model["mixers"]]
    return f"{', '.join(dict.fromkeys(layers))} of width {model['hidden_size']}"
