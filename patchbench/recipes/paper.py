"""The experiments of the paper (arXiv 2505.15105) as functions that return frozen configs.

Use:

    sweep = paper_ar(scale="mini", archs=["attention", "mamba"], seeds=(0, 1, 2))
    [run.name for run in sweep.runs]

Each takes a `scale`: "mini" is a small task with settings that are known to work on AR and on
atr/easy, minutes per run on one core; "paper" is the paper's own task, with its widths and learning
rates. What "mini" changes in the task stands in each function.
"""

from typing import Unpack

from patchbench.recipes.config import RunConfig, SweepConfig
from patchbench.recipes.grid import Choice, Chosen, Variant, runs

# The paper's seven, and Mamba without its convolution.
ARCHITECTURES = tuple(
    Variant(arch)
    for arch in (
        *("attention", "based", "delta_net", "mamba", "mamba_noconv"),
        *("hyena", "base_conv", "h3"),
    )
)
CONVOLUTIONS = (
    *(Variant("mamba", options={"d_conv": k}, label=f"mamba-conv{k}") for k in range(5)),
    *(Variant("based", options={"d_conv": k}, label=f"based-conv{k}") for k in (1, 2, 3, 4)),
    Variant("based", options={"d_conv": "long"}, label="based-convlong"),
)
LAYERS = tuple(
    Variant(arch, layers=layers, label=f"{arch}-l{layers}")
    for arch in ("attention", "mamba")
    for layers in (1, 2, 3)
)
RECALLERS = tuple(Variant(arch) for arch in ("attention", "based", "mamba"))
# The sentences of a grammar reach 1024 tokens.
_SHORT = {"max_sentence_length": 44}


def paper_ar(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative recall, every architecture; mini: 8 pairs of 64 keys and values."""
    return _sweep("paper_ar", runs("ar", ARCHITECTURES, Choice(**choice)))


def paper_ar_conv(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative recall, short convolutions of Mamba (0 to 4) and Based (1 to 4, long)."""
    return _sweep("paper_ar_conv", runs("ar", CONVOLUTIONS, Choice(**choice)))


def paper_ar_layers(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative recall with one, two and three layers of attention and of Mamba."""
    return _sweep("paper_ar_layers", runs("ar", LAYERS, Choice(**choice)))


def paper_atr_easy(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative treecall, 20 terminals, short rules; mini: sentences of up to 44 tokens."""
    return _sweep("paper_atr_easy", runs("atr", ARCHITECTURES, Choice(**choice), mini=_SHORT))


def paper_atr_medium(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative treecall, rules of up to 9 symbols; mini: sentences of up to 44 tokens."""
    return _sweep(
        "paper_atr_medium", runs("atr/medium", ARCHITECTURES, Choice(**choice), mini=_SHORT)
    )


def paper_atr_large_vocab(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative treecall, 8192 terminals; mini: 512, and sentences of up to 44 tokens."""
    mini = {**_SHORT, "num_terminals": 512}
    return _sweep(
        "paper_atr_large_vocab", runs("atr/large_vocab", ARCHITECTURES, Choice(**choice), mini=mini)
    )


def paper_atr_noconv(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative treecall, attention and Mamba with and without its convolution."""
    variants = [Variant(arch) for arch in ("attention", "mamba", "mamba_noconv")]
    return _sweep("paper_atr_noconv", runs("atr", variants, Choice(**choice), mini=_SHORT))


def paper_held_out(**choice: Unpack[Chosen]) -> SweepConfig:
    """Both tasks; test asks pairs that training never asks (a fifth of all)."""
    chosen, held_out = Choice(**choice), {"held_out": 0.2}
    return _sweep(
        "paper_held_out",
        [
            *runs("ar", RECALLERS, chosen, overrides=held_out, prefix="ar-"),
            *runs("atr", RECALLERS, chosen, overrides=held_out, mini=_SHORT, prefix="atr-"),
        ],
    )


def paper_sibling(**choice: Unpack[Chosen]) -> SweepConfig:
    """Associative treecall; the rightmost sibling is asked, which no heuristic solves."""
    return _sweep("paper_sibling", runs("atr/sibling", RECALLERS, Choice(**choice), mini=_SHORT))


def _sweep(name: str, found: list[RunConfig]) -> SweepConfig:
    return SweepConfig(recipe=name, runs=tuple(found))
