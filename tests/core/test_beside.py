"""Results beside a Result: the same numbers as alone, a twin that is another model, all on disk."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import patchbench as pb
from patchbench import beside, cli
from patchbench.finding import find_results
from tests.tiny_models import tiny

SETTINGS = {"n": 12, "batch_size": 5, "layers": [1], "positions": ["value", "query"]}


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8, held_out=0.3)


@pytest.fixture(scope="module")
def result(task):
    return pb.evaluate(tiny("gpt2"), task, held_out=True, untrained_twin=True, **SETTINGS)


def test_each_is_what_it_would_be_alone(task, result):
    model = tiny("gpt2")
    alone = pb.evaluate(model, task, **SETTINGS)
    assert result.rows.equals(alone.rows)
    assert set(result.summary) == {*alone.summary, "held_out", "untrained"}
    for name in ("runs", "accuracy", "strata"):
        assert result.summary[name] == alone.summary[name]
    dev = pb.evaluate(model, task, split="dev", **SETTINGS)
    assert result.beside["dev"].rows.equals(dev.rows)
    assert not dev.rows.equals(alone.rows)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(model)(model.config).eval()
    twin = pb.evaluate(fresh, task, **SETTINGS)
    assert result.beside["untrained"].rows.equals(twin.rows)
    assert result.summary["untrained"]["accuracy"] == twin.summary["accuracy"]
    assert result.beside["untrained"].provenance["model"]["name"].endswith("(untrained)")


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba", "mamba2", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_twin_has_the_same_shape_and_other_weights(family, dtype):
    loaded = pb.load_model(tiny(family).to(dtype), dtype="auto")
    before = {name: weight.clone() for name, weight in loaded.model.named_parameters()}
    state = torch.get_rng_state()
    twin, other = beside.untrained(loaded, 0), beside.untrained(loaded, 1)
    again = beside.untrained(loaded, 0)
    assert torch.equal(torch.get_rng_state(), state)
    own = dict(twin.model.named_parameters())
    assert {n: (w.shape, w.dtype) for n, w in own.items()} == {
        n: (w.shape, w.dtype) for n, w in before.items()
    }
    assert all(torch.equal(w, before[n]) for n, w in loaded.model.named_parameters())
    name, _ = max(before.items(), key=lambda item: item[1].numel())
    weights = [dict(m.model.named_parameters())[name] for m in (loaded, twin, other)]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    assert torch.equal(dict(again.model.named_parameters())[name], weights[1])
    assert twin.hook_map == loaded.hook_map
    assert not twin.model.training


def test_a_twin_is_patched_where_the_model_is():
    """A map of one's own names places of the stock modules, which no twin of a mixer replaces."""
    model = tiny("mamba")
    stock = replace(pb.load_model(model).hook_map, origin="user")
    from patchbench.adapters import restore

    restore(model)
    points = {k: p for k, p in stock.points.items() if k[1] in ("block_input", "block_output")}
    loaded = pb.load_model(model, hook_map=replace(stock, points=points))
    twin = beside.untrained(loaded, 0)
    assert twin.hook_map.points == points
    kinds = [type(m.model.backbone.layers[0].mixer) for m in (loaded, twin)]
    assert kinds[0] is kinds[1]


def test_a_folder_holds_them_and_counts_once(tmp_path, result):
    result.save(tmp_path / "runs" / "a")
    again = pb.Result.load(tmp_path / "runs" / "a")
    assert set(again.beside) == {"dev", "untrained"}
    for name, other in again.beside.items():
        assert other.rows.equals(result.beside[name].rows)
        assert other.summary == result.beside[name].summary
    assert list(find_results([str(tmp_path / "runs")]).values()) == [tmp_path / "runs" / "a"]
    inner = tmp_path / "runs" / "a" / "dev"
    assert list(find_results([str(inner)]).values()) == [inner]


@pytest.mark.parametrize("names", [["../a"], ["x"], "dev", [1]], ids=str)
def test_a_damaged_list_of_them_is_one_line(tmp_path, result, names):
    result.save(tmp_path / "a")
    file = tmp_path / "a" / "result.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"beside": names}))
    with pytest.raises(pb.UserError, match="damaged"):
        pb.Result.load(tmp_path / "a")


def test_a_forecast_counts_all_of_them(task, result):
    forecast = pb.plan(tiny("gpt2"), task, held_out=True, untrained_twin=True, **SETTINGS)
    ran = [r.provenance["engine"] for r in (result, *result.beside.values())]
    assert forecast.forwards == sum(one["forwards"] for one in ran)
    assert forecast.forward_rows == sum(one["forward_rows"] for one in ran)
    assert forecast.rows == sum(len(r.rows) for r in (result, *result.beside.values()))
    assert "test, the untrained twin, dev" in forecast.notes[-1]
    alone = pb.plan(tiny("gpt2"), task, **SETTINGS)
    assert forecast.peak_bytes >= alone.weights_bytes * 2
    assert forecast.examples == alone.examples


@pytest.mark.parametrize(
    ("flag", "name", "says"),
    [
        ("--held-out", "dev", ["held-out pairs", "is not on record"]),
        ("--untrained-twin", "untrained", ["untrained twin (seed 0): accuracy", "below the gate"]),
    ],
)
def test_the_command_line_prints_them_in_80_columns(
    flag, name, says, tmp_path, monkeypatch, capsys
):
    folder, out = tmp_path / "gpt2", tmp_path / "out"
    tiny("gpt2", vocab=64).save_pretrained(folder)
    command = ["evaluate", "--model", folder, "--task", "ar/tiny", "--set", "held_out=0.3"]
    command += ["--n", "12", flag]

    def run(*more: object) -> str:
        monkeypatch.setattr(sys, "argv", ["patchbench", *map(str, [*command, *more])])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        return capsys.readouterr().out

    assert "seconds are of test, " in " ".join(run("--dry-run").split())
    text = run("--out", out)
    lines = [line for line in text.splitlines() if not line.startswith("written")]
    assert max(map(len, lines)) <= 80
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in says:
        assert words in " ".join(text.split())
        assert words in page
    assert set(pb.Result.load(out).beside) == {name}
