"""Figures of many Results and of a training: shares, places and curves counted by hand."""

import pyarrow.parquet as pq
import pytest

from patchbench.common import UserError
from patchbench.report.comparison_figures import (
    accuracy_scatter,
    conv_width_bars,
    mechanism_triangle,
)
from patchbench.report.training_figures import read_dynamics, training_dynamics
from tests.core.report.made import EFFECTS, dynamics, result


def test_a_models_place_in_the_triangle_are_its_shares():
    point = mechanism_triangle({"m": result()}).data[0]
    assert (point.a[0], point.b[0], point.c[0]) == pytest.approx((0.75, 0.25, 0.0), abs=1e-9)
    assert mechanism_triangle({"m": result(right=2)}) is None  # below the gate it has no place
    scatter = accuracy_scatter({"m": result()}).data[0]
    assert (scatter.x[0], scatter.y[0]) == pytest.approx((0.9, 0.75))


def test_bars_by_the_width_of_the_convolution():
    with pytest.raises(UserError, match="no Result"):
        conv_width_bars({})
    bars = conv_width_bars({4: [result()], 0: [result(right=2)]}).data
    assert list(bars[0].x) == ["0", "4"]
    assert list(bars[0].y) == pytest.approx([0.05, 0.9])
    assert list(bars[2].x) == ["4"]  # no effect below the gate


def test_offsets_count_for_their_role_and_negative_effects_for_none():
    effects = {
        **EFFECTS,
        "L1.block_input@value": 0.3,
        "L1.block_input@value+1": 0.2,
        "L1.block_input@key": -0.4,
        "L1.block_input@query": 0.5,
    }
    figure = mechanism_triangle({"m": result(effects), "elsewhere": result(right=2)})
    (point,) = figure.data
    assert (point.a[0], point.b[0], point.c[0]) == pytest.approx((0.5, 0.0, 0.5), abs=1e-9)
    assert "1 without a place" in figure.layout.title.text


def test_intervals_of_the_scatter_are_the_estimates():
    found = result()
    (point,) = accuracy_scatter({"m": found}, position="key").data
    effect, accuracy = found.attrib("L1.block_input@key"), found.accuracy
    assert point.y[0] == pytest.approx(0.25, abs=1e-9)
    assert point.error_y.array[0] == pytest.approx(effect.high - effect.value)
    assert point.error_y.arrayminus[0] == pytest.approx(effect.value - effect.low)
    # Wilson (1927) for 36 of 40.
    z, share, n = 1.959964, 0.9, 40
    centre, half = (
        (share + z * z / (2 * n)) / (1 + z * z / n),
        z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5,
    )
    assert point.x[0] + point.error_x.array[0] == pytest.approx(centre + half, abs=1e-6)
    assert point.x[0] - point.error_x.arrayminus[0] == pytest.approx(centre - half, abs=1e-6)
    assert accuracy.n == 40


def test_what_was_not_measured_is_not_said_to_be_below_the_gate():
    assert accuracy_scatter({"m": result()}, position="value+1") is None
    (point,) = accuracy_scatter({"m": result(right=2)}, position="value+1").data
    assert "below the gate" in point.hovertext
    assert (point.y[0], point.marker.color) == (0, "#8C8C8C")


def test_many_models_are_told_apart():
    drawn = mechanism_triangle({f"m{index}": result() for index in range(40)})
    looks = {(trace.marker.color, trace.marker.symbol) for trace in drawn.data}
    assert len(looks) == 40
    assert drawn.layout.showlegend is False


@pytest.mark.parametrize(
    ("attrib", "shown"),
    [(0.875, (-0.1, 1.1)), (9.0, (-0.1, 1.5)), (-9.0, (-0.5, 1.1)), (-0.2, (-0.3, 1.1))],
)
def test_a_ratio_of_noise_does_not_set_the_scale_of_a_training(attrib, shown):
    ends = dict.fromkeys(("attrib", "attrib_low", "attrib_high"), attrib)
    figure = training_dynamics(dynamics(ends))
    assert figure.layout.yaxis.range == pytest.approx(shown)


def test_a_training_has_its_curves():
    drawn = {trace.name: trace for trace in training_dynamics(dynamics()).data if trace.name}
    assert list(drawn["loss"].x) == [100, 200, 300]
    assert list(drawn["loss"].y) == [4.0, 1.5, 0.25]
    assert drawn["loss"].yaxis == "y2"
    assert list(drawn["dev accuracy"].y) == pytest.approx([1 / 16, 1 / 6, 1.0])
    # The middle one of two layers; nothing where there was no ratio yet.
    assert list(drawn["Attrib@value"].x) == [200, 300]
    assert list(drawn["Attrib@value"].y) == [0.25, 0.875]
    assert list(drawn["Attrib@key"].y) == [0.125, 0.4375]
    (band,) = [
        trace
        for trace in training_dynamics(dynamics()).data
        if trace.fill and trace.legendgroup == "Attrib@value"
    ]
    assert list(band.y) == [0.3125, 0.9375, 0.75, 0.125]
    assert training_dynamics(dynamics({"component": "mixer_output"})) is None


def test_the_file_of_a_training_is_found_from_its_result(tmp_path):
    assert read_dynamics(tmp_path) is None
    pq.write_table(dynamics(), tmp_path / "dynamics.parquet")
    for folder in (tmp_path, tmp_path / "result"):
        assert read_dynamics(folder).equals(dynamics())
    assert read_dynamics(tmp_path / "another") is None
    (tmp_path / "dynamics.parquet").write_bytes(b"no table")
    with pytest.raises(UserError, match="is damaged"):
        read_dynamics(tmp_path)
