"""What is special about the nnsight engine: operations inside a forward, and what it leaves."""

import importlib
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from nnsight import NNsight
from transformers.models.mamba2 import modeling_mamba2

import patchbench as pb
from patchbench.adapters import restore
from patchbench.adapters.hook_map import HookPoint
from patchbench.common import UserError
from patchbench.effects import METRICS
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.core.batches import random_batch
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny

SOURCES = {
    "conv_output": "apply_mask_to_padding_states_1",
    "ssm_output": "scan_output_reshape_0",
}


def plan(*sites: str) -> list[Intervention]:
    return [Intervention(sites=(Site.parse(site),), corruption="key") for site in sites]


def with_source(loaded, component, source, *, layer=0, module="mixer"):
    """Return the model with one more place, inside the forward of a stock module of a block."""
    restore(loaded.model)
    point = HookPoint(
        component=component,
        path=f"{loaded.hook_map.blocks}.{layer}.{module}",
        io="output",
        layer=layer,
        source=source,
    )
    points = {**loaded.hook_map.points, (layer, component): point}
    points = {at: p for at, p in points.items() if ".hook_points." not in p.path}
    return replace(loaded, hook_map=replace(loaded.hook_map, points=points))


def patched_by_hand(model, batch, component, layer, role, monkeypatch):
    """p(answer) of transformers' Mamba-2 with an inner value of one layer exchanged.

    What the scan gives is what the gated norm takes first. What the convolution gives passes the
    masking, whose second call in each mixer is put aside here.
    """
    found = []
    for number in range(len(batch)):
        at = int(batch.positions[role][number])
        kept = {}

        def exchange(value, kept=kept, at=at):
            if "value" not in kept:
                kept["value"] = value.clone()
                return value
            patched = value.clone()
            patched[:, at] = kept["value"][:, at]
            return patched

        mixer = model.backbone.layers[layer].mixer
        with monkeypatch.context() as patch:
            if component == "ssm_output":
                handle = mixer.norm.register_forward_pre_hook(
                    lambda _, args, exchange=exchange: (exchange(args[0]), *args[1:])
                )
                undo = handle.remove
            else:
                plain, calls = modeling_mamba2.apply_mask_to_padding_states, []

                def masked(value, mask, plain=plain, calls=calls, exchange=exchange):
                    calls.append(None)
                    result = plain(value, mask)
                    mine = (len(calls) - 1) % 4 == 2 * layer + 1  # 2 layers, 2 calls in each
                    return exchange(result) if mine else result

                patch.setattr(modeling_mamba2, "apply_mask_to_padding_states", masked)
                undo = lambda: None  # noqa: E731
            with torch.no_grad():
                model(torch.tensor(batch.clean[number][None]), use_cache=False)
                logits = model(
                    torch.tensor(batch.corrupted["key"][number][None]), use_cache=False
                ).logits[0, -2]
            undo()
        found.append(float(logits.double().softmax(-1)[batch.answer[number]]))
    return np.array(found)


# What the last layer has before the read-out reaches no prediction.
@pytest.mark.parametrize(("layer", "role"), [(0, "value"), (1, "query")])
@pytest.mark.parametrize("component", SOURCES)
def test_an_operation_inside_a_stock_module(component, layer, role, monkeypatch):
    model, batch = tiny("mamba2"), random_batch()
    truth = patched_by_hand(model, batch, component, layer, role, monkeypatch)
    loaded = with_source(pb.load_model(model), component, SOURCES[component], layer=layer)
    rows = ENGINES["nnsight"]().run(loaded, plan(f"L{layer}.{component}@{role}"), batch)
    np.testing.assert_allclose(rows["p_patched"].to_numpy(), truth, atol=1e-6)
    assert np.abs(truth - rows["p_base"].to_numpy()).max() > 1e-5


def test_evaluate_takes_a_place_inside_a_forward():
    loaded = with_source(pb.load_model(tiny("mamba2")), "ssm_output", SOURCES["ssm_output"])
    task = pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8)
    result = pb.evaluate(loaded, task, n=4, components=["ssm_output"], layers=[0], engine="nnsight")
    assert "L0.ssm_output@value" in result.rows["site"].to_pylist()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("no_such_operation_0", "no operation 'no_such_operation_0'"),
        ("mamba2_chunk_scan_0.no_such_0", "no operation"),
        ("hidden_states_view_1", "shape"),
        ("causal_conv1d_update_0", "did not fire"),
        ("hidden_states_B_C_transpose_0", "shape"),
    ],
)
def test_an_operation_that_cannot_be_patched_is_refused(source, says):
    loaded = with_source(pb.load_model(tiny("mamba2")), "gate", source)
    with pytest.raises(UserError, match=says):
        ENGINES["nnsight"]().run(loaded, plan("L0.gate@key"), random_batch())


class Looped(torch.nn.Module):
    """Calls one operation twice, and gives another to nobody."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden):
        hidden = self.inner(hidden)
        for _ in range(2):
            hidden = torch.mul(hidden, 0.9)
        torch.abs(hidden)
        return hidden


@pytest.mark.parametrize(
    ("source", "says"),
    [("torch_mul_0", "more than once"), ("torch_abs_0", "not read")],
)
def test_an_operation_that_means_nothing_is_refused(source, says):
    model = tiny("gpt2")
    model.transformer.h[0].mlp = Looped(model.transformer.h[0].mlp)
    loaded = with_source(pb.load_model(model), "gate", source, module="mlp")
    with pytest.raises(UserError, match=says):
        ENGINES["nnsight"]().run(loaded, plan("L0.gate@key"), random_batch())


def test_a_value_whose_second_dimension_is_not_time_is_refused():
    """Also where there are as many features as tokens, so that the shape tells nothing."""
    loaded = with_source(pb.load_model(tiny("mamba2")), "gate", "hidden_states_B_C_transpose_0")
    with pytest.raises(UserError, match="not time"):
        ENGINES["nnsight"]().run(loaded, plan("L0.gate@key"), random_batch(length=80))


def test_an_older_nnsight_is_refused_in_one_line(monkeypatch):
    name = "patchbench.engines.nnsight"
    monkeypatch.delitem(sys.modules, name, raising=False)
    empty = ModuleType("nnsight.intervention.interleaver")  # what 0.7 has there is other names
    monkeypatch.setitem(sys.modules, empty.__name__, empty)
    with pytest.raises(UserError, match=r"nnsight 0\S+ is another engine.*--engine native"):
        importlib.import_module(name)


def test_pyvene_refuses_what_only_nnsight_reaches():
    loaded = with_source(pb.load_model(tiny("mamba2")), "ssm_output", SOURCES["ssm_output"])
    with pytest.raises(UserError, match="nnsight"):
        ENGINES["pyvene"]().run(loaded, plan("L0.ssm_output@key"), random_batch())


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "mamba", "mamba2"])
def test_it_agrees_with_pyvene(family):
    loaded, batch = pb.load_model(tiny(family)), random_batch(size=6)
    sites = [
        f"L{layer}.{component}@{place}"
        for layer in (0, 1)
        for component in ("block_input", "mixer_input", "mixer_output", "block_output")
        for place in ("key", "value+1", "query", "answer")
    ]
    pair = Intervention(
        sites=tuple(map(Site.parse, ("L1.block_input@query", "L1.block_input@key"))),
        corruption="key",
    )
    rows = {
        name: ENGINES[name]().run(loaded, [*plan("embed@key", *sites), pair], batch)
        for name in ("pyvene", "nnsight")
    }
    assert len(rows["nnsight"]) == (len(sites) + 2) * 6
    for metric in (*(f"{name}_patched" for name in METRICS[:3]), "kl_patched", "p_base"):
        np.testing.assert_allclose(
            rows["nnsight"][metric].to_numpy(), rows["pyvene"][metric].to_numpy(), atol=1e-5
        )


def left_over(model) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if "forward" in vars(module) or "__nnsight__" in vars(module) or module._forward_pre_hooks
    ]


def test_the_model_is_left_as_it_was():
    model = tiny("llama").train()
    fired = []
    handle = model.model.layers[0].register_forward_hook(lambda *_: fired.append(1))
    loaded = pb.load_model(model)
    ENGINES["nnsight"]().run(loaded, plan("L0.block_output@key"), random_batch())
    assert model.training
    assert left_over(model) == []
    fired.clear()
    model(torch.zeros(1, 4, dtype=torch.long))
    assert fired == [1]
    handle.remove()


def test_an_exception_in_the_middle_leaves_nothing_behind():
    model, batch = tiny("gpt2"), random_batch()
    loaded = pb.load_model(model)
    handle = model.transformer.h[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(UserError, match="ZeroDivisionError"):
        ENGINES["nnsight"]().run(loaded, plan("L0.block_input@key"), batch)
    handle.remove()
    assert left_over(model) == []
    again = ENGINES["nnsight"]().run(loaded, plan("L0.block_input@key"), batch)
    fresh = ENGINES["nnsight"]().run(pb.load_model(tiny("gpt2")), plan("L0.block_input@key"), batch)
    assert again.equals(fresh)


def test_a_wrapper_of_the_users_own_goes_on_working():
    model, batch = tiny("gpt2"), random_batch()
    wrapper = NNsight(model)
    ENGINES["nnsight"]().run(pb.load_model(model), plan("L0.block_input@key"), batch)
    box = {}
    with wrapper.trace() as tracer:
        with tracer.invoke(input_ids=torch.tensor(batch.clean)):
            pass
        with tracer.invoke():
            box["hidden"] = wrapper.transformer.h[0].output
    assert box["hidden"].shape == (4, 10, 32)


def test_traces_may_be_sent_elsewhere():
    """Through the serialisation of a remote run, but run here."""
    from patchbench.engines.nnsight import NnsightEngine

    model, batch = tiny("gpt2"), random_batch()
    model.config._name_or_path = "tiny/gpt2"
    loaded = pb.load_model(model, tokenizer=tiny_tokenizer("byte_bpe"))
    sites = plan("L0.mixer_output@value", "L1.block_input@key")
    here = NnsightEngine().run(loaded, sites, batch)
    there = NnsightEngine(remote="local").run(loaded, sites, batch)
    np.testing.assert_allclose(
        there["p_patched"].to_numpy(), here["p_patched"].to_numpy(), atol=1e-6
    )
    assert left_over(model) == []
