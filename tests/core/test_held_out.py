"""Test against dev: what is said of the difference, by its interval, and on whose pairs."""

import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pytest

import patchbench as pb
from patchbench import held_out
from patchbench.demo import bundled_task
from patchbench.results import Result
from patchbench.statistics import Estimate
from patchbench.training.folder import TrainFolder
from tests.core.rows import PROVENANCE, make_rows
from tests.tiny_models import tiny

STORED = {
    "L0.block_input@key": 1.0,
    "L1.block_input@key": 0.0,
    "L1.block_input@value": 0.9,
    "L1.block_input@query": 0.0,
}
VALUE = "L1.block_input@value"


def one(right: int, n: int, effects=STORED, rows=None, resamples=400, **more) -> Result:
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    return Result.from_rows(
        make_rows(effects, n=n, right=right, **more) if rows is None else rows,
        config={"seed": 0, "resamples": resamples, "components": ["block_input"]},
        provenance=PROVENANCE | {"model": model},
    )


def compared(test: Result, dev: Result) -> Result:
    return held_out.with_dev(test, dev, recorded=True)


@pytest.mark.parametrize(
    ("test", "dev", "outcome", "says"),
    [
        ((380, 400), (379, 400), "alike", "Recall generalises to held-out pairs"),
        ((57, 60), (56, 60), "undecided", "decides neither 0 nor 0.05"),
        ((240, 400), (380, 400), "lower", "accuracy 0.600 against 0.950, a difference of -0.350"),
        ((400, 400), (300, 400), "higher", "accuracy 1.000 against 0.750, a difference of 0.250"),
        # Told from 0, however small.
        ((1940, 2000), (1980, 2000), "lower", "accuracy 0.970 against 0.990"),
    ],
    ids=["alike", "few examples", "lower", "higher", "a little lower"],
)
def test_the_verdict_speaks_of_generalisation_only_where_the_interval_excludes_0(
    test, dev, outcome, says
):
    effects = {site: STORED[site] for site in (VALUE, "L1.block_input@key")}
    result = compared(*(one(*side, effects=effects) for side in (test, dev)))
    found = result.summary["held_out"]
    difference = Estimate.from_json(found["accuracy"]["difference"])
    assert found["outcomes"]["accuracy"] == outcome
    assert difference.value == pytest.approx(test[0] / test[1] - dev[0] / dev[1])
    spoken = result.verdict.generalises
    assert bool(spoken) == (outcome in ("lower", "higher"))
    assert says in (spoken or found["reading"])
    if not spoken:
        assert difference.low < 0 < difference.high
    assert "generalis" not in result.verdict.sentence


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        ((-0.01, 0.01), "alike"),
        ((-0.049, 0.049), "alike"),
        ((-0.051, 0.01), "undecided"),
        ((-0.01, 0.051), "undecided"),
        ((-0.04, -0.001), "lower"),
        ((-0.9, -0.1), "lower"),
        ((0.001, 0.2), "higher"),
        ((1e-9, 2e-9), "alike"),  # rounding
        ((-2e-9, -1e-9), "alike"),
        ((float("nan"), float("nan")), "undecided"),
        ((-1.0, 1.0), "undecided"),
    ],
)
def test_outcomes(limits, outcome):
    assert held_out._outcome(Estimate(sum(limits) / 2, *limits, n=9)) == outcome


def test_effects_are_compared_at_the_sites_that_decided():
    other = STORED | {VALUE: 0.7, "L1.block_input@key": 0.2}
    result = compared(one(380, 400, effects=other), one(380, 400))
    found = result.summary["held_out"]
    assert found["outcomes"] == {"accuracy": "alike", VALUE: "lower"}
    assert f"Attrib of {VALUE} 0.700 against 0.900" in result.verdict.generalises
    assert "accuracy" not in result.verdict.generalises
    assert "accuracy" in found["reading"]
    (run,) = found["runs"]
    by_site = {effect["site"]: effect for effect in run["effects"]}
    assert set(by_site) == set(STORED)
    assert by_site["L1.block_input@key"]["difference"]["value"] == pytest.approx(0.2)
    assert by_site["L1.block_input@key"]["test"] == pytest.approx(0.2)
    assert by_site["L1.block_input@key"]["dev"] == pytest.approx(0.0, abs=1e-9)


def noisy(rng: np.random.Generator, n: int = 80, right: float = 0.85) -> pa.Table:
    """Return rows of one site whose examples differ at random, with Attrib 0.8 on average."""
    rows = make_rows({VALUE: 0.8, "L1.block_input@key": 0.0}, n=n)
    correct = np.tile(rng.random(n) < right, 2)
    patched = rows["p_patched"].to_numpy() + np.tile(rng.normal(0, 0.2, n), 2)
    columns = {"p_patched": patched, "correct": correct, "logit_diff_patched": patched}
    for name, values in columns.items():
        field = rows.schema.field(index := rows.schema.get_field_index(name))
        rows = rows.set_column(index, field, pa.array(values))
    return rows


def test_the_interval_of_a_difference_is_that_of_two_bootstraps_by_hand():
    rng = np.random.default_rng(0)
    tables = [noisy(rng), noisy(rng, n=50)]
    result = compared(*(one(0, 0, rows=rows, resamples=4000) for rows in tables))
    (run,) = result.summary["held_out"]["runs"]
    found = next(e["difference"] for e in run["effects"] if e["site"] == VALUE)
    draws, values = [], []
    for rows in tables:
        part = rows.filter(pa.compute.equal(rows["site"], VALUE)).to_pandas()
        top = (part["p_patched"] - part["p_base"]).to_numpy()
        bottom = (part["p_source"] - part["p_base"]).to_numpy()
        chosen = rng.integers(0, len(part), (20_000, len(part)))
        draws.append(top[chosen].mean(1) / bottom[chosen].mean(1))
        values.append(top.mean() / bottom.mean())
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    assert found["value"] == pytest.approx(values[0] - values[1], rel=1e-9)
    assert (found["low"], found["high"]) == pytest.approx((low, high), abs=0.012)
    assert found["n"] == 130


@pytest.mark.slow  # 400 samples, each with a bootstrap
def test_equal_models_are_called_different_as_seldom_as_said():
    """200 pairs of samples of one distribution; the verdict may speak in 5 % of them."""
    rng = np.random.default_rng(1)
    spoken = sum(
        bool(compared(one(0, 0, rows=noisy(rng)), one(0, 0, rows=noisy(rng))).verdict.generalises)
        for _ in range(200)
    )
    assert spoken <= 200 * 0.05 + 3 * (200 * 0.05 * 0.95) ** 0.5


def test_all_that_the_verdict_speaks_of_holds_together():
    """A difference told from 0 by itself and not beside another one."""
    alone = compared(one(190, 200, effects={"L1.block_input@key": 1.0}), one(198, 200))
    beside = compared(one(190, 200), one(198, 200))
    assert alone.summary["held_out"]["level"] == pytest.approx(0.95)
    assert beside.summary["held_out"]["level"] == pytest.approx(0.975)
    (first, second) = (r.summary["held_out"]["accuracy"]["difference"] for r in (alone, beside))
    assert first == second
    assert first["high"] < 0
    assert alone.summary["held_out"]["outcomes"]["accuracy"] == "lower"
    assert beside.summary["held_out"]["outcomes"]["accuracy"] == "undecided"


def test_below_the_gate_no_effect_is_compared_and_guessing_does_not_generalise():
    result = compared(one(100, 400, corrupted=0.1), one(101, 400))
    found = result.summary["held_out"]
    assert [run["effects"] for run in found["runs"]] == [[]]
    assert result.verdict.label == "not solved"
    assert "generalis" not in found["reading"] + result.verdict.generalises
    lost = compared(one(100, 400), one(380, 400))
    assert lost.summary["held_out"]["outcomes"] == {"accuracy": "lower"}
    assert "accuracy 0.250 against 0.950" in lost.verdict.generalises
    assert lost.summary["held_out"]["dev_verdict"] == "induction"


def test_it_goes_to_disk_and_back_with_what_has_no_value(tmp_path):
    single = {VALUE: 0.9, "L1.block_input@key": 0.0}
    result = compared(one(60, 60, effects=single), one(56, 60))
    rows = result.beside["dev"].rows
    assert json.loads(json.dumps(result.summary, allow_nan=False)) == result.summary
    result.save(tmp_path / "run")
    again = Result.load(tmp_path / "run")
    assert again.verdict == result.verdict
    assert again.summary == result.summary
    assert again.beside["dev"].rows.equals(rows)


@pytest.fixture(scope="module")
def loaded():
    return pb.load_model(tiny("gpt2"))


def trained_on(tmp_path, task, curriculum=()) -> str:
    """Return a folder that says so."""
    described = {"name": task.name, "seed": task.seed, "config": asdict(task.config)}
    identity = {"task": described, "training": {"curriculum": list(curriculum)}}
    (tmp_path / "run").mkdir(parents=True)
    TrainFolder.open(tmp_path / "run", identity).record(status="new")
    return str(tmp_path / "run")


SMALL = {"num_pairs": 3, "num_keys": 8, "num_values": 8, "held_out": 0.3}


@pytest.mark.parametrize(
    ("name", "seed", "changes", "says"),
    [
        ("ar", 0, {}, None),
        ("ar/held_out", 0, {}, None),  # by another name, the same
        ("ar", 1, {}, "seed: 1 → 0"),
        ("ar", 0, {"held_out": 0.0}, r"held_out: 0.0 → 0.3"),
        ("ar", 0, {"held_out": 0.2}, r"held_out: 0.2 → 0.3"),
        ("ar", 0, {"num_keys": 9}, "num_keys: 9 → 8"),
        ("ar", 0, {"reverse": True}, "reverse: True → False"),
        ("atr/held_out", 0, None, "task: atr → ar"),
    ],
)
def test_only_the_trainings_own_pairs_are_held_out(tmp_path, loaded, name, seed, changes, says):
    settings = {} if changes is None else SMALL | changes
    before = pb.load_task(name, seed=seed, **settings)
    model = replace(loaded, name=trained_on(tmp_path, before))
    task = pb.load_task("ar", **SMALL)
    if says is None:
        assert held_out.check(model, task, split="test") is True
        return
    with pytest.raises(pb.UserError, match=says):
        held_out.check(model, task, split="test")


def test_a_stage_that_asks_other_pairs_is_noticed(tmp_path, loaded):
    task = pb.load_task("ar", **SMALL)
    stages = ("num_pairs=2:100", "num_pairs=2, held_out=0:100")
    model = replace(loaded, name=trained_on(tmp_path / "a", task, stages))
    with pytest.raises(pb.UserError, match="held_out=0:100, which asks other pairs"):
        held_out.check(model, task, split="test")
    model = replace(loaded, name=trained_on(tmp_path / "b", task, stages[:1]))
    assert held_out.check(model, task, split="test")


def test_without_a_record_it_is_said_so(loaded):
    assert held_out.check(loaded, pb.load_task("ar", **SMALL), split="test") is False


def test_a_bundled_models_training_held_nothing_out():
    model = pb.load_model("patchbench/ar-attention", device="cpu")
    with pytest.raises(pb.UserError, match=r"held_out: 0.0 → 0.3"):
        held_out.check(model, bundled_task(model.name, held_out=0.3), split="test")


@pytest.mark.parametrize(
    ("settings", "split", "says"),
    [({"held_out": 0.0}, "test", "holds no pairs out"), ({}, "dev", "those of test")],
)
def test_what_holds_no_pairs_out_is_refused(loaded, settings, split, says):
    with pytest.raises(pb.UserError, match=says):
        held_out.check(loaded, pb.load_task("ar", **(SMALL | settings)), split=split)
