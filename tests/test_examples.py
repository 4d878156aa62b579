"""The examples run, and what the package ships is what they make."""

import importlib.util
import json
from pathlib import Path

import pytest

import patchbench as pb
from patchbench.adapters import bundled
from patchbench.training.presets import records

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_preset_reaches_again_what_is_recorded_and_is_bundled(tmp_path, monkeypatch):
    script = load("train_presets")
    key = ("ar", "tiny", "delta_net")
    wanted = {"task": ["ar"], "preset": ["tiny"], "arch": ["delta_net"], "seeds": 1}
    script.main(out=tmp_path / "runs", records=tmp_path / "records.json", **wanted)
    [made] = json.loads((tmp_path / "records.json").read_text())["records"]
    recorded = next(
        r for r in records() if (r["family"], r["preset"], r["arch"], r["seed"]) == (*key, 0)
    )
    assert made.keys() == recorded.keys()
    # Another processor rounds differently and may stop at another step.
    assert made["accuracy"]["value"] == pytest.approx(recorded["accuracy"]["value"], abs=0.02)
    assert made["attrib"]["query"] == pytest.approx(recorded["attrib"]["query"], abs=0.05)

    monkeypatch.setattr(bundled, "WEIGHTS", tmp_path / "weights")
    monkeypatch.setitem(script.BUNDLED, key, 0)
    script.main(out=tmp_path / "runs", bundle=True, **wanted)
    folder = tmp_path / "weights" / "ar-delta_net"
    assert pb.load_model(folder, device="cpu").num_parameters > 0
    result = pb.Result.load(folder / "result")
    assert result.summary["model"]["name"] == "patchbench/ar-delta_net"
    # Where it was made is nobody's business.
    assert not any(str(tmp_path) in file.read_text() for file in folder.rglob("*.json"))


def test_the_picture_is_drawn_without_fetching_anything(tmp_path):
    load("demo_picture").main(str(tmp_path / "demo.svg"), n=8)
    drawn = (tmp_path / "demo.svg").read_text()
    assert "ar-mamba" in drawn
    assert "url(" not in drawn.replace("url(#", "")


def test_the_picture_of_a_report_is_one(tmp_path):
    from tests.core.browser import chromium

    with chromium():  # skips where there is none
        pass
    load("report_picture").main(str(tmp_path / "report.png"), n=8)
    drawn = (tmp_path / "report.png").read_bytes()
    width, height = (int.from_bytes(drawn[at : at + 4], "big") for at in (16, 20))
    assert width == 1040
    assert 1000 < height < 2500
    assert len(drawn) < 300_000
