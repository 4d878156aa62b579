"""First-order scores against models that are linear, differences by hand, and exact patching."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

import patchbench as pb
from patchbench.adapters.hook_map import HookMap, HookPoint
from patchbench.adapters.loading import LoadedModel
from patchbench.attribution import first_order, foremost
from patchbench.common import UserError
from patchbench.effects import attribs
from patchbench.engines import ENGINES
from patchbench.engines.base import Counters
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.lively import lively
from tests.core.batches import module_of, random_batch
from tests.tiny_models import tiny

VOCAB = 26
PLACES = ("key", "value", "value+1", "query")
DIRECTIONS = ("denoise", "noise")


def plan(*sites: str, direction: Any = "denoise") -> list[Intervention]:
    return [
        Intervention(sites=(Site.parse(site),), corruption="key", direction=direction)
        for site in sites
    ]


def effects(table) -> dict[tuple[str, int], float]:
    return {
        (row["site"], row["example"]): row["p_patched"] - row["p_base"] for row in table.to_pylist()
    }


def model_of(family: str) -> Any:
    """A tiny model whose probabilities depend visibly on every site."""
    if family == "gpt2":
        return tiny(family, vocab=VOCAB)
    model = lively(family, **({"num_heads": 2} if family == "attention" else {}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "A_log" not in name:
                parameter.normal_(0.0, 0.4, generator=generator)
    return model


class Averaging(PreTrainedModel):
    """Tokens are distributions, blocks average over the past, logits are logarithms.

    What is predicted is linear in every activation.
    """

    config_class = PretrainedConfig

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__(PretrainedConfig(vocab_size=VOCAB))
        self.cut = cut
        self.embed = nn.Embedding(VOCAB, VOCAB)
        self.embed.weight.data = torch.rand(VOCAB, VOCAB, dtype=torch.float64).pow(8) + 1e-3
        self.embed.weight.data /= self.embed.weight.data.sum(-1, keepdim=True)
        self.blocks = nn.ModuleList(nn.Identity() for _ in range(2))

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor) -> CausalLMOutput:
        hidden = self.embed(input_ids)
        share = torch.rand(
            2, 1, hidden.shape[1], 1, generator=torch.Generator().manual_seed(0)
        ).double()
        counts = torch.arange(1, hidden.shape[1] + 1)[:, None]
        for block, own in zip(self.blocks, share, strict=True):
            hidden = block(own * hidden + (1 - own) * hidden.cumsum(1) / counts)
        if self.cut:
            hidden = hidden.detach()
        return CausalLMOutput(logits=hidden.log())


def averaging(**settings: Any) -> LoadedModel:
    torch.manual_seed(0)
    points: dict[tuple[int | None, str], HookPoint] = {
        (layer, "block_output"): HookPoint(
            component="block_output", path=f"blocks.{layer}", io="output", layer=layer
        )
        for layer in range(2)
    }
    points[None, "embed"] = HookPoint(component="embed", path="embed", io="output", layer=None)
    hook_map = HookMap(
        model_type="averaging", origin="user", num_layers=2, blocks="blocks", points=points
    )
    model = Averaging(**settings).double().eval()
    return LoadedModel(model=model, tokenizer=None, hook_map=hook_map, name="averaging")


@pytest.mark.parametrize("ig_steps", [0, 1, 3])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_linear_model_is_estimated_exactly(direction, ig_steps):
    loaded, batch = averaging(), random_batch(vocab=VOCAB, size=6)
    names = [f"{where}@{at}" for where in ("embed", "L0.block_output") for at in PLACES]
    names.append("L1.block_output@query")
    items = plan(*names, direction=direction)
    rows = ENGINES["pyvene"]().run(loaded, items, batch)
    estimates = first_order(loaded, items, batch, ig_steps=ig_steps)
    exact, found = effects(rows), effects(estimates)
    assert max(map(abs, exact.values())) > 0.005
    assert found == pytest.approx(exact, abs=2e-7)
    which: Any = {"corruption": "key", "direction": direction}
    for site, truth in attribs(rows, **which).items():
        assert attribs(estimates, **which)[site].value == pytest.approx(truth.value, abs=1e-3)


Module = Callable[[Any], tuple[nn.Module, str]]


def gpt2_module(layer: int, component: str) -> Module:
    return lambda model: module_of(model, "gpt2", layer, component)


def inner(layer: int, component: str) -> Module:
    return lambda model: (
        model.backbone.layers[layer].mixer.hook_points[component],
        "output",
    )


def p_answer(model, tokens: np.ndarray, answer: int, hook=None) -> float:
    """p(answer) of one document, with `hook` = (module, io, function) at one place."""
    handle = None
    if hook is not None:
        module, io, function = hook
        if io == "input":
            handle = module.register_forward_pre_hook(
                lambda _, args: (function(args[0]), *args[1:])
            )
        else:
            handle = module.register_forward_hook(
                lambda _, __, out: (
                    (function(out[0]), *out[1:]) if isinstance(out, tuple) else function(out)
                )
            )
    with torch.no_grad():
        logits = model(torch.tensor(tokens[None])).logits[0, -2]
    if handle is not None:
        handle.remove()
    return float(logits.softmax(-1)[answer])


def slope_by_hand(model, module, io, base, source, at, answer, features=slice(None)) -> float:
    """The central difference of p(answer) from base towards source, per unit of the whole way."""
    kept = []

    def keep(value):
        kept.append(value[0, at].clone())
        return value

    for tokens in (base, source):
        p_answer(model, tokens, answer, (module, io, keep))
    change = torch.zeros_like(kept[0])
    change[features] = (kept[1] - kept[0])[features]

    def moved(step: float) -> float:
        def move(value):
            value = value.clone()
            value[0, at] += step * change
            return value

        return p_answer(model, base, answer, (module, io, move))

    step = 1e-5
    return (moved(step) - moved(-step)) / (2 * step)


SLOPES = [
    ("gpt2", "L0.block_input", gpt2_module(0, "block_input")),
    ("gpt2", "L1.block_output", gpt2_module(1, "block_output")),
    ("gpt2", "L0.mixer_output", gpt2_module(0, "mixer_output")),
    ("mamba", "L0.conv_output", inner(0, "conv_output")),
    ("mamba", "L1.dt", inner(1, "dt")),
    ("mamba", "L0.ssm_write", inner(0, "ssm_write")),
    ("mamba", "L0.ssm_state", inner(0, "ssm_state")),
    ("delta_net", "L0.ssm_write", inner(0, "ssm_write")),
    ("delta_net", "L1.ssm_state", inner(1, "ssm_state")),
    ("attention", "L1.q[1]", inner(1, "q")),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("family", "site", "find"), [pytest.param(*case, id="-".join(case[:2])) for case in SLOPES]
)
def test_scores_equal_differences_by_hand(family, site, find, direction):
    model = model_of(family).double()
    module, io = find(model)
    batch = random_batch(vocab=VOCAB, size=3)
    places = ("query",) if "[" in site else ("key", "value+1", "query")
    # Another site of the layer in the same forward must not disturb this one.
    other = f"L0.{'ssm_write' if family in ('mamba', 'delta_net') else 'mixer_output'}@value"
    items = plan(*(f"{site}@{at}" for at in places), other, direction=direction)
    found = effects(first_order(pb.load_model(model), items, batch))
    largest = 0.0
    for number, answer in enumerate(batch.answer):
        runs = batch.corrupted["key"][number], batch.clean[number]
        base, source = runs if direction == "denoise" else runs[::-1]
        for place in places:
            role, _, offset = place.partition("+")
            at = int(batch.positions[role][number]) + int(offset or 0)
            features = slice(None)
            if "[1]" in site:
                width = model.config.hidden_size // model.backbone.layers[0].mixer.num_heads
                features = slice(width, 2 * width)
            truth = slope_by_hand(model, module, io, base, source, at, answer, features)
            largest = max(largest, abs(truth))
            # The model's own single-precision islands (its steps and states) limit the differences.
            assert found[f"{site}@{place}", number + 100] == pytest.approx(
                truth, rel=1e-3, abs=2e-6
            )
    assert largest > 1e-4


@pytest.mark.parametrize(
    ("family", "component"), [("gpt2", "block_input"), ("mamba", "ssm_write"), ("mamba", "dt")]
)
def test_many_steps_approach_exact_patching(family, component):
    loaded, batch = pb.load_model(model_of(family)), random_batch(vocab=VOCAB)
    items = plan(*(f"L0.{component}@{at}" for at in ("key", "value")))
    exact = effects(ENGINES["pyvene"]().run(loaded, items, batch))

    def error(steps: int) -> float:
        found = effects(first_order(loaded, items, batch, ig_steps=steps))
        assert found.keys() == exact.keys()
        return max(abs(found[key] - exact[key]) for key in exact)

    few, many = error(0), error(64)
    assert many < 1e-4
    assert many < few / 50


def test_an_example_without_the_site_has_no_row():
    batch = random_batch(vocab=VOCAB)
    batch = replace(batch, positions={**batch.positions, "value": np.array([3, -1, 4, -1])})
    counters = Counters()
    table = first_order(
        averaging(), plan("embed@value", "embed@key"), batch, ig_steps=2, counters=counters
    )
    assert [site for site, _ in effects(table)].count("embed@value") == 2
    assert [site for site, _ in effects(table)].count("embed@key") == 4
    assert counters.forwards == 2 + 2 * 2


def test_the_model_is_left_as_it_was():
    model = tiny("gpt2", vocab=VOCAB).train()
    model.transformer.wte.weight.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    fired = []
    handle = model.transformer.h[0].register_forward_hook(lambda *_: fired.append(1))
    loaded, items = pb.load_model(model), plan("L0.block_input@key", "L1.mixer_output@value")

    def check() -> None:
        assert all(module.training for module in model.modules())
        assert {name: p.requires_grad for name, p in model.named_parameters()} == before
        assert all(parameter.grad is None for parameter in model.parameters())
        hooks = [h for m in model.modules() for h in (*m._forward_hooks, *m._forward_pre_hooks)]
        assert len(hooks) == 1

    first_order(loaded, items, random_batch(vocab=VOCAB), ig_steps=2)
    assert fired
    check()
    with pytest.raises(UserError):  # a token that the model does not know, in mid-forward
        first_order(loaded, items, random_batch(vocab=4 * VOCAB))
    check()
    handle.remove()


def test_what_cannot_be_scored_is_refused():
    batch = random_batch(vocab=VOCAB)
    loaded = averaging()
    pair = replace(plan("embed@key")[0], sites=(Site.parse("embed@key"), Site.parse("embed@value")))
    with pytest.raises(UserError, match=r"embed@key & embed@value.*--method exact"):
        first_order(loaded, [pair], batch)
    with pytest.raises(UserError, match="from the other run"):
        first_order(loaded, [replace(plan("embed@key")[0], source="self")], batch)
    with pytest.raises(UserError, match="no gradient"):
        first_order(averaging(cut=True), plan("embed@key"), batch)
    point = replace(loaded.hook_map.points[0, "block_output"], source="x_0")
    inside = replace(loaded.hook_map, points={(0, "block_output"): point})
    with pytest.raises(UserError, match="no hook reaches"):
        first_order(replace(loaded, hook_map=inside), plan("L0.block_output@key"), batch)

    class Steep(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + (hidden - hidden.detach()).abs().sqrt()  # 0, of infinite slope

    loaded.model.blocks[1] = Steep()
    with pytest.raises(UserError, match="NaN or infinite"):
        first_order(loaded, plan("embed@key"), batch)


def test_the_foremost_have_the_largest_scores_of_each_pair():
    loaded, batch = averaging(), random_batch(vocab=VOCAB)
    names = [f"{where}@{at}" for where in ("embed", "L0.block_output") for at in PLACES]
    items = [item for way in DIRECTIONS for item in plan(*names, direction=way)]
    estimates = first_order(loaded, items, batch)
    chosen = foremost(estimates, items, 3)
    assert chosen == [item for item in items if item in chosen]
    for way in DIRECTIONS:
        size = {
            site: abs(found.value)
            for site, found in attribs(estimates, corruption="key", direction=way).items()
        }
        best = sorted(size, key=lambda site: -size[site])[:3]
        assert {item.label for item in chosen if item.direction == way} == set(best)
    assert foremost(estimates, items, 99) == items
