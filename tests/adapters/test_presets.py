"""The named architectures: sizes, patterns, hybrids, options."""

import pytest

from patchbench.adapters import MIXERS, PRESETS, MixerLMConfig, MixerLMForCausalLM
from patchbench.common import UserError
from tests.adapters.lively import EVERY_PRESET


def preset(name, **options):
    return MixerLMConfig.preset(name, **{"width": 16, "vocab_size": 26, **options})


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # Embedding + positions + final norm; per layer two norms, q k v o with the bias of o, MLP.
        ("attention", {"width": 256, "layers": 2, "vocab_size": 26}, 1_847_296),
        # One gated convolution (taps, biases, W), one linear attention without biases.
        ("based", {"width": 128, "layers": 2, "vocab_size": 26}, 319_872),
        ("mamba", {"width": 256, "layers": 2, "vocab_size": 8196}, 2_974_720),
        ("mamba", {"width": 256, "layers": 1, "vocab_size": 26}, 445_184),
        ("mamba", {"width": 128, "layers": 2, "vocab_size": 26}, 236_800),
    ],
    ids=lambda value: str(value) if not isinstance(value, dict) else str(value["width"]),
)
def test_parameter_counts_are_the_papers(name, options, expected):
    assert MixerLMForCausalLM(preset(name, **options)).num_parameters() == expected


BLOCK = ("gelu", "layernorm")
BARE = ("none", "rmsnorm")


@pytest.mark.parametrize(
    ("name", "mixers", "block", "settings"),
    [
        ("attention", ["attention"], BLOCK, {"num_heads": 1}),
        ("based", ["base_conv", "linear_attention"], BLOCK,
         {"d_conv": 3, "num_heads": 1, "feature_map": "taylor", "feature_dim": 8}),
        ("based_long", ["base_conv", "linear_attention"], BLOCK, {"d_conv": "long"}),
        ("base_conv", ["base_conv", "base_conv"], BLOCK, {}),
        ("hyena", ["hyena"], BLOCK, {"d_conv": 3, "filter_width": 64, "filter_embedding": 3}),
        ("h3", ["h3"], BLOCK, {"head_dim": 2}),
        ("mamba", ["mamba"], BARE, {"d_conv": 4, "d_state": 16, "expand": 2, "dt_rank": None}),
        ("mamba_noconv", ["mamba"], BARE, {"d_conv": 0}),
        ("mamba2", ["mamba2"], BARE, {"d_conv": 4}),
        ("delta_net", ["delta_net"], BLOCK, {"d_conv": 4, "num_heads": 1}),
        ("delta_net_noconv", ["delta_net"], BLOCK, {"d_conv": 0}),
        ("gated_delta_net", ["gated_delta_net"], BLOCK, {"d_conv": 4}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_presets_settings_are_the_papers(name, mixers, block, settings):
    made = preset(name)
    assert [layer.mixer for layer in made.layers()] == (2 * mixers)[:2]
    assert {(layer.mlp, layer.norm) for layer in made.layers()} == {block}
    for key, value in settings.items():
        found = [vars(layer.options)[key] for layer in made.layers() if key in vars(layer.options)]
        assert set(found) == {value}, key
    assert made.positions == ("learned" if name == "attention" else "none")
    assert (made.final_norm, made.norm_eps, made.tie_word_embeddings) == ("layernorm", 1e-5, True)
    assert (made.init, made.initializer_range) == ("normal", 0.02)


def test_what_is_tested_of_every_preset_is_tested_of_every_mixer():
    assert {*PRESETS, *MIXERS, "mamba,attention"} == set(EVERY_PRESET)


def test_a_preset_repeats_its_pattern():
    assert [entry["d_conv"] for entry in preset("base_conv", layers=5).mixers] == [
        3, "long", 3, "long", 3,
    ]  # fmt: skip
    assert [layer.mixer for layer in preset("based", layers=4).layers()] == [
        "base_conv", "linear_attention", "base_conv", "linear_attention",
    ]  # fmt: skip


def test_a_hybrid_alternates_and_keeps_each_parts_block():
    made = preset("mamba_noconv, attention", layers=4, num_heads=2, d_state=4)
    assert [layer.mixer for layer in made.layers()] == ["mamba", "attention"] * 2
    assert [layer.mlp for layer in made.layers()] == ["none", "gelu"] * 2
    assert made.positions == "learned"
    assert made.layers()[0].options.d_conv == 0
    assert made.layers()[0].options.d_state == 4
    assert made.layers()[1].options.num_heads == 2
    assert preset("attention,mamba,hyena").num_hidden_layers == 3


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("base_conv", (1, 2, 3, 4, "long")),
        ("based", (1, 2, 3, 4, "long")),
        ("hyena", (0, 1, 2, 3, 4)),
        ("h3", (0, 1, 4)),
        ("mamba", (0, 1, 2, 3, 4)),
        ("mamba2", (0, 1, 2, 3, 4)),
        ("delta_net", (0, 1, 2, 3, 4)),
        ("gated_delta_net", (0, 1, 2, 3, 4)),
    ],
)
def test_every_convolution_width_is_a_parameter(name, widths):
    counts = {}
    for width in widths:
        made = preset(name, d_conv=width)
        assert all(
            layer.options.d_conv == width
            for layer in made.layers()
            if hasattr(layer.options, "d_conv")
        )
        counts[width] = MixerLMForCausalLM(made).num_parameters()
    assert len(set(counts.values())) == len(widths)  # each width has its own number of taps


def test_options_reach_the_config_or_are_refused():
    made = preset("mamba", mlp="gelu", init="pytorch", max_position_embeddings=32)
    assert (made.init, made.max_position_embeddings) == ("pytorch", 32)
    assert [layer.mlp for layer in made.layers()] == ["gelu"] * 2
    with pytest.raises(UserError, match=r"no option 'd_conf'.*'d_conv'"):
        preset("mamba", d_conf=2)
    with pytest.raises(UserError, match="no option 'hidden_size'"):
        preset("mamba", hidden_size=2)
    with pytest.raises(UserError, match=r"unknown preset 'mambaa'.*'mamba'"):
        preset("mambaa")
    with pytest.raises(UserError, match="layers is 0"):
        preset("mamba", layers=0)
    with pytest.raises(UserError, match="no layer has heads"):
        preset("mamba", num_heads=2)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_builds_with_finite_weights(name):
    model = MixerLMForCausalLM(preset(name, layers=4))
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert MixerLMConfig.preset(name, vocab_size=26).hidden_size == 64
