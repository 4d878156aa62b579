"""Hand-built models: they do what they say, and get the verdict that is true of them."""

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench.selftest import CASES, SIZES, run
from patchbench.selftest.models import NAMES, build, least_width

PAIRS = 4


def documents(symbols: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return documents BOS k v … EOS q, and the answers, made by hand."""
    rng = np.random.default_rng(seed)
    rows, answers = [], []
    for _ in range(n):
        keys = 3 + rng.permutation(symbols)[:PAIRS]
        values = 3 + symbols + rng.permutation(symbols)[:PAIRS]
        asked = rng.integers(PAIRS)
        pairs = np.stack([keys, values], axis=1).reshape(-1)
        rows.append([1, *pairs.tolist(), 2, keys[asked]])
        answers.append(values[asked])
    return torch.tensor(rows), torch.tensor(answers)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(("symbols", "more"), SIZES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "no_context"])
def test_each_solves_recall_exactly(name, symbols, more, seed):
    shape = {"vocab_size": 3 + 2 * symbols, "length": 2 * PAIRS + 5}
    model = build(name, **shape, width=least_width(name, **shape) + more, seed=seed, dial=0.5)
    tokens, answers = documents(symbols, 64, seed)
    with torch.no_grad():
        p = model(tokens).logits[:, -1].softmax(-1)
    assert (p.argmax(-1) == answers).all()
    assert p.gather(1, answers[:, None]).min() > 0.97


def test_one_ignores_the_context():
    model = build("no_context", vocab_size=15, length=13)
    tokens, _ = documents(6, 16, 0)
    shuffled = tokens.clone()
    shuffled[:, 1:-1] = tokens[:, 1:-1].flip(1)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits[:, -1], model(shuffled).logits[:, -1])


def test_another_seed_is_other_weights_and_the_same_function():
    one, other = (build("induction", vocab_size=15, length=13, seed=seed) for seed in (0, 1))
    tokens, _ = documents(6, 8, 0)
    assert (one.backbone.embed.weight - other.backbone.embed.weight).abs().max() > 0.1
    with torch.no_grad():
        assert (one(tokens).logits - other(tokens).logits).abs().max() < 1e-3


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}{case.idle or ''}")
def test_the_verdict_is_right(case):
    """Deciding sites exclude the other labels: their intervals are on one side of a half."""
    for outcome in run(cases=[case], n=48):
        assert outcome.verdict.label == case.expected, (outcome, outcome.verdict.sentence)
        assert outcome.passed
        for effect in outcome.verdict.sites.values():
            assert effect.low > 0.5 or effect.high < 0.5


@pytest.mark.parametrize(
    ("model", "idle", "appears", "arrives"),
    [
        ("induction", (2, 1, 1), 3, 5),
        ("direct", (1, 2), None, 2),
        ("direct", (3,), None, 4),
    ],
)
def test_the_layers_are_those_that_work(model, idle, appears, arrives):
    """A layer's work is seen at the input of the next."""
    task = pb.load_task("ar", num_pairs=PAIRS, num_keys=6, num_values=6)
    built = build(model, vocab_size=task.vocab_size, length=13, idle=idle)
    verdict = pb.evaluate(built, task, n=32, selfcheck=False, positions=["key", "value", "query"])
    verdict = verdict.verdict
    assert (verdict.appears and verdict.appears.value) == appears
    assert verdict.arrives is not None
    assert (verdict.arrives.low, verdict.arrives.value, verdict.arrives.high) == (arrives,) * 3


def test_attrib_follows_the_dial():
    """The direct way's share of the logits moves the effect from the value to the query."""
    task = pb.load_task("ar", num_pairs=PAIRS, num_keys=6, num_values=6)
    dials = (0.0, 0.25, 0.5, 0.75, 1.0)
    effects = []
    for dial in dials:
        model = build("dial", vocab_size=task.vocab_size, length=13, dial=dial)
        result = pb.evaluate(
            model, task, n=32, selfcheck=False, layers=[2], positions=["value", "query"]
        )
        sites = ("L2.block_input@value", "L2.block_input@query")
        effects.append(
            [
                [result.attrib(site, metric=m).value for m in ("p", "logp", "logit")]
                for site in sites
            ]
        )
    value, query = np.moveaxis(np.array(effects), 1, 0)
    assert (np.diff(value, axis=0) < -1e-3).all()
    assert (np.diff(query, axis=0) > 1e-3).all()
    assert value[0, :2] == pytest.approx(1, abs=1e-2)
    assert query[-1, :2] == pytest.approx(1, abs=1e-2)
    # The logit is a mix of the two ways, so its Attrib is the dial itself, but for the last norm.
    assert query[:, 2] == pytest.approx(dials, abs=0.15)
    assert value[:, 2] == pytest.approx(1 - np.array(dials), abs=0.15)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(pb.UserError, match="at least"):
        build("direct", vocab_size=15, length=13, width=8)
    with pytest.raises(pb.UserError, match="dial"):
        build("dial", vocab_size=15, length=13, dial=1.5)
    with pytest.raises(pb.UserError, match="idle"):
        build("direct", vocab_size=15, length=13, idle=(1, 1, 1))
    with pytest.raises(pb.UserError, match="induction"):
        build("inductoin", vocab_size=15, length=13)
