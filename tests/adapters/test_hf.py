"""MixerLM as a citizen of transformers: saving, loading, generation, outputs, half precision."""

import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, MixerLMModel
from tests.adapters.lively import EVERY_PRESET, labels_at, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)


@every_preset
def test_a_saved_model_loads_by_the_auto_classes(name, tmp_path):
    model, ids = lively(name), tokens()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "backbone.embed.weight" in names
    assert "lm_head.weight" not in names  # tied: stored once
    assert names == {n for n, _ in model.named_parameters()}
    assert type(AutoConfig.from_pretrained(tmp_path)) is MixerLMConfig
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is MixerLMForCausalLM
    assert loaded.lm_head.weight is loaded.backbone.embed.weight
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
        backbone = AutoModel.from_pretrained(tmp_path)
        assert type(backbone) is MixerLMModel
        assert torch.equal(backbone(ids).last_hidden_state, model.backbone(ids).last_hidden_state)


def test_another_process_loads_it_by_the_auto_classes(tmp_path):
    lively("mamba").save_pretrained(tmp_path)
    use = f"""
from transformers import AutoModelForCausalLM
from patchbench.adapters import register_auto_classes
register_auto_classes()
print(type(AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})).__name__)
"""
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "MixerLMForCausalLM"


def test_an_untied_head_is_stored_and_trained_apart(tmp_path):
    model = lively("attention", tie_word_embeddings=False)
    assert model.lm_head.weight is not model.backbone.embed.weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert not torch.equal(loaded.lm_head.weight, loaded.backbone.embed.weight)


@every_preset
def test_a_weight_missing_from_the_file_is_drawn_and_the_others_are_kept(name, tmp_path):
    model = lively(name)
    state = model.state_dict()
    gone = "backbone.layers.1.mixer.in_proj.weight"
    if gone not in state:
        gone = next(k for k in state if "layers.1.mixer." in k and k.endswith("weight"))
    missing = {key: value for key, value in state.items() if key != gone}
    model.save_pretrained(tmp_path, state_dict=missing)
    loaded, info = MixerLMForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {gone}
    drawn = loaded.get_parameter(gone)
    assert bool(drawn.isfinite().all())
    assert 0 < float(drawn.detach().std()) < 1
    for key in missing:
        assert torch.equal(loaded.state_dict()[key], state[key]), key


@every_preset
def test_generation_is_the_same_with_and_without_a_cache(name):
    model, ids = lively(name), tokens(batch=3, time=6)
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids, **arguments)
    assert cached.shape == (3, 14)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **arguments))
    expected = ids
    with torch.no_grad():
        for _ in range(8):
            best = model(expected, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, best], 1)
    assert torch.equal(cached, expected)


def test_cached_generation_feeds_one_token_at_a_time():
    model, ids, lengths = lively("mamba"), tokens(time=6), []
    model.backbone.embed.register_forward_hook(
        lambda module, args, output: lengths.append(output.shape[1])
    )
    model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert lengths == [6, 1, 1, 1]


def test_strategies_that_take_tokens_back_are_refused():
    """A state cannot be rolled back."""
    with pytest.raises(ValueError, match="not supported with stateful models"):
        lively("mamba").generate(
            tokens(batch=1), max_new_tokens=2, prompt_lookup_num_tokens=2, pad_token_id=0
        )


@pytest.mark.parametrize("name", ["mamba", "mamba,attention", "based"])
def test_beam_search_reorders_the_states(name):
    model, ids = lively(name), tokens(batch=2, time=5)
    arguments = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "pad_token_id": 0}
    assert torch.equal(
        model.generate(ids, **arguments), model.generate(ids, use_cache=False, **arguments)
    )


def test_logits_to_keep_takes_numbers_positions_and_masks():
    model, ids = lively("attention"), tokens(batch=3, time=8)
    labels = labels_at(ids, [(0, 4), (2, 7)])
    mask = torch.zeros(3, 8, dtype=torch.bool)
    mask[0, 2], mask[2, 5] = True, True
    with torch.no_grad():
        full = model(ids, use_cache=False).logits
        for keep, expected in (
            (0, full), (1, full[:, -1:]), (3, full[:, -3:]),
            (torch.tensor([1, 6]), full[:, [1, 6]]),
            (torch.tensor([[0, 1], [2, 3], [4, 5]]),
             torch.stack([full[0, [0, 1]], full[1, [2, 3]], full[2, [4, 5]]])),
            (mask, torch.stack([full[0, 2], full[2, 5]])),
        ):  # fmt: skip
            logits = model(ids, logits_to_keep=keep, use_cache=False).logits
            torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)
        both = model(ids, labels=labels, logits_to_keep=0)
        torch.testing.assert_close(both.logits, full, atol=1e-6, rtol=0)
        assert torch.equal(both.loss, model(ids, labels=labels).loss)


@every_preset
def test_hidden_states_are_the_residual_stream(name):
    model, ids, blocks = lively(name, layers=3), tokens(), []
    for block in model.backbone.layers:
        block.register_forward_hook(lambda m, a, out: blocks.append(out))
    out = model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert torch.equal(out.hidden_states[1], blocks[0])
    assert torch.equal(out.hidden_states[2], blocks[1])
    assert torch.equal(out.hidden_states[3], model.backbone.norm(blocks[2]))
    torch.testing.assert_close(model.lm_head(out.hidden_states[3]), out.logits)
    assert model(ids).hidden_states is None
    loose = model(ids, return_dict=False, use_cache=False)
    assert torch.equal(loose[0], out.logits)


@every_preset
@pytest.mark.parametrize("how", ["to", "load"])
def test_bf16_keeps_the_recurrence_in_fp32(name, how, tmp_path):
    model, ids = lively(name), tokens()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        expected = model(ids).logits
    kept = {
        f"backbone.layers.{layer}.mixer.{key}"
        for layer, block in enumerate(model.backbone.layers)
        for key in block.mixer.float32_parameters
    }
    if "mamba" in name:
        assert any(key.endswith("A_log") for key in kept)
    if how == "to":
        model = model.to(torch.bfloat16)
    else:
        model.save_pretrained(tmp_path)
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for key, value in model.state_dict().items():
        if key in kept:
            assert value.dtype == torch.float32, key
            assert torch.equal(value, before[key]), key  # not rounded on the way
        else:
            assert value.dtype == torch.bfloat16, key
    with torch.no_grad():
        out = model(ids, use_cache=True)
    assert out.logits.dtype == torch.bfloat16
    error = (out.logits.float() - expected).abs().max() / expected.std()
    assert float(error) < 0.15
    for state in out.cache.states:
        for key, tensor in state.items():
            if key == "ssm_state":
                assert tensor.dtype == torch.float32, key
    assert model.to(torch.float32).dtype == torch.float32
