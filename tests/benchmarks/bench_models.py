"""Training-step times of the models, as ratios against the obvious alternatives.

One command, one table; everything is timed in the same run, interleaved, on one thread:

    python tests/benchmarks/bench_models.py [--only attention delta_rule …] [--rounds 15]

d 64, 2 layers, batch 32, 36 tokens, forward and backward, logits at the answer only.
"""

import argparse
import time
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn
from transformers import MambaConfig, MambaForCausalLM

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, ops
from patchbench.adapters.hook_points import HookPoints

WIDTH, LAYERS, BATCH, TIME, VOCAB = 64, 2, 32, 36, 8196
Step = Callable[[], None]


def build(name: str) -> MixerLMForCausalLM:
    return MixerLMForCausalLM(
        MixerLMConfig.preset(name, width=WIDTH, layers=LAYERS, vocab_size=VOCAB)
    ).train()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(VOCAB, (BATCH, TIME), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[:, -1] = ids[:, -1]
    return ids, labels


def answer_only(model: MixerLMForCausalLM) -> Step:
    ids, labels = batch()

    def step() -> None:
        model.zero_grad()
        model(ids, labels=labels).loss.backward()

    return step


def full_logits(model: MixerLMForCausalLM) -> Step:
    """The same step the usual way: all logits, and a loss that ignores the label −100."""
    ids, labels = batch()

    def step() -> None:
        model.zero_grad()
        logits = model(ids, use_cache=False).logits
        model.loss_function(logits, labels, VOCAB).backward()

    return step


def last_two(model: MambaForCausalLM) -> Step:
    """A step of transformers' model with as few logits as it can keep."""
    ids, labels = batch()

    def step() -> None:
        model.zero_grad()
        logits = model(ids, logits_to_keep=2, use_cache=False).logits
        nn.functional.cross_entropy(logits[:, 0], labels[:, -1]).backward()

    return step


def sequential(step: Step) -> Step:
    """The same step with the delta rule's naive loop."""
    fast = ops.delta_rule

    def naive(*args: object, **kwargs: object) -> object:
        return fast(*args, **{**kwargs, "backend": "naive"})  # pyright: ignore[reportArgumentType]

    def slow() -> None:
        with mock.patch.object(ops, "delta_rule", naive):
            step()

    return slow


def free(step: Step) -> Step:
    """The same step with a stand-in for the delta rule that costs one sum: the model around it.

    All four inputs get a gradient, so that nothing before the op is left out.
    """

    def costless(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        *_: object,
        **__: object,
    ) -> tuple[torch.Tensor, None]:
        return torch.addcmul(q + v, k, beta[..., None]), None

    def fast() -> None:
        with mock.patch.object(ops, "delta_rule", costless):
            step()

    return fast


def delta_rule_alone(backend: str) -> Step:
    """Forward and backward of the op, without the model around it."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        nn.functional.normalize(
            torch.randn(BATCH, TIME, 1, WIDTH, generator=generator), dim=-1
        ).requires_grad_()
        for _ in range(3)
    )
    beta = torch.rand(BATCH, TIME, 1, generator=generator).requires_grad_()

    def step() -> None:
        for tensor in (q, k, v, beta):
            tensor.grad = None
        ops.delta_rule(q, k, v, beta, backend=backend)[0].sum().backward()

    return step


class _Bypass:
    """Stands in for a mixer's hook points and costs next to nothing."""

    active = False

    def __getitem__(self, name: str) -> "_Bypass":
        return self

    def __contains__(self, name: str) -> bool:
        return True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def without_hooks(model: MixerLMForCausalLM, step: Step) -> Step:
    """The same step with all hook points taken out of the way."""
    owners = [module for module in model.modules() if "hook_points" in module._modules]
    kept: list[nn.Module | None] = [owner._modules["hook_points"] for owner in owners]

    def bare() -> None:
        for owner in owners:
            del owner._modules["hook_points"]
            owner.__dict__["hook_points"] = _Bypass()
        try:
            step()
        finally:
            for owner, points in zip(owners, kept, strict=True):
                del owner.__dict__["hook_points"]
                assert isinstance(points, HookPoints)
                owner.hook_points = points

    return bare


def compare(first: Step, second: Step, rounds: int) -> tuple[float, float, float]:
    """Return both fastest times (CPU ms) and the ratio second / first.

    The fastest, because other work on the machine only ever adds; the ratio of two nearly equal
    times is the median over pairs, which is steadier.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        order = ((0, first), (1, second)) if turn % 2 else ((1, second), (0, first))
        for index, step in order:
            start = time.process_time()
            step()
            if turn >= 2:
                times[index].append(1e3 * (time.process_time() - start))
    fast, slow = min(times[0]), min(times[1])
    pairs = sorted(b / a for a, b in zip(*times, strict=True))
    paired = pairs[len(pairs) // 2]
    return fast, slow, paired if paired < 1.5 else slow / fast


def against_transformers() -> tuple[Step, Step]:
    reference = MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, use_cache=False)
    ).train()
    return answer_only(build("mamba")), last_two(reference)


def delta_net() -> tuple[Step, Step]:
    step = answer_only(build("delta_net"))
    return step, sequential(step)


def delta_net_free() -> tuple[Step, Step]:
    step = answer_only(build("delta_net"))
    return free(step), sequential(step)


def attention() -> tuple[Step, Step]:
    model = build("attention")
    return answer_only(model), full_logits(model)


# Of each comparison: its line, what it compares, and what is wanted.
COMPARISONS: dict[str, tuple[str, Callable[[], tuple[Step, Step]], str]] = {
    "attention": ("attention / with full logits", attention, "≥ 8"),
    "mamba": ("mamba / transformers' Mamba", against_transformers, "≥ 6"),
    "delta_rule": (
        "delta rule alone / one by one",
        lambda: (delta_rule_alone("torch"), delta_rule_alone("naive")),
        "≥ 10",
    ),
    "delta_net": ("delta_net / its sequential form", delta_net, "≥ 10"),
    "delta_net_free": (
        "delta_net, op free / sequential",
        delta_net_free,
        "the most that any op could give",
    ),
}
HOOKS = "hooks"
HOOKED = ("attention", "based", "base_conv", "hyena", "h3", "mamba", "mamba2", "delta_net")


def main() -> None:
    every = [*COMPARISONS, HOOKS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=every, choices=every)
    parser.add_argument("--rounds", type=int, default=15, help="of hooks: four times as many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"d {WIDTH}, {LAYERS} layers, batch {BATCH}, {TIME} tokens, vocabulary {VOCAB}")
    for name in COMPARISONS:
        if name in options.only:
            title, steps, wanted = COMPARISONS[name]
            fast, slow, ratio = compare(*steps(), options.rounds)
            print(
                f"{title:34} {fast:7.1f} ms {slow:7.1f} ms  {ratio:5.1f} times  (wanted {wanted})",
                flush=True,
            )
    if HOOKS not in options.only:
        return
    print("unused hook points:")
    for name in HOOKED:
        model = build(name)
        step = answer_only(model)
        bare, with_hooks, ratio = compare(without_hooks(model, step), step, 4 * options.rounds)
        cost = 100 * (ratio - 1)
        print(
            f"  {name:12} {bare:6.2f} ms {with_hooks:6.2f} ms  {cost:+5.1f} %  (wanted < 3)",
            flush=True,
        )


if __name__ == "__main__":
    main()
