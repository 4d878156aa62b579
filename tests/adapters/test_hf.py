"""MixerLM as a citizen of transformers: saving, generation, losses, Trainer, compilation."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
)

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, MixerLMModel
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)


def labels_at(ids, places):
    """Return labels (b, t) that are set only where `places` says (row, column)."""
    labels = torch.full_like(ids, -100)
    for row, column in places:
        labels[row, column] = ids[row, column]
    return labels


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


@pytest.mark.parametrize("name", ["mamba", "mamba,attention", "based"])
def test_beam_search_reorders_the_states(name):
    model, ids = lively(name), tokens(batch=2, time=5)
    arguments = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "pad_token_id": 0}
    assert torch.equal(
        model.generate(ids, **arguments), model.generate(ids, use_cache=False, **arguments)
    )


@pytest.mark.parametrize(
    "places",
    [[(0, 11), (1, 11)], [(0, 3), (0, 7), (1, 1)], [(0, 0), (1, 5)]],
    ids=["answers", "ragged", "first token is no target"],
)
@pytest.mark.parametrize("name", ["attention", "mamba"])
def test_the_loss_and_its_gradients_are_those_of_full_logits(name, places):
    model, ids = lively(name), tokens()
    labels = labels_at(ids, places)
    shapes = []
    handle = model.lm_head.register_forward_hook(lambda m, a, out: shapes.append(out.shape))
    out = model(ids, labels=labels)
    handle.remove()
    out.loss.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    targets = sum(column > 0 for _, column in places)
    assert shapes == [(targets, VOCAB)]
    assert out.logits.shape == (targets, VOCAB)

    model.zero_grad()
    logits = model(ids, use_cache=False).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    expected.backward()
    torch.testing.assert_close(out.loss, expected, atol=0, rtol=1e-6)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(grads[key], parameter.grad, atol=1e-6, rtol=1e-5, msg=key)
    # Gradient accumulation: the sum over a given number of items.
    loss = model(ids, labels=labels, num_items_in_batch=torch.tensor(10)).loss
    torch.testing.assert_close(loss, expected * targets / 10, atol=0, rtol=1e-6)


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
def test_gradient_checkpointing_gives_the_same_gradients(name):
    model, ids = lively(name).train(), tokens()
    model(ids, labels=ids).loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.activation_checkpointing_enable()
    calls = []
    model.backbone.layers[0].mixer.register_forward_pre_hook(lambda *_: calls.append(1))
    out = model(ids, labels=ids, use_cache=True)
    assert out.cache is None
    out.loss.backward()
    assert len(calls) == 2  # once forward, once again for backward
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[key], atol=1e-6, rtol=1e-5, msg=key)


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


@pytest.mark.parametrize("name", ["attention", "mamba", "based", "delta_net"])
def test_the_trainer_trains_evaluates_and_resumes(name, tmp_path):
    ids = tokens(batch=64, time=8)
    rows = [
        {"input_ids": row.tolist(), "labels": [-100] * 7 + [int(row[0])]} for row in ids
    ]  # the last position must name the first token
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        num_train_epochs=40,
        learning_rate=1e-2,
        save_steps=20,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_steps=5,
    )

    def accuracy(prediction):
        answers = prediction.label_ids[:, -1]
        return {"accuracy": float((prediction.predictions.argmax(-1) == answers).mean())}

    def trainer():
        return Trainer(
            model=lively(name, width=16), args=arguments, train_dataset=rows, eval_dataset=rows,
            compute_metrics=accuracy,
        )  # fmt: skip

    whole = trainer()
    before = whole.evaluate()
    whole.train()
    after = whole.evaluate()
    assert after["eval_loss"] < 0.5 * before["eval_loss"]
    assert after["eval_accuracy"] > 0.5
    halfway = tmp_path / "checkpoint-60"
    assert json.loads((halfway / "trainer_state.json").read_text())["global_step"] == 60
    loaded = AutoModelForCausalLM.from_pretrained(halfway)
    assert loaded.config.to_dict().keys() == whole.model.config.to_dict().keys()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(halfway))
    assert resumed.state.global_step == whole.state.global_step == 80
    for key, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[key], value), key
    embedding = "backbone.embed.weight"  # of which there was more to learn
    assert not torch.equal(loaded.state_dict()[embedding], whole.model.state_dict()[embedding])


@pytest.mark.slow
@every_preset
def test_a_compiled_model_trains_alike(name):
    ids = tokens(batch=4, time=10)
    labels = labels_at(ids, [(row, 9) for row in range(4)])
    results = []
    for compiled in (False, True):
        model = lively(name).train()
        step = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = step(ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        results.append(losses)
    assert results[1] == pytest.approx(results[0], abs=1e-4)
    assert results[0][2] < results[0][0]


def test_accelerate_prepares_and_clips_the_model():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = lively("mamba").train()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    ids, losses = tokens(), []
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[0]
