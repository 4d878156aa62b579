"""Any settings are taken or refused in one line: of evaluations, trainings, tasks and models."""

import json
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import patchbench as pb
from patchbench.adapters import MIXERS, PRESETS, MixerLMConfig, MixerLMForCausalLM
from patchbench.evaluation_config import METHODS, TEMPLATE_NAMES, EvaluateConfig
from patchbench.recipes.config import RunConfig
from patchbench.tasks import TASKS, list_tasks
from patchbench.training import ModelSpec, TrainConfig
from tests.fuzz.cases import JSON, TEXTS, either, fuzzed, some_of, told

INTEGERS, NUMBERS = st.integers(1, 40), st.floats(0, 1)
BOOLS = st.booleans()
POSITIONS = ["key", "value", "value+1", "query-1", "answer-1", "all"]
EVALUATION = {
    "n": INTEGERS, "batch_size": INTEGERS, "shots": INTEGERS, "seed": INTEGERS,
    "resamples": st.integers(90, 200), "prefilter": INTEGERS, "ig_steps": INTEGERS,
    "split": ["train", "dev", "test"], "corruptions": st.lists(either(["key", "value", "swap"])),
    "directions": st.lists(either(["denoise", "noise"])), "engine": ["native", "pyvene", "nnsight"],
    "components": st.lists(either(["block_input", "q"])), "layers": st.lists(either(INTEGERS)),
    "positions": st.lists(either(POSITIONS)), "template": TEMPLATE_NAMES, "method": METHODS,
    "sites": st.lists(either(["L*.block_input@value+0..2", "A & B", "L0.q@key & L1.q@key"])),
    "held_out": BOOLS, "untrained_twin": BOOLS, "selfcheck": BOOLS,
}  # fmt: skip
TRAINING = {
    "steps": INTEGERS, "epochs": NUMBERS, "batch_size": INTEGERS, "warmup": NUMBERS,
    "lr": st.one_of(NUMBERS, st.just("auto")), "lr_grid": st.lists(either(NUMBERS)),
    "schedule": ["constant", "linear", "cosine"], "data": ["fixed", "fresh"],
    "train_n": st.integers(0, 10**6), "dev_n": INTEGERS, "test_n": INTEGERS, "stop_at": NUMBERS,
    "curriculum": st.lists(either(["num_pairs=2:5", "num_pairs=2:x", "a=b:3", "num_pairs:3"])),
    "log_every": INTEGERS, "checkpoint_every": INTEGERS, "dynamics_every": INTEGERS,
    "dynamics_n": INTEGERS, "dynamics_components": st.lists(either(["block_input", "q"])),
    "clip": NUMBERS, "weight_decay": NUMBERS, "precision": ["float32", "bfloat16"],
    "template": TEMPLATE_NAMES, "lora": INTEGERS, "patch_layers": st.lists(either(INTEGERS)),
    "seed": INTEGERS,
}  # fmt: skip
MIXER = {
    **{name: st.integers(1, 8) for name in ("d_conv", "d_state", "expand", "heads", "order")},
    "name": sorted(MIXERS), "mlp": ["gelu", "none"], "norm": ["layernorm", "rmsnorm"],
}  # fmt: skip
OPTIONS = {f.name for kind in MIXERS for f in fields(MIXERS[kind].Options)}
MIXER |= {name: st.one_of(st.integers(1, 8), BOOLS) for name in OPTIONS}
MIXER_NAMES = either(sorted(MIXERS), wrong=TEXTS)
TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), INTEGERS)
MODEL = {
    "vocab_size": st.integers(1, 40), "hidden_size": st.integers(1, 32),
    "num_hidden_layers": st.integers(1, 3), "mlp": ["gelu", "none"],
    "mixers": st.lists(st.one_of(either(sorted(MIXERS)), some_of(MIXER)), max_size=3),
    "mixer_options": st.dictionaries(MIXER_NAMES, some_of(MIXER), max_size=2),
    "norm": ["layernorm", "rmsnorm"], "final_norm": ["layernorm", "rmsnorm"], "norm_eps": NUMBERS,
    "positions": ["none", "learned", "rope"], "max_position_embeddings": st.integers(0, 40),
    "rope_theta": NUMBERS, "num_heads": st.integers(1, 4), "num_kv_heads": st.integers(1, 4),
    "init": ["normal", "pytorch"], "initializer_range": NUMBERS, "tie_word_embeddings": BOOLS,
    "use_cache": BOOLS, **TOKENS,
}  # fmt: skip
SPEC = {
    "arch": [*PRESETS, "mamba,attention", "mamba,"], "width": st.integers(0, 32),
    "layers": st.integers(0, 3), "heads": st.integers(1, 4), "init": ["normal", "pytorch"],
    "options": some_of({**MIXER, **MODEL}), "init_from": TEXTS, "tokenizer": TEXTS,
}  # fmt: skip


@fuzzed(200)
@given(some_of(EVALUATION))
def test_settings_of_an_evaluation(settings):
    config = told(EvaluateConfig.of, settings)
    if config is not None:
        assert EvaluateConfig(**vars(config)) == config


@fuzzed(200)
@given(some_of(TRAINING, steps=100))
def test_settings_of_a_training(settings):
    config = told(TrainConfig.of, settings)
    if config is not None:
        assert config.total_steps >= 1
        assert sum(steps for _, steps in config.stages) == config.total_steps
        assert config.warmup_steps >= 0
        assert config.log_distance >= 1
        assert all(rate > 0 for rate in config.rates)
        json.dumps(vars(config), allow_nan=False)


@fuzzed(100, share=0.5)
@given(some_of(MODEL))
def test_what_a_config_allows_can_be_built_and_run(settings):
    config = told(lambda: MixerLMConfig(**settings))
    if config is None or config.vocab_size > 64 or config.hidden_size > 64:
        return
    if max(config.num_hidden_layers, *map(_largest, config.layers())) > 64:
        return
    model = MixerLMForCausalLM(config).eval()
    with torch.no_grad():
        logits = told(model, torch.zeros(1, 3, dtype=torch.long))
    if logits is not None:
        assert logits.logits.shape == (1, 3, config.vocab_size)


def _largest(layer: Any) -> int:
    return max((v for v in vars(layer.options).values() if isinstance(v, int)), default=0)


@fuzzed(100, share=0.5)
@given(some_of(SPEC, unknown=False, arch="mamba"))
def test_a_model_to_train(arguments):
    task = pb.load_task("ar/tiny")
    spec = told(lambda: ModelSpec(**arguments))
    if spec is not None and spec.init_from is None:
        sizes = [v for v in {**arguments, **spec.options}.values() if isinstance(v, int | float)]
        if all(abs(size) <= 64 for size in sizes):
            told(spec.build, task, seed=0)


FIELDS = {name: sorted({f.name for f in fields(TASKS[name].Config)}) for name in TASKS}


@pytest.mark.parametrize("family", sorted(FIELDS))
@fuzzed(40, share=0.2)
@given(data=st.data())
def test_settings_of_a_task(family, data):
    """What is accepted and small gives documents, or is refused when they are drawn."""
    small = st.one_of(st.integers(1, 12), BOOLS, NUMBERS)
    names = [info.name for info in list_tasks() if info.name.partition("/")[0] == family]
    name = data.draw(either(names, wrong=TEXTS))
    settings = data.draw(some_of(dict.fromkeys(FIELDS[family], small)))
    task = told(lambda: pb.load_task(name, seed=data.draw(either(INTEGERS)), **settings))
    if task is not None and task.max_length <= 4096 and task.vocab_size <= 20_000:
        rows = told(task.dataset, "dev", 2)
        assert rows is None or len(rows) == 2


RUN = {
    "name": ["a", "a-s0"], "group": ["a"], "model": some_of(SPEC), "task": ["ar", "atr/easy"],
    "overrides": some_of({"num_pairs": INTEGERS}), "task_seed": INTEGERS,
    "training": some_of(TRAINING, steps=100), "evaluation": some_of(EVALUATION),
    "estimate": NUMBERS,
}  # fmt: skip


@fuzzed(100)
@given(st.one_of(some_of(RUN, unknown=False).map(json.dumps), JSON.map(json.dumps), st.text()))
def test_a_run_of_a_sweep(tmp_path_factory, text):
    from patchbench.sweeping.folder import read_sweep

    folder = tmp_path_factory.mktemp("sweep")
    whole = f'{{"schema": "patchbench/sweep", "version": 1, "runs": {{"a": {text}}}}}'
    for content in (whole, text):
        (folder / "sweep.json").write_text(content, encoding="utf-8", errors="surrogatepass")
        swept = told(read_sweep, folder)
        if swept is not None:
            assert all(isinstance(run, RunConfig) for run in swept.runs.values())
