"""The verdict on the screen: its sentence, nothing below the gate, both directions at once."""

import pyarrow as pa
import pytest

from patchbench.report import terminal
from patchbench.results import Result
from tests.core.rows import PROVENANCE, make_rows

EFFECTS = {
    "L0.block_input@key": 1.0,
    "L0.block_input@value": 0.0,
    "L1.block_input@key": 0.0,
    "L1.block_input@value": 0.75,
    "L1.block_input@query": 0.0,
}


def result(tables: list[pa.Table]) -> Result:
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    return Result.from_rows(
        pa.concat_tables(tables),
        config={"resamples": 200, "components": ["block_input"], "split": "test"},
        provenance=PROVENANCE | {"model": model},
    )


@pytest.fixture
def shown(capsys):
    def show(found: Result) -> str:
        terminal.print_result(found)
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 80
        return " ".join(text.split())

    return show


def test_label_sentence_and_family(shown):
    text = shown(result([make_rows(EFFECTS, n=60, right=56)]))
    assert "verdict induction: The association is stored" in text
    assert "2 of 5 sites differ from 0 (false discovery rate 5%)" in text


def test_directions_and_metrics_are_side_by_side(shown):
    tables = [make_rows(EFFECTS, n=60, right=56, direction=d) for d in ("denoise", "noise")]
    text = shown(result(tables))
    assert "denoise denoise denoise noise noise noise" in text
    assert "p log p Δlogit p log p Δlogit" in text
    assert "L1.block_input@value 0.75 0.75 0.75 0.75 0.75 0.75" in text


def test_strata_have_their_accuracy_and_effect(shown):
    text = shown(result([make_rows(EFFECTS, n=60, right=56)]))
    assert "no heuristic 30 0.93 0.80 0.75 ±" in text
    assert "distance 2–3 30 0.93 0.80" in text


def test_below_the_gate_no_ratio_is_shown_and_no_label_is_given(shown):
    found = result([make_rows(EFFECTS, n=60, right=3)])
    text = shown(found)
    assert "below the gate, so no effects are shown" in text
    assert "±" not in text
    assert "to be near 0" not in text
    assert "verdict not solved: Nothing is said about a mechanism" in text
    assert found.summary["runs"][0]["effects"] == []
