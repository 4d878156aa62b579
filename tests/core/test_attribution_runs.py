"""`--method attribution` in an evaluation: which rows it gives, and the comparison with them."""

import numpy as np
import pytest

import patchbench as pb
from patchbench.attribution import against_exact
from patchbench.common import UserError
from patchbench.demo import bundled_task
from tests.tiny_models import tiny


def test_the_comparison_is_as_by_hand():
    scores = {"a": 0.1, "b": 0.5, "c": -0.2, "d": 0.9, "e": 0.0}
    exact = {"a": 0.3, "b": 0.4, "c": -0.1, "d": 0.2, "x": 1.0, "e": None}
    found = against_exact(scores, exact)
    assert found is not None
    # Ranks of a, b, c, d: 2 3 1 4 against 3 4 1 2, squared differences 1 1 0 4.
    assert found["rank_correlation"] == pytest.approx(1 - 6 * 6 / (4 * 15))
    assert (found["n"], found["site"]) == (4, "d")
    assert found["largest_error"] == pytest.approx(0.7)
    one = against_exact({"a": 0.1}, {"a": 0.3})
    assert one is not None
    assert one["rank_correlation"] is None
    assert against_exact({"a": 0.1}, {}) is None


@pytest.fixture(scope="module")
def result():
    return pb.evaluate(
        "patchbench/ar-mamba",
        bundled_task("patchbench/ar-mamba"),
        n=24,
        components=["block_input", "ssm_write"],
        positions=["key", "value", "value+1", "query"],
        method="attribution",
        prefilter=5,
    )


def test_the_rows_are_the_exact_ones_of_the_foremost_sites(result):
    run = result.summary["attribution"]["runs"][0]
    scores = {score["site"]: score["attrib"]["value"] for score in run["scores"]}
    assert len(scores) == 16
    rows = [row for row in result.rows.to_pylist() if row["control"] is None]
    best = sorted(scores, key=lambda site: -abs(scores[site]))[:5]
    assert {row["site"] for row in rows} == set(best)
    plain = pb.evaluate(
        "patchbench/ar-mamba",
        bundled_task("patchbench/ar-mamba"),
        n=24,
        components=["block_input", "ssm_write"],
        positions=["key", "value", "value+1", "query"],
        selfcheck=False,
    )
    exact = {site: plain.attrib(site).value for site in best}
    assert {site: result.attrib(site).value for site in best} == pytest.approx(exact, abs=1e-5)
    errors = {site: abs(scores[site] - exact[site]) for site in best}
    against = run["against_exact"]
    assert against["n"] == 5
    assert against["largest_error"] == pytest.approx(max(errors.values()), abs=1e-5)
    ranks = [np.argsort(np.argsort([side[site] for site in best])) for side in (scores, exact)]
    assert against["rank_correlation"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_the_table_says_first_order_and_the_result_comes_back(result, tmp_path, capsys):
    from patchbench.report import terminal

    terminal.print_result(result)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "first order (gradient at the base): estimated Attrib of ssm_write" in " ".join(
        shown.split()
    )
    assert "first order against exact on 5 sites: rank correlation" in " ".join(shown.split())
    result.save(tmp_path / "run")
    again = pb.Result.load(tmp_path / "run")
    assert again.summary == result.summary


def test_heads_and_moved_sites_are_listed_with_their_scores(capsys):
    from patchbench.report import terminal

    values = {"L0.q[1]@key": 0.25, "L0.block_input@key -> L1.block_input@value": -0.5}
    scores = [
        {"site": site, "attrib": {"value": value, "low": None, "high": None, "n": 1}}
        for site, value in values.items()
    ]
    run = {"corruption": "key", "direction": "denoise", "scores": scores, "against_exact": None}
    terminal.print_scores(terminal.make_console(), {"ig_steps": 0, "runs": [run]}, "key", "denoise")
    shown = " ".join(capsys.readouterr().out.split())
    assert "first order (gradient at the base)" in shown
    for site, value in values.items():
        assert f"{site} {value:.2f}" in shown


def test_below_the_gate_there_are_no_scores():
    task = pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8)
    calls = []
    result = pb.evaluate(
        tiny("gpt2"),
        task,
        n=8,
        method="attribution",
        prefilter=2,
        layers=[1],
        progress=lambda *done: calls.append(done),
    )
    (run,) = result.summary["attribution"]["runs"]
    assert (run["scores"], run["against_exact"]) == ([], None)
    assert calls == [(16, 16), (72, 72)]  # two forwards of 8; 7 controls and 2 sites


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "atribution"},
        {"method": "attribution", "prefilter": 0},
        {"method": "attribution", "ig_steps": -1},
        {"prefilter": 3},
        {"ig_steps": 3},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(UserError, match=r"attribution|at least"):
        pb.evaluate(tiny("gpt2"), "ar/tiny", **settings)
