"""The page of the paper's claims says what the collected runs say."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from patchbench.common import UserError
from patchbench.statistics import Estimate
from patchbench.sweeping import LocalExecutor, sweep
from tests.core.sweep.tiny_sweep import run, sweep_of

PAPER = Path(__file__).parents[1] / "examples" / "paper"


@pytest.fixture(scope="module")
def scripts():
    """Its modules find each other as when one is run from its folder."""
    names = ("measures", "claims", "pictures", "remarks", "collect", "page")
    sys.path.insert(0, str(PAPER))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(PAPER))
        for name in names:
            sys.modules.pop(name, None)


def estimate(value, low, high):
    return Estimate(value, low, high, 100)


@pytest.mark.parametrize(
    ("low", "value", "high", "at_least", "at_most"),
    [
        (0.92, 0.95, 0.97, "✓", "✗"),
        (0.88, 0.95, 0.97, "(✓)", "(✗)"),
        (0.85, 0.88, 0.91, "(✗)", "(✓)"),
        (0.80, 0.85, 0.88, "✗", "✓"),
        (0.90, 0.90, 0.90, "✓", "✓"),
    ],
)
def test_a_limit_is_met_by_the_value_and_surely_by_the_interval(
    scripts, low, value, high, at_least, at_most
):
    def measured(pools):
        return estimate(value, low, high)

    make = scripts.measures.Measure
    assert make(name="m", of=measured, needs=(), at_least=0.9).judge({}) == at_least
    assert make(name="m", of=measured, needs=(), at_most=0.9).judge({}) == at_most


def test_what_was_not_run_is_no_failure(scripts):
    def never(pools):
        pytest.fail("read")

    measure = scripts.measures.Measure(name="m", of=never, needs=(("r", "v"),), at_least=1)
    assert (measure.judge({}), measure.value({})) == ("not run", None)


def test_a_measure_has_one_limit(scripts):
    for limits in ({}, {"at_least": 0, "at_most": 1}):
        with pytest.raises(ValueError, match="one limit"):
            scripts.measures.Measure(name="m", of=lambda pools: None, needs=(), **limits)


def test_the_interval_of_a_difference_holds_as_often_as_it_says(scripts):
    rng = np.random.default_rng(0)
    hits, draws = 0, 2000
    for _ in range(draws):
        a, b = rng.normal(0.8, 0.02), rng.normal(0.5, 0.05)
        one, other = estimate(a, a - 0.0392, a + 0.0392), estimate(b, b - 0.098, b + 0.098)
        found = scripts.measures.plus(one, other, -1)
        hits += found.low <= 0.3 <= found.high
    assert hits / draws == pytest.approx(0.95, abs=0.02)


def test_every_claim_is_of_runs_that_the_recipes_have(scripts):
    from patchbench.recipes import RECIPES

    for scale in scripts.page.SCALES:
        for claim in scripts.claims.claims(scale):
            for measure in claim.measures:
                for recipe, variant in measure.needs:
                    groups = RECIPES[recipe](scale=scale, widths=[64]).groups()
                    assert f"{variant}-w64" in groups, measure.name


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper") / "sweep"
    runs = [run(f"{arch}-w64-s{s}", arch=arch, seed=s) for arch in ("mamba",) for s in (0, 1)]
    sweep(sweep_of(*runs), out=out, executor=LocalExecutor(workers=1, device="cpu"))
    return out


def test_a_sweep_is_collected_without_weights_and_read_again(scripts, swept, tmp_path):
    results = tmp_path / "results"
    scripts.collect.main(swept, recipe="paper_ar", scale="mini", to=results)
    kept = {file.name for file in results.rglob("*") if file.is_file()}
    assert not any(name.endswith((".safetensors", ".html")) for name in kept)
    [(recipe, folder)] = scripts.page.sweeps(results / "mini").items()
    pools = scripts.page.pools_of(recipe, folder)
    accuracies = [folder.result(name).accuracy.value for name in folder.runs]
    assert pools["paper_ar", "mamba"].accuracy.value == pytest.approx(np.mean(accuracies))

    scripts.page.main(results=results, out=tmp_path, figures=False)
    text = (tmp_path / "README.md").read_text()
    line = next(line for line in text.splitlines() if "accuracy, mamba |" in line)
    assert scripts.page.shown(pools["paper_ar", "mamba"].accuracy) in line
    # Eight steps teach nothing: no effect is told, and none is counted as a failure of the claim.
    effects = [line for line in text.splitlines() if "block_input@value, mamba |" in line]
    assert effects
    assert all(line.endswith("| below the gate |") for line in effects[:1])


def test_collected_again_replaces_a_run_and_keeps_the_others(scripts, swept, tmp_path):
    place = tmp_path / "mini" / "paper_ar"
    scripts.collect.main(swept, recipe="paper_ar", scale="mini", to=tmp_path)
    listing = json.loads((place / "sweep.json").read_text())
    listing["runs"]["other-w64-s0"] = listing["runs"]["mamba-w64-s0"] | {"name": "other-w64-s0"}
    (place / "sweep.json").write_text(json.dumps(listing))
    (place / "runs" / "other-w64-s0").mkdir()
    stale = place / "runs" / "mamba-w64-s0" / "stale"
    stale.touch()
    scripts.collect.main(swept, recipe="paper_ar", scale="mini", to=tmp_path)
    names = {"mamba-w64-s0", "mamba-w64-s1", "other-w64-s0"}
    assert {path.name for path in (place / "runs").iterdir()} == names
    assert set(json.loads((place / "sweep.json").read_text())["runs"]) == names
    assert not stale.exists()


def test_two_widths_of_a_variant_do_not_pass_for_one(scripts, swept, tmp_path):
    scripts.collect.main(swept, recipe="paper_ar", scale="mini", to=tmp_path)
    place = tmp_path / "mini" / "paper_ar"
    listing = json.loads((place / "sweep.json").read_text())
    listing["runs"]["mamba-w64-s1"]["group"] = "mamba-w256"
    (place / "sweep.json").write_text(json.dumps(listing))
    [(recipe, folder)] = scripts.page.sweeps(tmp_path / "mini").items()
    with pytest.raises(UserError, match="several widths"):
        scripts.page.pools_of(recipe, folder)


def test_one_seed_is_shown_as_one(scripts, swept, tmp_path):
    scripts.collect.main(swept, recipe="paper_ar", scale="mini", to=tmp_path)
    place = tmp_path / "mini" / "paper_ar"
    listing = json.loads((place / "sweep.json").read_text())
    del listing["runs"]["mamba-w64-s1"]
    (place / "sweep.json").write_text(json.dumps(listing))
    [(recipe, folder)] = scripts.page.sweeps(tmp_path / "mini").items()
    pools = scripts.page.pools_of(recipe, folder)
    alone = folder.result("mamba-w64-s0")
    assert pools["paper_ar", "mamba"].accuracy == alone.accuracy
    table = scripts.page.claims_table(scripts.claims.claims("mini"), pools)
    assert f"{scripts.page.shown(alone.accuracy)}, one seed |" in table
    assert "not solved in the one seed" in scripts.page.models_table(pools)


def test_the_page_is_what_the_collected_runs_give(scripts, tmp_path):
    scripts.page.main(results=PAPER / "results", out=tmp_path, figures=False)
    written, made = ((folder / "README.md").read_text() for folder in (PAPER, tmp_path))
    assert made == written
    shown = set(re.findall(r"!\[.*?\]\((.*?)\)", written))
    assert shown == {f"figures/{file.name}" for file in (PAPER / "figures").iterdir()}
