"""What every engine must do alike: right at every place and in every shape, and gone afterwards.

The truth are hooks written by hand, one document at a time (see `tests.core.batches`).
"""

import gc
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench.common import UserError
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively
from tests.core.batches import PATHS, patched_logits, places_of, random_batch, unrelated
from tests.tiny_models import tiny

NAMES = ("pyvene", "nnsight", "native")
POSITIONS = ("key", "value", "value+1", "query")
WIDTH = 16


@pytest.fixture(params=NAMES)
def engine(request):
    return ENGINES[request.param]()


def model_of(name: str):
    if name in PATHS:
        return tiny(name, vocab=VOCAB)
    return lively(name, width=WIDTH, **({"num_heads": 2} if name == "attention" else {}))


def plan(sites, **settings) -> list[Intervention]:
    return [Intervention(sites=(Site.parse(site),), corruption="key", **settings) for site in sites]


def by_hand(model, batch, sites, *, direction: str = "denoise") -> dict[tuple[str, int], float]:
    """The patched logit of the answer, by site and example."""
    places, found = places_of(model), {}
    for site in sites:
        place, _, position = site.partition("@")
        role, _, offset = position.partition("+")
        for number in range(len(batch)):
            base, source = batch.corrupted["key"][number], batch.clean[number]
            if direction == "noise":
                base, source = source, base
            at = int(batch.positions[role][number]) + int(offset or 0)
            logits = patched_logits(model, *places[place], base, source, at)
            read = logits[batch.read_out[number], batch.answer[number]]
            found[site, int(batch.index[number])] = float(read)
    return found


def patched(rows, column: str = "logit_patched") -> dict[tuple[str, int], float]:
    return {(row["site"], row["example"]): row[column] for row in rows.to_pylist()}


@cache
def a_model_and_its_truth(name: str):
    model = model_of(name)
    batch = unrelated(random_batch(size=3, vocab=VOCAB), VOCAB)
    sites = [f"{place}@{POSITIONS[i % 4]}" for i, place in enumerate(places_of(model))]
    return pb.load_model(model), batch, by_hand(model, batch, sites)


@pytest.mark.parametrize("name", [*EVERY_PRESET, *PATHS])
def test_every_place_equals_hooks_by_hand(name, engine):
    loaded, batch, truth = a_model_and_its_truth(name)
    sites = list(dict.fromkeys(site for site, _ in truth))
    rows = engine.run(loaded, plan(sites), batch)
    assert patched(rows) == pytest.approx(truth, abs=2e-5, rel=1e-5)
    effects = np.abs(rows["logit_patched"].to_numpy() - rows["logit_base"].to_numpy())
    assert effects.mean() > 1e-3
    inner = {component for _, component in loaded.hook_map.points} - {"head_output", "q", "k", "v"}
    if name not in PATHS:
        assert inner <= {site.split("@")[0].split(".")[-1] for site in sites}


SHAPES = [
    pytest.param(10, 10, id="B = T"),
    pytest.param(WIDTH, 9, id="B = d"),
    pytest.param(3, WIDTH, id="T = d"),
    pytest.param(WIDTH, WIDTH, id="B = T = d"),
    pytest.param(1, 8, id="B = 1"),
    pytest.param(3, 2, id="a prompt of one token"),
]
SHAPED = ("L0.block_input@key", "L0.mixer_output@key", "L1.block_input@query")


@cache
def a_shape_and_its_truth(name: str, size: int, length: int):
    model = model_of(name)
    batch = random_batch(size=size, length=max(length, 8), vocab=VOCAB)
    if length < 8:
        everywhere = np.zeros(size, int)
        roles = {"key": everywhere, "query": everywhere, "answer": everywhere + 1}
        answers = {"answer": batch.clean[:, 1], "candidates": batch.clean[:, 1:2]}
        batch = replace(batch, clean=batch.clean[:, :length], positions=roles, **answers)
    batch = unrelated(batch, VOCAB)
    return pb.load_model(model), batch, by_hand(model, batch, SHAPED)


@pytest.mark.parametrize("name", ["gpt2", "attention", "mamba"])
@pytest.mark.parametrize(("size", "length"), SHAPES)
def test_no_dimension_is_taken_for_another(name, size, length, engine):
    loaded, batch, truth = a_shape_and_its_truth(name, size, length)
    rows = engine.run(loaded, plan(SHAPED), batch)
    assert patched(rows) == pytest.approx(truth, abs=2e-5, rel=1e-5)


@cache
def half_precision_and_its_truth(name: str):
    """A model with rounded weights, and what it would give if it computed in single precision."""
    model = model_of(name).to(torch.bfloat16)
    single = model_of(name)
    single.load_state_dict({key: value.float() for key, value in model.state_dict().items()})
    batch = unrelated(random_batch(size=4, vocab=VOCAB), VOCAB)
    return pb.load_model(model, dtype="auto"), batch, by_hand(single, batch, HALVED)


HALVED = ("L0.block_output@query", "L1.block_input@query", "L0.mixer_output@value")


@pytest.mark.parametrize("name", ["gpt2", "llama", "attention", "mamba", "gated_delta_net"])
def test_half_precision_is_off_by_its_rounding_alone(name, engine):
    """bfloat16 has 8 bits: each operation is off by up to 2⁻⁹ of its result."""
    loaded, batch, truth = half_precision_and_its_truth(name)
    assert loaded.dtype == "bfloat16"
    rows = engine.run(loaded, plan(HALVED), batch)
    found, base = patched(rows), patched(rows, "logit_base")
    error = max(abs(found[key] - truth[key]) for key in truth)
    effect = max(abs(base[key] - truth[key]) for key in truth)
    assert error < 0.03 * max(map(abs, truth.values()))
    assert error < effect / 5


def everything_about(model) -> dict:
    """All that an engine could leave on a model, by module."""
    hooks = [name for name in vars(torch.nn.Module()) if "hooks" in name]
    return {
        name: (
            sorted(vars(module)),
            {kind: list((vars(module)[kind] or {}).values()) for kind in hooks},
            vars(module).get("forward"),
            module.training,
            [(p.requires_grad, p.grad) for p in module.parameters(recurse=False)],
        )
        for name, module in model.named_modules()
    }


SWEEP = ("L0.block_output@key", "L1.mixer_output@value", "L1.block_input@query")


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_hooks_of_others_count_and_stay(name, engine):
    """Also one that changes what a block gives, before a patch there, and even if it is skipped."""
    model = model_of(name)
    first = places_of(model)["L0.block_output"][0]
    last = places_of(model)["L1.mixer_output"][0]
    calls = []
    handles = [
        first.register_forward_hook(lambda _, __, output: output + 0.5),
        first.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append("before"), with_kwargs=True
        ),
        last.register_forward_hook(lambda *_: calls.append("after"), always_call=True),
        last.register_full_backward_hook(lambda *_: calls.append("backward")),
        model.register_forward_hook(lambda *_: calls.append("model")),
    ]
    loaded, batch = pb.load_model(model), unrelated(random_batch(size=3, vocab=VOCAB), VOCAB)
    truth = by_hand(model, batch, SWEEP)
    before = everything_about(model)
    calls.clear()
    rows = engine.run(loaded, plan(SWEEP), batch)
    assert {"before", "after", "model"} <= set(calls)
    assert patched(rows) == pytest.approx(truth, abs=2e-5, rel=1e-5)
    assert everything_about(model) == before
    for handle in handles:
        handle.remove()


class Stop(BaseException):
    """What no `except Exception` catches, as Ctrl-C."""


@pytest.mark.parametrize(
    ("name", "error"),
    [("gpt2", Stop), ("llama", torch.OutOfMemoryError), ("mamba", ValueError)],
    ids=["interrupted", "out of memory", "an error"],
)
def test_a_failure_in_mid_sweep_leaves_nothing(name, error, engine):
    model = model_of(name).train()
    loaded, batch = pb.load_model(model), random_batch(size=2, vocab=VOCAB)
    before = everything_about(model)
    expected = ENGINES[engine.name]().run(loaded, plan(SWEEP), batch)
    calls, fails_at = [], 0

    def fail(*_):
        calls.append(None)
        if len(calls) == fails_at:
            raise error("in mid-sweep")

    def tensors() -> int:
        if error is not Stop:
            return 0  # once is enough: it takes as long as a sweep
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    place = places_of(model)["L1.mixer_output"][0]
    kept = tensors()
    for fails_at in range(1, 50):
        calls.clear()
        handle = place.register_forward_pre_hook(fail)
        # A trick that fails is switched off, a batch that does not fit is halved.
        with suppress(UserError, Stop):
            ENGINES[engine.name]().run(loaded, plan(SWEEP), batch)
        handle.remove()
        assert everything_about(model) == before
        if len(calls) < fails_at:
            break
    assert 4 <= fails_at < 49
    assert tensors() <= kept
    assert patched(engine.run(loaded, plan(SWEEP), batch)) == pytest.approx(
        patched(expected), abs=1e-6
    )


def test_an_engine_that_failed_gives_right_rows_the_next_time(engine):
    """Nothing that it kept of a batch reaches another."""
    loaded = pb.load_model(model_of("gpt2"))
    batch, other = (random_batch(size=3, vocab=VOCAB, seed=seed) for seed in (0, 1))
    expected = ENGINES[engine.name]().run(loaded, plan(SWEEP), batch)
    broken = replace(other, clean=other.clean + VOCAB)  # tokens that the model does not know
    for failing in (broken, replace(other, positions={"answer": other.positions["answer"]})):
        with pytest.raises(UserError):
            engine.run(loaded, plan(SWEEP), failing)
        rows = engine.run(loaded, plan(SWEEP), batch)
        assert patched(rows) == pytest.approx(patched(expected), abs=1e-6)
