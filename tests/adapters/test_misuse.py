"""What a MixerLM says when it is used wrongly: one line, never a silently wrong number."""

import copy
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.common import UserError
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)


def layer(name, **options):
    return {"mixers": [{"name": name, **options}]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size is '64': give a whole number"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"hidden_size": 10**30}, "of at most 64 bits"),
        ({"num_hidden_layers": 10**30}, "of at most 64 bits"),
        (layer("mamba", d_state=10**30), "d_state is 10"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
        ({"num_heads": "2"}, "num_heads is '2'"),
        ({"num_heads": 1.0}, "num_heads is 1.0"),
        ({"norm_eps": -1.0}, "norm_eps is -1.0"),
        ({"norm_eps": float("nan")}, "norm_eps is nan: give a finite number"),
        ({"initializer_range": "a"}, "initializer_range is 'a'"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes': give true or false"),
        ({"dtype": "banana"}, "dtype is 'banana': known: bfloat16, float16"),
        ({"dtype": "bfloat"}, "dtype is 'bfloat': did you mean 'bfloat16'"),
        ({"torch_dtype": 3}, "dtype is 3"),
        ({"dtype": torch.int64}, "dtype is torch.int64"),
        ({"eos_token_id": VOCAB}, f"eos_token_id is {VOCAB}: give a token from 0 to {VOCAB - 1}"),
        ({"eos_token_id": [1, -1]}, r"eos_token_id is \[1, -1\]"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [None]}, "eos_token_id is"),
        ({"bos_token_id": True}, "bos_token_id is True"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        ({"mixers": "mamba"}, "mixers is 'mamba': give a list"),
        ({"mixers": ["mamba", None]}, "layer 1 names no mixer: None"),
        ({"mixers": [{"name": 3}]}, "layer 0 names no mixer"),
        ({"mixer_options": {"attention": 3}}, "mixer_options is"),
        (layer("h3", d_state="4"), "layer 0: h3: d_state is '4': give a whole number"),
        (layer("h3", d_conv=2.5), "d_conv is 2.5"),
        (layer("hyena", d_conv="3"), "d_conv is '3'"),
        (layer("hyena", sine_frequency=float("inf")), "sine_frequency is inf"),
        (layer("base_conv", d_conv=True), "d_conv is True"),
        (layer("linear_attention", normalize="no"), "normalize is 'no': give true or false"),
        (layer("linear_attention", feature_map=3), "feature_map is 3: give a name"),
        (layer("delta_net", num_heads=True), "num_heads is True"),
        (layer("mamba2", head_dim=7), "head_dim 7 does not divide the inner width 32"),
        (layer("mamba2", num_groups=3), "num_groups 3 does not divide"),
    ],
)
def test_a_setting_of_the_wrong_type_or_size_is_named(arguments, message):
    with pytest.raises(UserError, match=message) as error:
        MixerLMConfig(**{"vocab_size": VOCAB, "hidden_size": 16, **arguments})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [("mamba", {"layers": "2"}, "layers is '2'"), (3, {}, "preset is 3"), ("", {}, "unknown")],
)
def test_an_impossible_preset_is_named(name, options, message):
    with pytest.raises(UserError, match=message):
        MixerLMConfig.preset(name, vocab_size=VOCAB, **options)


def test_a_config_file_with_an_unknown_field_is_refused(tmp_path):
    lively("mamba").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hiden_size": 32}))
    with pytest.raises(UserError, match=r"no argument 'hiden_size'.*'hidden_size'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_weights_of_no_module_are_reported(tmp_path):
    model = lively("mamba")
    state = model.state_dict() | {"backbone.extra.weight": torch.zeros(2)}
    model.save_pretrained(tmp_path, state_dict=state)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == {"backbone.extra.weight"}
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


@every_preset
def test_one_token_is_enough_and_none_is_refused(name):
    model, ids = lively(name), tokens(batch=2, time=5)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        one = model(ids[:1, :1]).logits
        torch.testing.assert_close(one, whole[:1, :1], atol=1e-5, rtol=0)
    for empty in (ids[:0], ids[:, :0]):
        with pytest.raises(UserError, match="no tokens"):
            model(empty)
    with pytest.raises(UserError, match=r"shape \(5,\)"):
        model(ids[0])


@pytest.mark.parametrize("bad", [VOCAB, -1])
def test_a_token_out_of_the_vocabulary_is_named(bad):
    ids = tokens()
    ids[0, 3] = bad
    with pytest.raises(UserError, match="the vocabulary has 26: give ids from 0 to 25"):
        lively("mamba")(ids)


@every_preset
def test_a_cache_of_other_rows_is_refused(name):
    model, ids = lively(name), tokens(batch=3, time=6)
    cache = model(ids[:1, :5], use_cache=True).cache
    with pytest.raises(UserError, match="the cache has 1 rows, the input 3"):
        model(ids[:, 5:], cache=cache)


def test_a_cache_of_another_model_is_refused():
    ids = tokens()
    cache = lively("mamba", layers=3)(ids).cache
    with pytest.raises(UserError, match="the cache has 3 layers, the model 2"):
        lively("mamba")(ids, cache=cache)
    with pytest.raises(UserError, match="the cache is a DynamicCache"):
        lively("attention")(ids, cache=DynamicCache())
    with pytest.raises(UserError, match="pass cache="):
        lively("attention")(ids, past_key_values=cache)


def test_a_failed_call_leaves_the_cache_as_it_was():
    model, ids = lively("mamba,attention"), tokens(time=8)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        cache = model(ids[:, :5], use_cache=True).cache

        def fail(*_):
            raise RuntimeError("stop")

        handle = model.backbone.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="stop"):
            model(ids[:, 5:], cache=cache)
        handle.remove()
        rest = model(ids[:, 5:], cache=cache).logits
    torch.testing.assert_close(rest, whole[:, 5:], atol=2e-5, rtol=0)


def test_gradient_checkpointing_refuses_to_continue():
    model, ids = lively("mamba"), tokens()
    cache = model(ids, use_cache=True).cache
    model.train().activation_checkpointing_enable()
    with pytest.raises(UserError, match="cannot continue from a cache"):
        model(ids, cache=cache)


def test_padding_never_enters_a_cache():
    model, ids = lively("mamba"), tokens(batch=2, time=8)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    assert model(ids, attention_mask=mask).cache is None
    assert model(ids, attention_mask=torch.ones_like(ids)).cache is not None
    with pytest.raises(UserError, match="padding would enter"):
        model(ids, attention_mask=mask, use_cache=True)
    for padded in (mask, mask.flip(1)):
        with pytest.raises(UserError, match="padding"):
            model.generate(ids, attention_mask=padded, max_new_tokens=1, pad_token_id=0)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [("logits_to_keeep", "'logits_to_keep'"), ("output_attentions", "attn_weights")],
)
def test_an_argument_without_effect_is_refused(keyword, message):
    with pytest.raises(UserError, match=message):
        lively("attention")(tokens(), **{keyword: True})


def test_labels_of_another_shape_are_refused():
    with pytest.raises(UserError, match="labels have shape"):
        lively("attention")(tokens(time=8), labels=tokens(time=7))


@every_preset
def test_a_hook_that_returns_another_shape_is_refused_at_every_point(name):
    model, ids = lively(name), tokens(time=6)
    wrongs = (lambda x: x[:, :1], lambda x: x[:1], lambda x: x[..., :1], lambda x: (x,))
    for component, hook in model.backbone.layers[0].mixer.hook_points.items():
        for number, wrong in enumerate(wrongs):
            changed = []

            def spoil(module, args, out, wrong=wrong, changed=changed):
                changed.append(getattr(wrong(out), "shape", None) != out.shape)
                return wrong(out)

            handle = hook.register_forward_hook(spoil)
            try:  # all of these would broadcast, at least at some hook point
                model(ids, use_cache=False)
                said = ""
            except UserError as error:
                said = str(error)
            handle.remove()
            assert (f"a hook on '{component}' returned" in said) is changed[0], (
                component,
                number,
            )  # one feature stays one feature


@every_preset
def test_hooks_work_in_bf16(name):
    model, ids = lively(name).to(torch.bfloat16), tokens(batch=2, time=6)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        for component, hook in model.backbone.layers[0].mixer.hook_points.items():
            for patch in (lambda out: out.clone(), lambda out: 3 * out + 0.5):
                handle = hook.register_forward_hook(lambda m, a, out, patch=patch: patch(out))
                logits = model(ids, use_cache=False).logits
                handle.remove()
                assert logits.dtype == torch.bfloat16
                assert bool(logits.isfinite().all())
                change = float((logits - expected).abs().max()) / float(expected.float().std())
                if patch(torch.ones(())) == 1:
                    assert change < 0.1, component  # rounding of the path that shows the states
                else:
                    assert change > 1e-3, component


def test_half_runs_and_keeps_the_recurrence_in_fp32():
    model, ids = lively("mamba"), tokens()
    expected = model(ids).logits
    half = copy.deepcopy(model).half()
    assert half.backbone.layers[0].mixer.A_log.dtype == torch.float32
    logits = half(ids).logits
    assert logits.dtype == torch.float16
    assert float((logits.float() - expected).abs().max() / expected.std()) < 0.02


@every_preset
def test_copies_and_state_dicts_keep_the_tie(name, tmp_path):
    model, ids = lively(name), tokens()
    fresh = MixerLMForCausalLM(model.config).eval()
    fresh.load_state_dict(copy.deepcopy(model.state_dict()))
    for other in (copy.deepcopy(model), fresh):
        assert other.lm_head.weight is other.backbone.embed.weight
        assert torch.equal(other(ids).logits, model(ids).logits)
    model.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} <= {".json", ".safetensors"}


@pytest.mark.parametrize(
    ("embeds", "message"),
    [
        (torch.zeros(2, 5, 17), "inputs_embeds have 17 features: the model has a width of 16"),
        (torch.zeros(2, 5, 16, dtype=torch.bfloat16), "inputs_embeds are torch.bfloat16: .*32"),
        (torch.zeros(2, 5, 16, dtype=torch.long), "inputs_embeds are torch.int64"),
        ([[1.0]], "inputs_embeds are list"),
        (torch.zeros(2, 16), r"the input has shape \(2, 16\)"),
    ],
    ids=["width", "dtype", "integers", "list", "flat"],
)
def test_embeddings_that_do_not_fit_are_refused(embeds, message):
    with pytest.raises(UserError, match=message):
        lively("mamba")(inputs_embeds=embeds)


def test_embeddings_of_another_precision_are_cast_where_autocast_does_it():
    model, ids = lively("mamba"), tokens()
    embeds = model.backbone.embed(ids).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.isfinite(model(inputs_embeds=embeds).logits).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_cache": "no"}, "use_cache is 'no': give true or false"),
        ({"use_cache": 0}, "use_cache is 0"),
        ({"cache_position": torch.arange(12)}, "no argument 'cache_position': leave it out"),
        ({"num_items_in_batch": 0}, "num_items_in_batch is 0: give the number of labels"),
        ({"num_items_in_batch": -2}, "num_items_in_batch is -2"),
        ({"num_items_in_batch": torch.tensor(0)}, "num_items_in_batch is tensor"),
        ({"num_items_in_batch": float("nan")}, "num_items_in_batch is nan"),
        ({"num_items_in_batch": "many"}, "num_items_in_batch is 'many'"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    ids = tokens()
    with pytest.raises(UserError, match=message):
        lively("mamba")(ids, labels=ids, **arguments)
    lively("mamba")(ids, labels=ids, num_items_in_batch=torch.tensor(3))
