"""HookMaps: look-ups, the one helper for hidden states, inspection, registration, MixerLM."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, BertLMHeadModel, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutputWithPast

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.hook_map import (
    COMPONENTS,
    HOOK_MAPS,
    HookMap,
    get_hidden,
    hook_map_for,
    put_hidden,
    register_hook_map,
)
from patchbench.adapters.inspection import map_by_inspection
from patchbench.common import UserError
from tests.tiny_models import tiny

HIDDEN = torch.zeros(2, 5, 3)
NEW = torch.ones(2, 5, 3)
MASK = torch.zeros(2, 1, 5, 5)


class Pair(NamedTuple):
    weights: Tensor | None
    hidden: Tensor


CONTAINERS: dict[str, Any] = {
    "tensor": HIDDEN,
    "tuple": (HIDDEN, None),
    "tuple_with_the_hidden_state_last": (None, torch.zeros(2, 5, dtype=torch.long), HIDDEN),
    "list": [HIDDEN, MASK],
    "named_tuple": Pair(None, HIDDEN),
    "keywords": {"attention_mask": MASK, "hidden_states": HIDDEN},
    "unnamed_keywords": {"mask": torch.ones(2, 5), "x": HIDDEN},
    "model_output": BaseModelOutputWithPast(last_hidden_state=HIDDEN),
}


@pytest.mark.parametrize("value", CONTAINERS.values(), ids=CONTAINERS)
def test_the_hidden_state_is_found_and_replaced(value):
    assert get_hidden(value) is HIDDEN
    replaced = put_hidden(value, NEW)
    assert type(replaced) is type(value)
    assert get_hidden(replaced) is NEW
    assert get_hidden(value) is HIDDEN
    if isinstance(value, tuple | list):
        for old, new in zip(value, replaced, strict=True):
            assert (new is NEW) if old is HIDDEN else (new is old)
    if isinstance(value, dict):
        assert {k for k in value if value[k] is not replaced[k]} == {
            k for k in value if value[k] is HIDDEN
        }


@pytest.mark.parametrize("value", [None, (), ("a", None), 3.0], ids=str)
def test_a_value_without_a_tensor_is_refused(value):
    with pytest.raises(UserError, match="hidden state"):
        get_hidden(value)


@pytest.fixture(scope="module")
def gpt2_map():
    return hook_map_for(tiny("gpt2"))


def test_components_come_in_the_order_of_a_pass(gpt2_map):
    assert gpt2_map.components(None) == ["embed"]
    assert gpt2_map.components(1) == [
        "block_input",
        "mixer_input",
        "head_output",
        "mixer_output",
        "mlp_input",
        "mlp_output",
        "block_output",
    ]


@pytest.mark.parametrize(
    ("layer", "component", "words"),
    [
        (2, "block_input", "layers 0–1"),
        (-1, "block_input", "layers 0–1"),
        (0, "block_inptu", "did you mean 'block_input'"),
        (None, "block_input", "known: embed"),
        (0, "conv_output", "no component 'conv_output' in layer 0"),
    ],
    ids=["layer", "negative", "typo", "outside", "absent"],
)
def test_a_place_that_does_not_exist_is_refused(gpt2_map, layer, component, words):
    with pytest.raises(UserError, match=words):
        gpt2_map.point(layer, component)


def test_a_module_that_does_not_exist_is_refused(gpt2_map):
    with pytest.raises(UserError, match=r"transformer\.h\.0\.attn"):
        gpt2_map.module(tiny("llama"), gpt2_map.point(0, "mixer_output"))


# What inspection finds in families that the table knows must be what the table says.
@pytest.mark.parametrize(
    "family",
    ["gpt2", "gpt_neox", "llama", "gemma2", "phi", "falcon", "mamba", "mixtral", "codegen"],
)
def test_inspection_finds_what_the_table_says(family):
    model = tiny(family)
    found, known = map_by_inspection(model), hook_map_for(model)
    inside = {"q", "k", "v", "head_output"}
    assert found.points == {at: p for at, p in known.points.items() if at[1] not in inside}
    assert (found.blocks, found.head, found.num_layers) == (
        known.blocks,
        known.head,
        known.num_layers,
    )
    assert found.origin == "inspection"
    assert f"{family} is in no table" in found.notes[0]


def test_inspection_reads_a_hybrid_layer_by_layer():
    hook_map = map_by_inspection(tiny("jamba"))
    assert hook_map.origin == "inspection"
    paths = [hook_map.point(layer, "mixer_output").path for layer in (0, 1)]
    assert paths == ["model.layers.0.mamba", "model.layers.1.self_attn"]
    assert "mamba" in hook_map.notes[0]
    assert "self_attn" in hook_map.notes[0]


def test_inspection_finds_an_mlp_that_is_two_linears():
    hook_map = hook_map_for(tiny("biogpt"))
    assert hook_map.point(0, "mlp_input").path == "biogpt.layers.0.fc1"
    assert hook_map.point(0, "mlp_output").path == "biogpt.layers.0.fc2"


class _Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(4, 4)


def _model(blocks: list[nn.Module], **more: nn.Module) -> Any:
    model: Any = nn.Module()
    model.config = SimpleNamespace(model_type="homemade")
    model.embedding, model.head = nn.Embedding(8, 4), nn.Linear(4, 8)
    model.blocks = nn.ModuleList(blocks)
    for name, module in more.items():
        setattr(model, name, module)
    model.get_input_embeddings = lambda: model.embedding
    model.get_output_embeddings = lambda: model.head
    return model


def _block(**parts: nn.Module) -> nn.Module:
    block = nn.Module()
    for name, part in parts.items():
        block.add_module(name, part)
    return block


@pytest.mark.parametrize(
    ("parts", "mixer", "mlp"),
    [
        (["input_norm", "time_stuff", "ln_2", "channels"], "time_stuff", "channels"),
        (["norm", "thing", "ffn_norm", "ffn"], "thing", "ffn"),
        (["attention", "attention_norm", "wide"], "attention", "wide"),
        (["self_attn_layer_norm", "self_attn", "dropout", "mlp"], "self_attn", "mlp"),
        (["norm", "a", "b", "c"], None, None),
    ],
    ids=["by_place", "mixer_by_place", "mlp_by_place", "by_name", "ambiguous"],
)
def test_inspection_recognises_parts(parts, mixer, mlp):
    hook_map = map_by_inspection(_model([_block(**{part: _Part() for part in parts})]))

    def path(component: str) -> str | None:
        point = hook_map.points.get((0, component))
        return point.path.removeprefix("blocks.0.") if point else None

    assert path("mixer_input") == path("mixer_output") == mixer
    assert path("mlp_input") == path("mlp_output") == mlp
    assert (hook_map.embed, hook_map.head) == ("embedding", "head")


def test_inspection_says_which_of_several_mixers_it_took():
    block = _block(mamba=_Part(), self_attn=_Part(), mlp=_Part())
    assert "mixer mamba (not self_attn)" in map_by_inspection(_model([block])).notes[0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_model([]), "found none"),
        (
            _model(
                [_block(attn=_Part(), mlp=_Part())],
                tower=nn.ModuleList([_block(a=_Part(), b=_Part())]),
            ),
            "found blocks, tower",
        ),
        (_model([nn.Linear(4, 4)]), "found none"),
    ],
    ids=["no_blocks", "two_lists", "list_of_weights"],
)
def test_a_model_without_one_list_of_blocks_is_refused(model, words):
    with pytest.raises(UserError, match=f"{words}: pass a HookMap"):
        hook_map_for(model)


def test_encoders_are_refused():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    bert = BertLMHeadModel(AutoConfig.for_model("bert", **small, intermediate_size=16))
    with pytest.raises(UserError, match="bert is an encoder"):
        hook_map_for(bert)
    bert.config.is_decoder = True
    assert hook_map_for(bert).blocks == "bert.encoder.layer"
    t5 = T5ForConditionalGeneration(
        AutoConfig.for_model(
            "t5", d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=20
        )
    )
    with pytest.raises(UserError, match="t5 is an encoder-decoder model"):
        hook_map_for(t5)


def test_a_registered_map_wins(monkeypatch):
    monkeypatch.setattr(HOOK_MAPS, "_targets", dict(HOOK_MAPS._targets))
    mine = HookMap(
        model_type="gpt2", origin="user", num_layers=2, blocks="transformer.h", points={}
    )

    @register_hook_map("gpt2")
    def build(model: Any) -> HookMap:
        return mine

    assert hook_map_for(tiny("gpt2")) == mine
    with pytest.raises(UserError, match="registered twice"):
        register_hook_map("gpt2")(lambda model: mine)


@pytest.mark.parametrize(
    ("preset", "settings", "inner"),
    [
        (
            "attention",
            {"num_heads": 4, "num_kv_heads": 2},
            {"q": 4, "k": 2, "v": 2, "head_output": 4},
        ),
        ("mamba", {}, {"conv_input": None, "conv_output": None, "ssm_state": None, "dt": None}),
        ("delta_net", {"num_heads": 2}, {"beta": 2, "q": 2, "ssm_state": 2, "conv_output": None}),
        (
            "mamba2",
            {"head_dim": 8, "num_groups": 2},
            {"ssm_output": 4, "ssm_write": 4, "dt": 4, "B": 2, "C": 2, "conv_state": None},
        ),
    ],
    ids=["attention", "mamba", "delta_net", "mamba2"],
)
def test_mixer_lm_offers_the_hook_points_of_its_mixers(preset, settings, inner):
    model = MixerLMForCausalLM(
        MixerLMConfig.preset(preset, width=16, layers=2, vocab_size=20, **settings)
    )
    hook_map = hook_map_for(model)
    assert (hook_map.origin, hook_map.num_layers) == ("mixer_lm", 2)
    for component, heads in inner.items():
        point = hook_map.point(1, component)
        assert point.path == f"backbone.layers.1.mixer.hook_points.{component}"
        assert (point.io, point.heads) == ("output", heads)
    has_mlp = "mlp_output" in hook_map.components(0)
    assert has_mlp is (preset not in ("mamba", "mamba2"))
    assert set(hook_map.components(0)) <= set(COMPONENTS)


def test_a_hybrid_has_different_places_per_layer():
    config = MixerLMConfig.preset("mamba,attention", width=16, layers=2, vocab_size=20)
    hook_map = hook_map_for(MixerLMForCausalLM(config))
    assert (0, "ssm_state") in hook_map.points
    assert (1, "ssm_state") not in hook_map.points
    assert (1, "attn_weights") in hook_map.points
    with pytest.raises(UserError, match="no component 'ssm_state' in layer 1"):
        hook_map.point(1, "ssm_state")
