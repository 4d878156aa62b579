"""A Result: what it computes from its rows, and its way to disk and back."""

import json
import math
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import patchbench as pb
from patchbench.results import ROW_SCHEMA, Result
from patchbench.statistics import Estimate, wilson
from patchbench.summary import gate
from tests.core.rows import PROVENANCE, make_rows

EFFECTS = {
    "L10.block_input@value": 0.75,
    "L2.block_input@value": 1.0,
    "L2.block_input@key": 0.25,
    "L2.block_input@value+1": -0.5,
    "L2.q[1]@value": 0.1,
    "embed@value": 0.0,
}
CONFIG = {
    "seed": 3,
    "resamples": 200,
    "corruptions": ["key"],
    "components": ["block_input"],
    "positions": ("value+1", "value", "key"),
    "split": "test",
}


def make(rows: pa.Table | None = None, **settings) -> Result:
    rows = make_rows(EFFECTS) if rows is None else rows
    return Result.from_rows(rows, config={**CONFIG, **settings}, provenance=PROVENANCE)


@pytest.fixture(scope="module")
def result():
    return make()


@pytest.mark.parametrize("site", EFFECTS)
@pytest.mark.parametrize("metric", ["p", "logit_diff"])
def test_attrib_of_each_site(result, site, metric):
    found = result.attrib(site, metric=metric)
    assert found.value == pytest.approx(EFFECTS[site], abs=1e-9)
    assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert found.high - found.low < 0.2
    assert found.n == 20
    assert result.attrib(pb.Site.parse(site), metric=metric) == found


def same(first: Estimate, second: Estimate) -> bool:
    """Equal but for the order in which a matrix product adds."""
    limits = ("value", "low", "high")
    pairs = [(getattr(first, name), getattr(second, name)) for name in limits]
    return first.n == second.n and all(a == pytest.approx(b, abs=1e-12) for a, b in pairs)


def test_a_control_with_the_same_site_does_not_enter():
    measured, control = make_rows({"L0.q@key": 0.5}), make_rows({"L0.q@key": 1}, control="restore")
    result = make(pa.concat_tables([measured, control]))
    assert result.attrib("L0.q@key").value == pytest.approx(0.5, abs=1e-9)


def test_noise_rows_have_their_own_attrib():
    rows = [make_rows({"L0.q@key": 0.5}), make_rows({"L0.q@key": 0.2}, direction="noise")]
    result = make(pa.concat_tables(rows))
    assert result.attrib("L0.q@key", direction="noise").value == pytest.approx(0.2, abs=1e-9)
    runs = {run["direction"]: run for run in result.summary["runs"]}
    for run in runs.values():
        assert run["p_clean"]["value"] == pytest.approx(0.9)
        assert run["p_corrupted"]["value"] == pytest.approx(0.1)


def test_table_is_in_reading_order(result):
    table = result.table("block_input")
    places = [(2, "value+1"), (2, "value"), (2, "key"), (10, "value")]
    assert list(table) == places
    assert same(table[10, "value"], result.attrib("L10.block_input@value"))
    unasked = make(positions=None).table("block_input")
    assert list(unasked) == [(2, "key"), (2, "value"), (2, "value+1"), (10, "value")]
    assert list(result.table("embed")) == [(None, "value")]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: r.attrib("L2.block_input@vlaue"), "L2.block_input@value"),
        (lambda r: r.attrib("L2.block_input@key", corruption="swap"), "key"),
        (lambda r: r.attrib("L2.block_input@key", direction="noise"), "denoise"),
        (lambda r: r.attrib("L2.block_input@key", metric="prob"), "metric 'prob'"),
        (lambda r: r.table("block_inputs"), "block_input"),
        (lambda r: r.table("q"), "no rows for component"),  # heads only
    ],
    ids=["site", "corruption", "direction", "metric", "component", "heads only"],
)
def test_what_was_not_measured_is_an_error(result, call, says):
    with pytest.raises(pb.UserError, match=says):
        call(result)


def test_summary(result):
    summary = result.summary
    assert summary["n"] == 20
    assert result.accuracy == wilson(18, 20)
    assert result.accuracy_in_context == wilson(20, 20)
    # The odd examples are beyond the heuristics; of them, number 19 is wrong.
    assert Estimate.from_json(summary["accuracy_beyond_heuristics"]) == wilson(9, 10)
    assert summary["floor"] == 0.25
    assert [(b["from"], b["to"]) for b in summary["accuracy_by_distance"]] == [
        (1, 1),
        (2, 3),
        (4, 7),
    ]
    assert [b["accuracy"]["n"] for b in summary["accuracy_by_distance"]] == [5, 10, 5]
    (run,) = summary["runs"]
    assert run["reasons"] == []
    assert run["gap"]["value"] == pytest.approx(0.8)
    effects = {effect["site"]: effect for effect in run["effects"]}
    assert set(effects) == set(EFFECTS)
    effect = Estimate.from_json(effects["embed@value"]["attrib"])
    assert same(effect, result.attrib("embed@value"))
    margin = effects["embed@value"]["attrib_logit_diff"]
    assert same(Estimate.from_json(margin), result.attrib("embed@value", metric="logit_diff"))


def test_without_counterfactuals_there_is_no_margin():
    (run,) = make(make_rows(EFFECTS, twins=False)).summary["runs"]
    assert all(effect["attrib_logit_diff"] is None for effect in run["effects"])
    assert len(run["effects"]) == len(EFFECTS)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"right": 6}, "not above the floor"),
        ({"corrupted": 0.9}, "p(answer)"),
        ({"n": 1, "right": 1}, "6 examples are needed for an interval, and there are 1"),
        ({"n": 5, "right": 5}, "6 examples are needed"),
    ],
    ids=["accuracy", "gap", "one example", "five examples"],
)
def test_below_the_gate_there_are_reasons_and_no_effects(settings, reason):
    (run,) = make(make_rows(EFFECTS, **settings)).summary["runs"]
    assert any(reason in text for text in run["reasons"])
    assert run["effects"] == []


@pytest.mark.parametrize(
    ("accuracy", "gap", "reasons"),
    [
        ((0.9, 0.8), (0.50, 0.40), 0),
        ((0.9, 0.25), (0.50, 0.40), 1),  # the interval reaches the floor
        ((0.9, 0.8), (0.50, 0.01), 1),  # the interval reaches a hundredth
        ((0.9, 0.8), (0.008, 0.006), 1),  # for sure above nothing, but too small to divide by
        ((0.1, 0.05), (-0.1, -0.2), 2),
    ],
)
def test_the_gate_asks_for_the_lower_end_of_both_intervals(accuracy, gap, reasons):
    known, cost = (Estimate(value, low, 1.0, 64) for value, low in (accuracy, gap))
    assert len(gate(known, 0.25, cost)) == reasons


def test_round_trip(result, tmp_path):
    result.save(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "result.json",
        "rows.parquet",
    ]
    again = Result.load(tmp_path / "run")
    assert again.rows.equals(result.rows)
    assert again.rows.schema.equals(ROW_SCHEMA)
    assert (again.config, again.provenance, again.summary) == (
        result.config,
        result.provenance,
        result.summary,
    )
    assert again.attrib("embed@value") == result.attrib("embed@value")


def test_an_existing_folder_stays_unless_told(result, tmp_path):
    result.save(tmp_path / "run")
    (tmp_path / "run" / "mine.txt").write_text("precious")
    with pytest.raises(pb.UserError, match="overwrite"):
        result.save(tmp_path / "run")
    assert (tmp_path / "run" / "mine.txt").exists()
    result.save(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "mine.txt").exists()


def test_a_failed_save_leaves_nothing(result, tmp_path, monkeypatch):
    monkeypatch.setattr(pq, "write_table", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        result.save(tmp_path / "run")
    assert os.listdir(tmp_path) == []


def _edit(folder, **changes):
    path = folder / "result.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def _shorten(folder):
    pq.write_table(pq.read_table(folder / "rows.parquet")[:5], folder / "rows.parquet")


def _edit_in(folder, part, **changes):
    content = json.loads((folder / "result.json").read_text())
    _edit(folder, **{part: {**content[part], **changes}})


DAMAGE = {
    "no folder": (lambda f: os.rename(f, f.with_name("gone")), "not a folder"),
    "foreign": (lambda f: (f / "result.json").unlink(), "not a Result"),
    "no json": (lambda f: (f / "result.json").write_text("{"), r"json is damaged \("),
    "no text": (lambda f: (f / "result.json").write_bytes(b"\xff\xfe"), r"json is damaged \("),
    "nested": (lambda f: (f / "result.json").write_text("[" * 100_000), r"json is damaged \("),
    "no digest": (lambda f: _edit(f, rows={}), "rows.sha256: field required"),
    "empty summary": (lambda f: _edit(f, summary={}), "summary.model: field required"),
    "no estimate": (
        lambda f: _edit_in(f, "summary", accuracy=5),
        "summary.accuracy: input should be",
    ),
    "half an estimate": (
        lambda f: _edit_in(f, "summary", accuracy={}),
        "accuracy.value: field req",
    ),
    "no runs": (lambda f: _edit_in(f, "summary", runs=None), "summary.runs: input should be a"),
    "seed": (lambda f: _edit_in(f, "config", seed="x"), "config.seed: input should be a"),
    "resamples": (lambda f: _edit_in(f, "config", resamples=10**12), "config.resamples: in"),
    "positions": (lambda f: _edit_in(f, "config", positions=5), "config.positions: input"),
    "position": (lambda f: _edit_in(f, "config", positions=["x+"]), "'x[+]' is not a position"),
    "other json": (lambda f: (f / "result.json").write_text("[]"), "not a Result"),
    "other schema": (lambda f: _edit(f, schema="other"), "not a Result"),
    "newer": (lambda f: _edit(f, version=99), "update patchbench"),
    "no summary": (lambda f: _edit(f, summary=None), r"\(summary: "),
    "no rows": (lambda f: (f / "rows.parquet").unlink(), "rows.parquet is missing"),
    "fewer rows": (_shorten, "damaged or was edited"),
    "cut rows": (lambda f: (f / "rows.parquet").write_bytes(b"PAR1"), "damaged or was edited"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_one_line(result, tmp_path, damage, says):
    result.save(tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(pb.UserError, match=says) as caught:
        Result.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "/nowhere", "x" * 300, "a\0b"], ids=["empty", "none", "long", "nul"]
)
def test_a_name_of_nothing_is_one_line(name):
    with pytest.raises(pb.UserError, match=": ") as caught:
        Result.load(name)
    assert "\n" not in str(caught.value)


def test_a_metric_that_is_not_finite_is_refused_and_not_left_out():
    rows = make_rows({"L0.q@key": 0.5})
    column = rows["logp_patched"].to_numpy().copy()
    column[3] = -np.inf
    index = rows.schema.get_field_index("logp_patched")
    rows = rows.set_column(index, rows.schema.field(index), pa.array(column))
    with pytest.raises(pb.UserError, match="logp is not finite in some rows"):
        make(rows).attrib("L0.q@key", metric="logp")
    assert make(rows).attrib("L0.q@key", metric="p").value == pytest.approx(0.5)


def test_only_a_probability_has_limits_where_one_example_allows_no_interval():
    from patchbench.summary import costs

    rows = make_rows({"L1.block_input@value": 0.5}, n=1)
    by = {m: costs(rows, seed=0, resamples=100, metric=m)[2] for m in ("p", "logit_diff")}
    assert (by["p"].low, by["p"].high) == (-1.0, 1.0)
    assert math.isnan(by["logit_diff"].low)
    assert math.isnan(by["logit_diff"].high)
