"""The main job from end to end, against a loop that shares nothing with it."""

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

import patchbench as pb
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.evaluation_config import EvaluateConfig
from patchbench.preparation import select_sites
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8)


def by_hand(model, task, layer, offset, n):
    """p(answer) clean, corrupted, and patched at the input of a block, one example at a time."""
    found = []
    for row in task.dataset("test", n):
        clean, corrupted = row["input_ids"], row["corruptions"]["key"]["input_ids"]
        read_out = row["roles"]["answer"] - 1
        where = row["roles"]["value"] + offset
        block = model.transformer.h[layer]
        kept = {}

        def keep(_, args, kept=kept):
            kept["hidden"] = args[0].detach().clone()

        def swap(_, args, kept=kept, where=where):
            hidden = args[0].clone()
            hidden[:, where] = kept["hidden"][:, where]
            return (hidden, *args[1:])

        def p(ids, row=row, read_out=read_out):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, read_out]
            return float(logits.double().softmax(-1)[row["answer"]])

        handle = block.register_forward_pre_hook(keep)
        p_clean = p(clean)
        handle.remove()
        handle = block.register_forward_pre_hook(swap)
        p_patched = p(corrupted)
        handle.remove()
        found.append((p_clean, p(corrupted), p_patched))
    return np.array(found)


@pytest.mark.parametrize(("layer", "offset"), [(0, -1), (1, 0), (1, 1)])
def test_evaluate_equals_a_loop_by_hand(task, layer, offset):
    model = tiny("gpt2")
    site = f"L{layer}.block_input@value" + (f"{offset:+d}" if offset else "")
    result = pb.evaluate(model, task, n=12, layers=[layer], positions=[site.split("@")[1]])
    rows = result.rows.to_pylist()
    ours = sorted((r["example"], r) for r in rows if r["site"] == site and r["control"] is None)
    truth = by_hand(model, task, layer, offset, 12)
    assert len(ours) == 12
    for (_, row), (p_clean, p_corrupted, p_patched) in zip(ours, truth, strict=True):
        assert row["p_source"] == pytest.approx(p_clean, abs=1e-6)
        assert row["p_base"] == pytest.approx(p_corrupted, abs=1e-6)
        assert row["p_patched"] == pytest.approx(p_patched, abs=1e-6)
    mean = truth.mean(axis=0)
    expected = (mean[2] - mean[1]) / (mean[0] - mean[1])
    assert result.attrib(site).value == pytest.approx(expected, rel=1e-3)


def test_equal_arguments_give_equal_rows_and_intervals(task):
    runs = [pb.evaluate(tiny("gpt2"), task, n=8, layers=[1]) for _ in range(2)]
    assert runs[0].rows.equals(runs[1].rows)
    assert runs[0].summary == runs[1].summary


def test_saved_result_comes_back_equal(task, tmp_path):
    result = pb.evaluate(tiny("gpt2"), task, n=8, layers=[1], command="patchbench evaluate")
    result.save(tmp_path / "run")
    again = pb.Result.load(tmp_path / "run")
    assert again.rows.equals(result.rows)
    assert again.summary == result.summary
    assert again.provenance["command"] == "patchbench evaluate"
    assert again.attrib("L1.block_input@value") == result.attrib("L1.block_input@value")


@pytest.mark.parametrize(
    ("preset", "ran"),
    [
        ("delta_net", {"delta_rule": "torch", "short_conv": "torch"}),
        ("mamba_noconv", {"selective_scan": "torch"}),
        ("attention", {}),
    ],
    ids=["delta_net", "mamba_noconv", "attention"],
)
def test_the_implementation_of_every_op_is_on_record(task, preset, ran):
    """Of this run alone: what another model ran before is another matter."""
    sizes = {"width": 16, "vocab_size": 64}
    for name in ("gated_delta_net", preset):
        model = MixerLMForCausalLM(MixerLMConfig.preset(name, **sizes)).eval()
        result = pb.evaluate(model, task, n=4, components=["block_input"], positions=["key"])
    assert result.provenance["engine"]["ops"] == ran


def test_progress_ends_at_the_total(task):
    calls = []
    pb.evaluate(
        tiny("gpt2"),
        task,
        n=10,
        batch_size=4,
        layers=[0],
        progress=lambda done, total: calls.append((done, total)),
    )
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1][0] == calls[-1][1]


def test_below_the_gate_there_are_no_effects(task):
    run = pb.evaluate(tiny("gpt2"), task, n=32, layers=[1]).summary["runs"][0]
    assert run["reasons"]
    assert run["effects"] == []


def test_a_tokenizer_of_another_model_is_refused(task):
    loaded = pb.load_model(tiny("gpt2", vocab=16), tokenizer=tiny_tokenizer("byte_bpe"))
    with pytest.raises(pb.UserError, match=r"the model knows 16.*--tokenizer"):
        pb.evaluate(loaded, task, n=4)


def test_documents_of_different_length_are_measured_together():
    task = pb.load_task("atr/easy")
    result = pb.evaluate(tiny("mamba", vocab=26), task, n=24, layers=[1], positions=["value"])
    assert result.summary["n"] == 24
    assert 0.2 < result.summary["floor"] < 0.8  # its heuristics are far above guessing


def test_the_model_is_left_as_it_was(task):
    model = tiny("gpt2").train()
    model.transformer.wte.weight.requires_grad_(False)
    fired = []
    handle = model.transformer.h[0].register_forward_hook(lambda *_: fired.append(1))
    pb.evaluate(model, task, n=4, layers=[1], positions=["value"])
    assert model.training
    assert not model.transformer.wte.weight.requires_grad
    assert model.transformer.wpe.weight.requires_grad
    fired.clear()
    model(torch.zeros(1, 4, dtype=torch.long))
    assert fired == [1]
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_select_sites_takes_layers_and_components_that_exist():
    hook_map = pb.load_model(tiny("mamba")).hook_map
    sites = select_sites(hook_map, ["embed", "mixer_output"], [1], ["key", "value+1"])
    assert [str(site) for site in sites] == [
        "embed@key",
        "embed@value+1",
        "L1.mixer_output@key",
        "L1.mixer_output@value+1",
    ]
    with pytest.raises(pb.UserError, match="mlp_output"):
        select_sites(hook_map, ["mlp_output"], None, ["key"])
    with pytest.raises(pb.UserError, match="layers 0–1"):
        select_sites(hook_map, ["block_input"], [2], ["key"])


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 0},
        {"n": 2.5},
        {"batch_size": 0},
        {"shots": -1},
        {"positions": []},
        {"n": True},
        {"positions": ["value", "value"]},
        {"positions": ["value", "value+0"]},
        {"directions": ["up"]},
        {"resamples": 1},
        {"resamples": "x"},
        {"n": 100_001},
        {"layers": [0, "1"]},
        {"layers": 2.0},
        {"components": 3},
        {"split": None},
        {"engine": "pyven"},
        {"template": "colons"},
        {"nn": 3},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(pb.UserError):
        EvaluateConfig.of(settings)


def test_one_name_stands_for_a_sequence_of_one():
    single = EvaluateConfig.of({"corruptions": "swap", "layers": 1, "positions": "value+1"})
    assert single == EvaluateConfig(corruptions=("swap",), layers=(1,), positions=("value+1",))
    assert EvaluateConfig.of({"layers": np.arange(2)}).layers == (0, 1)
    assert EvaluateConfig.of({"layers": None, "positions": None}) == EvaluateConfig()


@pytest.mark.parametrize("position", ["answer+5", "key-9", "bos-1"])
def test_a_position_that_no_example_has_is_refused(task, position):
    with pytest.raises(pb.UserError, match=f"no example has a token at '{position[:3]}"):
        pb.evaluate(tiny("gpt2"), task, n=4, positions=["key", position])


def test_a_position_that_some_examples_lack_is_measured_on_the_others():
    trees = pb.load_task("atr/easy")
    result = pb.evaluate(tiny("mamba"), trees, n=48, layers=[1], positions=["key", "key-6"])
    have = sum(row["roles"]["key"] >= 6 for row in trees.dataset("test", 48))
    assert 0 < have < 48
    assert result.attrib("L1.block_input@key").n == 48
    assert result.attrib("L1.block_input@key-6").n == have
    assert any(f"at most {48 - have} examples" in note for note in result.provenance["notes"])


SETTINGS = {"n": 12, "layers": [0, 1], "positions": ["key", "value+1"], "batch_size": 5}


@pytest.fixture(scope="module")
def reference(task):
    return pb.evaluate(tiny("gpt2"), task, **SETTINGS)


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ],
    ids=["no_grad", "inference_mode", "autocast"],
)
@pytest.mark.parametrize("made", ["inside", "outside"])
def test_the_callers_context_changes_no_number(context, made, task, reference):
    """Autocast would round to bfloat16 under the name of float32."""
    model = tiny("gpt2")
    with context():
        result = pb.evaluate(tiny("gpt2") if made == "inside" else model, task, **SETTINGS)
    assert result.rows.equals(reference.rows)


def test_a_model_made_in_inference_mode_is_measured_outside_of_it(task, reference):
    with torch.inference_mode():
        model = tiny("gpt2")
    assert pb.evaluate(model, task, **SETTINGS).rows.equals(reference.rows)


def test_training_mode_dropout_and_frozen_weights_change_no_number(task, reference):
    model = tiny("gpt2").train().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    for _ in range(2):
        assert pb.evaluate(model, task, **SETTINGS).rows.equals(reference.rows)
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("batch_size", [1, 3, 11, 12])
def test_the_batch_size_changes_nothing_but_rounding(batch_size, task, reference):
    """11 is the length of the documents: batch and time have one size."""
    result = pb.evaluate(tiny("gpt2"), task, **{**SETTINGS, "batch_size": batch_size})
    keys = [(name, "ascending") for name in ("direction", "site", "control", "example")]
    ours, theirs = (r.rows.sort_by(keys)["logit_patched"] for r in (result, reference))
    assert np.abs(ours.to_numpy() - theirs.to_numpy()).max() < 1e-5


@pytest.mark.parametrize("call", [1, 4, 9, 30])
def test_a_model_that_fails_midway_is_left_as_it_was(call, task, reference):
    model, calls = tiny("gpt2"), []

    def fail(*_):
        calls.append(1)
        if len(calls) == call:
            raise RuntimeError("boom")

    handle = model.transformer.ln_f.register_forward_hook(fail)
    with pytest.raises((pb.UserError, RuntimeError), match="boom"):
        pb.evaluate(model, task, **SETTINGS)
    handle.remove()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert pb.evaluate(model, task, **SETTINGS).rows.equals(reference.rows)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.25), ("float16", 0.03)])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_half_precision_differs_by_its_rounding_alone(family, dtype, tolerance, task):
    """In logits, whose spread is 5: a patch at a wrong place would move them by about 1."""
    whole = pb.evaluate(tiny(family), task, **SETTINGS)
    model = tiny(family).to(getattr(torch, dtype))
    half = pb.evaluate(pb.load_model(model, dtype="auto"), task, **SETTINGS)
    assert half.provenance["model"]["dtype"] == dtype
    keys = [(name, "ascending") for name in ("direction", "site", "control", "example")]
    ours, theirs = (r.rows.sort_by(keys)["logit_patched"].to_numpy() for r in (half, whole))
    assert np.abs(ours - theirs).max() < tolerance
    moved = whole.rows["logit_patched"].to_numpy() - whole.rows["logit_base"].to_numpy()
    assert np.abs(moved).max() > 2 * tolerance


def test_a_patch_that_overflows_is_told_and_not_left_out(task):
    class Overflowing(GPT2LMHeadModel):
        calls = 0

        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            self.calls += 1
            if self.calls > 8:  # behind the probes and the unpatched runs
                output.logits[..., 0] = torch.inf
            return output

    model = Overflowing(tiny("gpt2").config)
    with pytest.raises(pb.UserError, match=r"logits with .* patched are NaN or infinite"):
        pb.evaluate(model, task, engine="pyvene", selfcheck=False, **SETTINGS)


def test_sites_in_words_are_patched_together_and_from_elsewhere(task):
    """A pair is both patches in one forward; with all of layer 0 the source run itself."""
    together = "L0.block_input@key & L*.mlp_output@query"
    elsewhere = "L1.block_input@key -> L1.block_input@value"
    sites = [together, elsewhere, "L0..1.block_input@key"]
    result = pb.evaluate(tiny("gpt2"), task, n=6, sites=sites)
    rows = [row for row in result.rows.to_pylist() if row["control"] is None]
    assert {row["site"] for row in rows} == {
        "L0.block_input@key & L0.mlp_output@query",
        "L0.block_input@key & L1.mlp_output@query",
        elsewhere,
        "L0.block_input@key",
        "L1.block_input@key",
    }
    for row in rows:
        if row["site"].startswith("L0.block_input@key"):
            assert row["p_patched"] == pytest.approx(row["p_source"], abs=1e-6)
    assert {row["p_patched"] == row["p_base"] for row in rows if "->" in row["site"]} != {True}
    assert result.config["sites"] == sites
    with pytest.raises(pb.UserError, match="sites and positions together"):
        pb.evaluate(tiny("gpt2"), task, sites=sites, positions=["key"])
    with pytest.raises(pb.UserError, match=r"no example has a token at 'answer\+3'"):
        pb.evaluate(tiny("gpt2"), task, n=4, sites="L0.block_input@answer+3")
