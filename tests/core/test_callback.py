"""The callback: what is measured, what is logged, and that the training does not notice."""

import random

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import patchbench as pb
from patchbench.adapters.twins import twins_of
from patchbench.callback import PREFIX
from patchbench.tracking_content import scalars
from tests.tiny_models import tiny

TASK = {"num_pairs": 3, "num_keys": 8, "num_values": 8}
STEPS, EVERY = 6, 2
# With dropout, and with mixers that twins take the place of.
MODELS = {
    "gpt2": {"resid_pdrop": 0.2, "attn_pdrop": 0.2, "embd_pdrop": 0.2},
    "mamba": {},
}


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


def callback(task, **settings):
    return pb.MechanisticCallback(
        task,
        **{"every": EVERY, "n": 8, "layers": [0, 1], "positions": ["key", "value"], **settings},
    )


class Listener(TrainerCallback):
    """A logger as the Trainer's own: it stands before the user's callbacks."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs, **kwargs):
        self.seen.append((state.global_step, dict(logs)))


def trained(name, task, folder, *callbacks):
    """Return the weights, the logs and the random states that a training ends with."""
    model = tiny(name, layers=2, width=16, vocab=task.vocab_size, **MODELS[name])
    if name == "gpt2":
        assert model.config.resid_pdrop == 0.2
    rows = task.dataset("train", 64).select_columns(["input_ids", "labels"]).with_format("torch")
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4, report_to=[],
        logging_steps=1, save_strategy="no", disable_tqdm=True, use_cpu=True, seed=3,
        learning_rate=1e-2,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002 - looked at
    return model, trainer.state.log_history, states


@pytest.mark.parametrize("name", MODELS)
def test_a_training_ends_bit_equal_with_and_without(name, task, tmp_path):
    plain, plain_log, plain_states = trained(name, task, tmp_path / "plain")
    listener, watch = Listener(), callback(task)
    model, log, states = trained(name, task, tmp_path / "watched", listener, watch)
    for (key, weight), other in zip(
        plain.state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(weight, other), key
    assert states[:2] == plain_states[:2]
    assert torch.equal(states[2], plain_states[2])
    losses = [[line["loss"] for line in history if "loss" in line] for history in (plain_log, log)]
    assert losses[0] == losses[1]
    assert [type(m) for m in plain.modules()] == [type(m) for m in model.modules()]
    assert not twins_of(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

    assert list(watch.results) == [2, 4, 6]
    measured = {step: logs for step, logs in listener.seen if f"{PREFIX}accuracy" in logs}
    assert list(measured) == [2, 4, 6]
    for step, logs in measured.items():
        expected = {PREFIX + k: v for k, v in scalars(watch.results[step]).items()}
        assert expected.items() <= logs.items()
        assert logs[f"{PREFIX}verdict"] == watch.results[step].verdict.label


def test_the_numbers_are_those_of_an_evaluation(task, tmp_path):
    watch = callback(task, every=STEPS)
    model, *_ = trained("gpt2", task, tmp_path, watch)
    alone = pb.evaluate(
        model, task, n=8, split="dev", resamples=500, layers=[0, 1], positions=["key", "value"]
    )
    assert watch.results[STEPS].rows.equals(alone.rows)
    assert watch.results[STEPS].summary == alone.summary


@pytest.mark.parametrize("method", ["exact", "attribution"])
def test_a_loop_of_one_s_own_gets_everything_back(method, task):
    model = tiny("mamba", layers=2, width=16, vocab=task.vocab_size)
    model.train()
    model.backbone.layers[0].eval()
    frozen = model.backbone.embeddings.weight.requires_grad_(False)
    ids = torch.tensor(task.dataset("train", 4)["input_ids"][:])
    model(ids, labels=ids).loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    copies = {n: g.clone() for n, g in gradients.items() if g is not None}
    modes = [m.training for m in model.modules()]
    drawn = []
    for watched in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002 - the global state is kept
        watch = callback(task, method=method)
        assert watch(model, 1) == {}
        found = watch(model, 2) if watched else {}
        assert bool(found) == watched
        drawn.append((random.random(), np.random.rand(), torch.rand(3).tolist()))  # noqa: NPY002 - as above
    assert drawn[0] == drawn[1]
    assert 0 <= found["mechanism/accuracy"] <= 1
    assert isinstance(found["mechanism/verdict"], str)
    assert [m.training for m in model.modules()] == modes
    assert not frozen.requires_grad
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name]
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, copies[name])


def test_the_cost_is_bounded(task, monkeypatch):
    model = tiny("gpt2", layers=2, width=16, vocab=task.vocab_size)
    watch = callback(task, max_seconds=500)
    clock = iter(range(0, 10_000, 300))  # every look at the clock costs 300 seconds
    monkeypatch.setattr("patchbench.callback.time.monotonic", lambda: next(clock))
    assert watch(model, 2)
    assert watch.spent == 300
    with pytest.warns(UserWarning, match="300.0 of 500 seconds are spent: .* from step 4 on"):
        assert watch(model, 4) == {}
    assert watch(model, 6) == {}
    assert list(watch.results) == [2]


def test_a_measurement_under_way_is_given_up_in_time(task):
    model = tiny("gpt2", layers=2, width=16, vocab=task.vocab_size)
    watch = callback(task, max_seconds=1e-9, batch_size=1, n=8)
    with pytest.warns(UserWarning, match="nothing is measured from step 2 on"):
        assert watch(model, 2) == {}
    assert watch.results == {}
    assert model.training is False


def test_a_diverged_model_is_no_reason_to_end_a_training(task):
    model = tiny("gpt2", layers=2, width=16, vocab=task.vocab_size)
    watch = callback(task)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="nothing is measured at step 2: .*NaN"):
        assert watch(model, 2) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every=0: an integer of at least 1"),
        ({"every": 2.5}, "every=2.5"),
        ({"max_seconds": 0}, "max_seconds=0: a number above 0"),
        ({"n": 0}, "n=0"),
        ({"layer": 3}, "unknown setting 'layer' of evaluate: did you mean 'layers'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be(settings, message, task):
    with pytest.raises(pb.UserError, match=message):
        callback(task, **settings)


def test_what_the_model_lacks_is_told_before_the_first_step(task, tmp_path):
    with pytest.raises(pb.UserError, match="no component 'ssm_state'"):
        trained("gpt2", task, tmp_path, callback(task, components=["ssm_state"]))


def test_a_callback_of_no_trainer_cannot_log(task):
    with pytest.raises(pb.UserError, match="pass it in Trainer's callbacks"):
        callback(task).on_train_begin(None, None, None)
