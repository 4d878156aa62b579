"""Random batches and raw-hook truth for the engine's tests; the truth knows nothing of patchbench.

`patched_logits` runs one example at a time through hooks written by hand, at module paths written
by hand.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchbench.engines.base import Batch

# family → (blocks, mixer, MLP)
PATHS: dict[str, tuple[str, str, str | None]] = {
    "gpt2": ("transformer.h", "attn", "mlp"),
    "gpt_neo": ("transformer.h", "attn", "mlp"),
    "gpt_neox": ("gpt_neox.layers", "attention", "mlp"),
    "llama": ("model.layers", "self_attn", "mlp"),
    "mamba": ("backbone.layers", "mixer", None),
    "mamba2": ("backbone.layers", "mixer", None),
}


def random_batch(*, size: int = 4, length: int = 10, vocab: int = 64, seed: int = 0) -> Batch:
    """Return examples whose roles are at different places and whose keys are corrupted."""
    rng = np.random.default_rng(seed)
    clean = rng.integers(vocab, size=(size, length))
    key = rng.integers(1, length - 6, size=size)
    rows = np.arange(size)
    corrupted = clean.copy()
    corrupted[rows, key] = (clean[rows, key] + rng.integers(1, vocab, size=size)) % vocab
    answer = clean[:, -1]
    other = (answer + rng.integers(1, vocab, size=size)) % vocab
    return Batch(
        index=rows + 100,
        clean=clean,
        corrupted={"key": corrupted},
        available={"key": np.ones(size, bool)},
        positions={
            "bos": np.zeros(size, int),
            "key": key,
            "value": key + rng.integers(1, 4, size=size),
            "query": np.full(size, length - 2),
            "answer": np.full(size, length - 1),
        },
        answer=answer,
        counterfactual={"key": np.where(rows % 2, other, -1)},
        candidates=np.stack([answer, other], axis=1),
        distance=rng.integers(1, 9, size=size),
        heuristic=rng.random(size) < 0.5,
    )


def module_of(model: Any, family: str, layer: int, component: str) -> tuple[Any, str]:
    """Return the module of a component, and whether it is its input or its output."""
    blocks, mixer, mlp = PATHS[family]
    block = model.get_submodule(blocks)[layer]
    where, io = component.split("_")
    name = {"block": None, "mixer": mixer, "mlp": mlp}[where]
    return (block if name is None else getattr(block, name)), io


def places_of(model: Any) -> dict[str, tuple[Any, str]]:
    """Return every place of a model of `PATHS` or of ours by name: its module, and input or output.

    Of a family's places those outside of its mixers; of ours all.
    """
    family = model.config.model_type
    if family in PATHS:
        return {
            f"L{layer}.{where}_{io}": module_of(model, family, layer, f"{where}_{io}")
            for layer in range(len(model.get_submodule(PATHS[family][0])))
            for where in ("block", "mixer", *(("mlp",) if PATHS[family][2] else ()))
            for io in ("input", "output")
        }
    found: dict[str, tuple[Any, str]] = {"embed": (model.backbone.embed, "output")}
    for layer, block in enumerate(model.backbone.layers):
        for where, module in (("block", block), ("mixer", block.mixer), ("mlp", block.mlp)):
            if module is not None:
                found |= {f"L{layer}.{where}_{io}": (module, io) for io in ("input", "output")}
        for name, hook in block.mixer.hook_points.items():
            found[f"L{layer}.{name}"] = hook, "output"
    return found


def unrelated(batch: Batch, vocab: int) -> Batch:
    """Return the batch with two runs that share no token: a patch anywhere has an effect."""
    return replace(batch, corrupted={"key": (batch.clean + 1) % vocab})


def patched_logits(
    model: Any, module: Any, io: str, base: np.ndarray, source: np.ndarray, position: int
) -> Tensor:
    """Return the logits of `base` with one position of a module's value taken from `source`."""
    kept = {}

    def keep(value: Tensor) -> Tensor:
        kept["value"] = value.clone()
        return value

    def swap(value: Tensor) -> Tensor:
        patched = value.clone()
        patched[:, position] = kept["value"][:, position]
        return patched

    def run(function: Any, tokens: np.ndarray) -> Tensor:
        def after(_: Any, __: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (function(output[0]), *output[1:])
            return function(output)

        def before(_: Any, args: tuple, kwargs: dict) -> Any:
            if args:
                return (function(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": function(kwargs["hidden_states"])}

        if io == "output":
            handle = module.register_forward_hook(after)
        else:
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
        with torch.no_grad():
            logits = model(torch.tensor(tokens[None])).logits[0]
        handle.remove()
        return logits

    run(keep, source)
    return run(swap, base)
