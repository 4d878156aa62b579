"""MixerLM in training: losses, gradients, Trainer, autocast, compilation, accelerate."""

import json

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from patchbench.adapters.hook_points import Hook
from tests.adapters.lively import EVERY_PRESET, VOCAB, labels_at, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)


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


@every_preset
def test_autocast_changes_the_loss_by_its_rounding_alone(name):
    """What Trainer does with `bf16=True`: fp32 weights, half precision around the recurrences."""
    model, ids = lively(name).train(), tokens()
    grads, losses = [], []
    for half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = model(ids, labels=ids).loss
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert 0 < abs(losses[1] - losses[0]) < 0.01 * losses[0]
    assert float((grads[1] - grads[0]).norm() / grads[0].norm()) < 0.05


@every_preset
def test_looking_inside_changes_nothing_under_autocast(name):
    """The step-by-step form that a hook asks for computes outside of autocast, as the fast ones."""
    model, ids = lively(name).eval(), tokens()
    hooks = [module for module in model.modules() if isinstance(module, Hook)]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(ids, use_cache=False).logits
        handles = [hook.register_forward_hook(lambda *_: None) for hook in hooks]
        watched = model(ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    # Half precision around both; what differs in the last bit of fp32 may round the other way.
    scale = plain.abs().max()
    assert float((watched - plain).abs().max() / scale) < 0.006
