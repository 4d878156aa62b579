"""What the config accepts, fills in and refuses."""

import pytest

from patchbench.adapters import MixerLMConfig
from patchbench.adapters.mixers import Mixer, MixerOptions
from patchbench.common import UserError


def config(**arguments):
    return MixerLMConfig(**{"vocab_size": 26, "hidden_size": 16, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mixers": ["mambo"]}, ("unknown mixer 'mambo'", "'mamba'")),
        ({"mixers": [{"d_conv": 2}]}, ("layer 0 names no mixer",)),
        ({"mixers": [{"name": "mamba", "dconv": 2}]}, ("layer 0", "'dconv'", "'d_conv'")),
        ({"mixers": []}, ("at least one",)),
        ({"mixers": ["mamba"], "num_hidden_layers": 3}, ("num_hidden_layers is 3", "mixers has 1")),
        ({"mixer_options": {"hyena": {"d_conv": 2}}}, ("'hyena'", "no layer uses")),
        ({"num_heads": 3}, ("num_heads 3", "does not divide the width 16")),
        ({"num_heads": 4, "num_kv_heads": 3}, ("num_kv_heads 3",)),
        ({"positions": "rope", "num_heads": 16}, ("even head width",)),
        ({"mixers": ["mamba"], "num_heads": 2}, ("no layer has heads", "mamba")),
        ({"positions": "learnt"}, ("positions is 'learnt'", "'learned'")),
        ({"mlp": "relu"}, ("mlp is 'relu'",)),
        ({"norm": "batchnorm"}, ("norm is 'batchnorm'",)),
        ({"init": "xavier"}, ("init is 'xavier'",)),
        ({"vocab_size": 0}, ("vocab_size is 0",)),
        ({"hidden_size": -4}, ("hidden_size is -4",)),
        ({"max_position_embeddings": 0}, ("max_position_embeddings is 0",)),
        ({"mixers": [{"name": "mamba", "d_conv": -1}]}, ("d_conv is -1",)),
        ({"mixers": [{"name": "delta_net", "d_conv": -1}]}, ("d_conv is -1",)),
        ({"mixers": [{"name": "base_conv", "d_conv": 0}]}, ("d_conv is 0", "long")),
        ({"mixers": [{"name": "base_conv", "d_conv": "short"}]}, ("d_conv is 'short'",)),
        ({"mixers": [{"name": "hyena", "d_conv": -2}]}, ("d_conv is -2",)),
        ({"mixers": [{"name": "hyena", "filter_embedding": 4}]}, ("filter_embedding is 4",)),
        ({"mixers": [{"name": "gated_delta_net", "d_conv": -1}]}, ("d_conv is -1",)),
        ({"mixers": [{"name": "gated_delta_net", "num_heads": 3}]}, ("num_heads 3",)),
        ({"mixers": [{"name": "h3", "d_conv": -1}]}, ("d_conv is -1",)),
        ({"mixers": [{"name": "h3", "head_dim": 3}]}, ("head_dim 3",)),
        ({"mixers": [{"name": "linear_attention", "num_heads": 5}]}, ("num_heads 5",)),
        ({"mixers": [{"name": "h3", "d_state": 5}]}, ("d_state is 5",)),
        ({"mixers": [{"name": "linear_attention", "feature_map": "taylr"}]}, ("'taylor'",)),
        ({"mixers": [{"name": "linear_attention", "feature_dim": 0}]}, ("feature_dim is 0",)),
        ({"hiden_size": 32}, ("no argument 'hiden_size'", "'hidden_size'")),
    ],
)  # fmt: skip
def test_an_impossible_config_is_refused_in_one_line(arguments, words):
    with pytest.raises(UserError) as error:
        config(**arguments)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


def test_layers_differ_by_their_own_entries():
    made = config(
        mixers=["attention", {"name": "mamba", "d_conv": 0, "mlp": "none", "norm": "rmsnorm"}],
        mixer_options={"mamba": {"d_conv": 2, "d_state": 8}},
        num_heads=4,
    )
    first, second = made.layers()
    assert (first.mixer, first.options.num_heads, first.mlp, first.norm) == (
        "attention", 4, "gelu", "layernorm",
    )  # fmt: skip
    assert (second.options.d_conv, second.options.d_state) == (0, 8)
    assert (second.mlp, second.norm) == ("none", "rmsnorm")
    assert made.options_for(1) == second.options
    assert made.num_hidden_layers == 2


def test_the_config_survives_a_round_trip(tmp_path):
    made = config(
        mixers=["attention", {"name": "base_conv", "d_conv": "long"}],
        mixer_options={"attention": {"num_heads": 2}},
        init="pytorch",
        positions="rope",
        pad_token_id=0,
    )
    made.save_pretrained(tmp_path)
    loaded = MixerLMConfig.from_pretrained(tmp_path)
    before, after = made.to_dict(), loaded.to_dict()
    assert before.keys() == after.keys()
    assert {key for key in before if before[key] != after[key]} <= {"_name_or_path"}
    assert loaded.layers() == made.layers()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"mixers": ["attention"], "positions": "learned"}, 1024),
        ({"mixers": ["attention"], "positions": "rope"}, None),
        ({"mixers": ["mamba"]}, None),
        ({"mixers": ["mamba", "hyena"]}, 1024),
        ({"mixers": ["hyena"], "max_position_embeddings": 64}, 64),
        ({"mixers": [{"name": "base_conv", "d_conv": "long"}]}, 1024),
        ({"mixers": ["base_conv"]}, None),
    ],
)
def test_the_length_is_limited_only_where_positions_or_filters_are_learned(arguments, expected):
    assert config(**arguments).max_position_embeddings == expected


def test_a_third_party_mixer_is_used_by_name(monkeypatch):
    from dataclasses import dataclass

    from patchbench.adapters import MIXERS, mixers

    registry = type(MIXERS)("mixer")
    monkeypatch.setattr(mixers, "MIXERS", registry)
    monkeypatch.setattr("patchbench.adapters.config.MIXERS", registry)
    monkeypatch.setattr("patchbench.adapters.presets.MIXERS", registry)

    @dataclass(frozen=True, kw_only=True)
    class LeakyOptions(MixerOptions):
        decay: float = 0.9

    @registry.register("leaky")
    class Leaky(Mixer):
        Options = LeakyOptions

    made = MixerLMConfig.preset("leaky", width=8, layers=3, vocab_size=4, decay=0.5)
    assert [layer.options.decay for layer in made.layers()] == [0.5] * 3
