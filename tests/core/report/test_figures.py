"""Figures of one Result: what they draw is what the rows say, counted here once more."""

import numpy as np
import pyarrow as pa
import pytest

from patchbench.common import UserError
from patchbench.report.estimates import words
from patchbench.report.figures import figures, heat_map, profile
from patchbench.report.palette import label
from patchbench.report.reliability_figures import attribution_scatter, controls, strata
from patchbench.statistics import Estimate
from tests.core.report.made import EFFECTS, EVIL, result, scored
from tests.core.rows import make_rows


def named(figure, name):
    """Return the traces of a name in the legend."""
    return [trace for trace in figure.data if trace.name == name]


def attrib_of(rows, site, chosen):
    """Return the ratio of means over some examples, by hand."""
    lines = [row for row in rows.to_pylist() if row["site"] == site and chosen(row)]
    mean = {
        run: np.mean([line[f"p_{run}"] for line in lines]) for run in ("base", "source", "patched")
    }
    return (mean["patched"] - mean["base"]) / (mean["source"] - mean["base"])


def renamed(table, old, new):
    """Return rows whose site has another name, as of sites patched together."""
    sites = [new if site == old else site for site in table["site"].to_pylist()]
    at = table.schema.get_field_index("site")
    return table.set_column(at, table.schema.field(at), pa.array(sites))


def test_a_heat_map_has_the_effects_in_their_places():
    drawn = heat_map(result(), "block_input").data[0]
    assert list(drawn.y) == ["L0", "L1"]
    shown = {
        (layer, position): drawn.z[i][j]
        for i, layer in enumerate(drawn.y)
        for j, position in enumerate(drawn.x)
    }
    for site, effect in EFFECTS.items():
        layer, _, position = site.partition(".block_input@")
        assert shown[layer, position] == pytest.approx(effect, abs=1e-9)
    assert drawn.zmin == -drawn.zmax  # white is 0


def test_below_the_gate_the_heat_map_is_grey():
    drawn = heat_map(result(right=2), "block_input")
    assert "gate" in drawn.layout.title.text
    colours = {shade for _, shade in drawn.data[0].colorscale}
    assert colours == {"#BFBFBF", "#FFFFFF"}


def test_the_strip_says_what_a_corruption_changes():
    drawn = figures(result())["example"]
    texts = list(drawn.data[-1].text)
    assert [("*" in text) for text in texts] == [True, False, False, False]
    assert "corrupted: b" in drawn.data[-1].hovertext[0]


def test_a_placebo_is_grey_and_in_its_place():
    effects = {**EFFECTS, "L0.block_input@answer": 0.0, "L1.block_input@answer": 0.0}
    measured, placebo = heat_map(result(effects), "block_input").data
    assert list(measured.x) == list(placebo.x) == ["key", "value", "query", "answer"]
    assert [row[-1] for row in measured.z] == [None, None]
    assert [row[:-1] for row in placebo.z] == [(None,) * 3] * 2 or [
        list(row[:-1]) for row in placebo.z
    ] == [[None] * 3] * 2
    assert {shade for _, shade in placebo.colorscale} == {"#BFBFBF", "#FFFFFF"}


def test_one_large_ratio_does_not_pale_the_others():
    drawn = heat_map(result({**EFFECTS, "L1.block_input@query": 40.0}), "block_input").data[0]
    assert drawn.zmax == 2
    assert "40.00" in np.array(drawn.text).ravel()


def test_a_ratio_of_nothing_is_an_empty_cell():
    """Where the examples that have a position lose nothing, there is no ratio."""
    rows = make_rows(EFFECTS, n=40, right=36).to_pylist()
    for row in rows:
        if row["site"] == "L1.block_input@value":
            for metric in ("p", "logit_diff"):
                row[f"{metric}_base"] = row[f"{metric}_source"]
    table = pa.Table.from_pylist(rows, schema=make_rows({"embed@key": 1.0}).schema)
    found = result(tables=[table])
    drawn = figures(found)
    heat = drawn["heat_map/key/denoise/block_input"].data[0]
    assert heat.zmax == 1
    assert heat.z[1][1] is None
    (value,) = named(drawn["profile/key/denoise/block_input"], "value")
    assert list(value.x) == [0]


def test_a_profile_has_the_effects_and_their_intervals():
    found = result()
    drawn = profile(found, "block_input")
    for position in ("key", "value", "query"):
        (line,) = named(drawn, position)
        (band,) = [t for t in drawn.data if t.legendgroup == position and t.fill == "toself"]
        assert list(line.x) == [0, 1]
        wanted = [EFFECTS[f"L{layer}.block_input@{position}"] for layer in (0, 1)]
        assert list(line.y) == pytest.approx(wanted, abs=1e-9)
        limits = [found.attrib(f"L{layer}.block_input@{position}") for layer in (0, 1)]
        sides = [*(e.high for e in limits), *(e.low for e in reversed(limits))]
        assert list(band.y) == pytest.approx(sides, abs=1e-9)
        assert list(band.x) == [0, 1, 1, 0]


def test_positions_of_a_role_differ_by_dash_and_marker():
    effects = {
        f"L{layer}.block_input@{position}": 0.5
        for layer in (0, 1)
        for position in ("value-1", "value", "value+1", "value+2")
    }
    lines = [t for t in profile(result(effects), "block_input").data if t.fill is None]
    assert len({line.line.color for line in lines}) == 1
    assert len({line.line.dash for line in lines}) == 4
    assert len({line.marker.symbol for line in lines}) == 4


def test_one_layer_has_a_heat_map_and_no_profile():
    effects = {s: e for s, e in EFFECTS.items() if s.startswith("L0")}
    drawn = figures(result(effects))
    assert "heat_map/key/denoise/block_input" in drawn
    assert "profile/key/denoise/block_input" not in drawn


def test_noise_alone_is_drawn():
    drawn = figures(result(direction="noise"))
    heat = drawn["heat_map/key/noise/block_input"]
    assert "noise" in heat.layout.title.text
    assert heat.data[0].z[1][1] == pytest.approx(0.75, abs=1e-9)
    with pytest.raises(UserError, match="there is: key, noise"):
        heat_map(result(direction="noise"), "block_input")


def test_heads_and_sites_together_leave_the_grid_alone():
    effects = {**EFFECTS, "L1.q[3]@value": 0.4, "L1.mixer_output@key": 0.3}
    table = make_rows(effects, n=40, right=36)
    table = renamed(table, "L1.mixer_output@key", "L0.q[0]@key & L1.k@value -> L1.k@query")
    found = result(tables=[table])
    drawn = figures(found)
    assert [name for name in drawn if name.startswith("heat_map")] == [
        "heat_map/key/denoise/block_input"
    ]
    assert "->" in [effect["site"] for effect in found.summary["runs"][0]["effects"]][-1]
    names = {trace.name for trace in drawn["strata/key/denoise"].data}
    assert "Attrib L0.q[0]@key &amp; L1.k@value -&gt; L1.k@query" in names


def test_strata_are_counted_on_their_own_examples():
    found = result()
    drawn = strata(found)
    parts = {
        "no heuristic": lambda row: not row["heuristic"],
        "distance 1": lambda row: row["distance"] == 1,
        "distance 2–3": lambda row: row["distance"] in (2, 3),
        "distance 4–7": lambda row: row["distance"] == 4,
    }
    assert list(drawn.layout.xaxis.categoryarray) == list(parts)
    shown = {trace.name: {} for trace in drawn.data}
    for trace in drawn.data:
        shown[trace.name] |= dict(zip(trace.x, trace.y, strict=True))
    correct = {row["example"]: row for row in found.rows.to_pylist()}
    for name, chosen in parts.items():
        hits = [row["correct"] for row in correct.values() if chosen(row)]
        assert shown["accuracy"][name] == pytest.approx(np.mean(hits), abs=1e-9)
        assert shown["Attrib L1.block_input@value"][name] == pytest.approx(
            attrib_of(found.rows, "L1.block_input@value", chosen), abs=1e-9
        )
    # What is no distance is not joined to the distances, and stands in the legend once.
    for name in shown:
        apart, joined = named(drawn, name)
        assert list(apart.x) == ["no heuristic"]
        assert "no heuristic" not in joined.x
        assert [apart.showlegend, joined.showlegend] == [False, True]


def test_controls_have_their_effects():
    sites = {
        "wrong position": "L1.block_input@other_value",
        "random site": "L1.block_input@random",
    }
    wanted = {"wrong position": -0.625, "random site": 0.125}
    tables = [make_rows(EFFECTS, n=40, right=36)]
    for control, site in sites.items():
        tables.append(make_rows({site: wanted[control]}, n=40, right=36, control=control))
    (points,) = controls(result(tables=tables)).data
    shown = {name.split("<br>")[0]: x for name, x in zip(points.y, points.x, strict=True)}
    assert shown == pytest.approx(wanted, abs=1e-9)
    low, _ = controls(result(tables=tables)).layout.xaxis.range
    assert low <= -0.625
    assert controls(result()) is None


def test_scores_stand_against_exact_numbers():
    scores = {"L1.block_input@value": 0.5, "L1.block_input@key": -0.25, "L1.mlp_output@key": 9.0}
    _, points = attribution_scatter(scored(scores)).data
    shown = dict(zip(points.x, points.y, strict=True))
    assert sorted(shown) == pytest.approx([0.25, 0.75], abs=1e-9)
    assert [shown[x] for x in sorted(shown)] == [-0.25, 0.5]
    assert "exact 0.750, first order 0.500" in points.hovertext[1]


def test_a_score_that_is_no_number_is_left_out():
    assert attribution_scatter(scored({"L1.block_input@value": float("nan")})) is None
    assert attribution_scatter(result()) is None
    found = scored({"L1.block_input@value": 0.5})
    found.summary["attribution"]["runs"][0]["direction"] = "noise"
    assert attribution_scatter(found) is None


def test_below_the_gate_nothing_has_colour():
    drawn = figures(result(right=2))
    assert set(drawn) == {
        "example",
        "heat_map/key/denoise/block_input",
        "profile/key/denoise/block_input",
    }
    lines = drawn["profile/key/denoise/block_input"].data
    assert {trace.line.color for trace in lines if trace.fill is None} == {"#8C8C8C"}


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        (EVIL, EVIL.replace("<", "&lt;").replace(">", "&gt;")),
        ('a "b" & c', 'a "b" &amp; c'),
        ("$x$", "&#36;x&#36;"),
        ("שלום 🙂", "שלום 🙂"),
    ],
    ids=["script", "quotes", "formula", "hebrew"],
)
def test_names_are_text_for_plotly(name, drawn):
    assert label(name) == drawn


def test_an_estimate_without_an_interval_is_said():
    nan = float("nan")
    assert words(Estimate(-0.0001, -0.2, 0.3, n=7)) == "0.000 [-0.200, 0.300], n 7"
    assert words(Estimate(0.5, nan, nan, n=1)) == "0.500, n 1"
    assert words(Estimate(nan, nan, nan, n=9)) == "no value"
