"""The engine against the reference in every run: agreement is recorded, disagreement stops it."""

import pytest

import patchbench as pb
from patchbench.common import ControlError
from patchbench.engines.native import NativeEngine
from patchbench.report import terminal
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8)


@pytest.mark.parametrize("engine", ["native", "nnsight"])
def test_the_difference_is_recorded_and_printed(task, engine, capsys):
    result = pb.evaluate(tiny("gpt2"), task, n=8, layers=[1], engine=engine)
    found = result.provenance["engine"]["selfcheck"]
    assert found["reference"] == "pyvene"
    assert 0 <= found["difference"] <= 1e-5 == found["tolerance"]
    assert found["rows"] > 20
    terminal.print_result(result)
    assert f"engine   {engine}, within" in capsys.readouterr().out


@pytest.mark.parametrize("settings", [{"engine": "pyvene"}, {"selfcheck": False}], ids=str)
def test_the_reference_and_an_unchecked_run_record_none(task, settings):
    result = pb.evaluate(tiny("gpt2"), task, n=4, layers=[1], **settings)
    assert result.provenance["engine"]["selfcheck"] is None


def test_a_wrong_engine_stops_the_run(task, monkeypatch):
    run = NativeEngine.run

    def wrong(self, loaded, interventions, batch):
        rows = run(self, loaded, interventions, batch)
        at = rows.schema.get_field_index("logit_patched")
        moved = rows["logit_patched"].to_numpy() + 1e-3
        return rows.set_column(at, rows.schema.field(at), [moved])

    monkeypatch.setattr(NativeEngine, "run", wrong)
    with pytest.raises(ControlError, match=r"native.*pyvene.*logit_patched"):
        pb.evaluate(tiny("gpt2"), task, n=4, layers=[1])
    pb.evaluate(tiny("gpt2"), task, n=4, layers=[1], selfcheck=False)
