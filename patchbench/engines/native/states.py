"""Resume at the patched position: what a run remembers of the tokens before it.

In a causal model a patch at position p leaves everything before p as it was, so a patched run may
start at p from the unpatched run's past: the keys and values of attention, the states of a MixerLM.

Use:

    past, problem = past_of(model, blocks, length)
    model(tokens, **past.begin())                            # in each unpatched run
    past.at_cuts(all_tokens, {4: documents})                 # where patched runs will start
    model(tokens[documents, 4:], **past.resume(documents, 4, layer))

Recurrent models of transformers are left out: continuing Mamba-1 by more than one token is wrong
there, without a sign.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

# Config attributes that bound how far attention looks back.
_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size")


class Past(Protocol):
    """What the unpatched runs remember; documents count through the runs in their order."""

    def begin(self) -> dict[str, Any]:
        """Return arguments for an unpatched run."""
        ...

    def lengths(self, cuts: Iterable[int]) -> list[int]:
        """Return the tokens of each call of the model that `at_cuts` makes, with all documents."""
        ...

    def at_cuts(self, tokens: Tensor, needed: Mapping[int, np.ndarray]) -> str | None:
        """Prepare to resume at each cut, for the (sorted) documents that will.

        Returns:
            Why that is not possible; None if it is.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        ...

    def resume(self, documents: np.ndarray, cut: int, layer: int) -> dict[str, Any]:
        """Return arguments for a run of the tokens from `cut` on, whose first block is `layer`."""
        ...


def past_of(model: nn.Module, blocks: int, length: int) -> tuple[Past | None, str | None]:
    """Return the past of a model of so many blocks, or None and why none can be used."""
    config: Any = model.config
    if config.model_type == "mixer_lm":
        return MixerStates(model), None
    if "cache" not in inspect.signature(model.forward).parameters:
        return None, "it takes no cache"
    text = config.get_text_config()
    for name in _WINDOWS:
        window = getattr(text, name, None)
        if isinstance(window, int) and window < length:
            return None, f"its attention looks back {window} tokens only"
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    if not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        return None, "it remembers more than keys and values"
    return KeyValues(blocks), None


class KeyValues:
    """The keys and values of every block.

    Args:
        blocks: number of blocks.
    """

    def __init__(self, blocks: int) -> None:
        from transformers.cache_utils import DynamicCache

        self._make, self._blocks = DynamicCache, blocks
        self._runs: list[Any] = []
        self._layers: list[tuple[Tensor, Tensor]] = []

    def begin(self) -> dict[str, Any]:
        """See `Past`."""
        self._runs.append(self._make())
        return {"cache": self._runs[-1], "use_cache": True}

    def lengths(self, cuts: Iterable[int]) -> list[int]:
        """See `Past`."""
        del cuts
        return []

    def at_cuts(self, tokens: Tensor, needed: Mapping[int, np.ndarray]) -> str | None:
        """See `Past`."""
        layers = [run.layers for run in self._runs]
        self._runs = []
        if any(len(run) != self._blocks for run in layers):
            return "not every block left keys and values"
        for parts in zip(*layers, strict=True):
            pair = torch.cat([part.keys for part in parts]), torch.cat([p.values for p in parts])
            if any(tensor.shape[::2] != (len(tokens), tokens.shape[1]) for tensor in pair):
                return "its keys and values are not one for each token"
            self._layers.append(pair)
        return None

    @property
    def nbytes(self) -> int:
        """See `Past`."""
        return sum(keys.nbytes + values.nbytes for keys, values in self._layers)

    def resume(self, documents: np.ndarray, cut: int, layer: int) -> dict[str, Any]:
        """See `Past`."""
        if not cut:
            return {}
        cache = self._make()
        rows = torch.as_tensor(documents, device=self._layers[0][0].device)
        for index, (keys, values) in enumerate(self._layers):
            # The model asks the first layer how long the past is, whether that layer runs or not.
            if index >= layer or index == 0:
                cache.update(keys[rows, :, :cut], values[rows, :, :cut], index)
            else:
                cache.update(keys[:1, :, :1], values[:1, :, :1], index)
        return {"cache": cache, "use_cache": True}


class MixerStates:
    """The states of a MixerLM at chosen positions.

    Args:
        model: a `MixerLMForCausalLM`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self._kept: dict[int, tuple[np.ndarray, list[dict[str, Tensor]]]] = {}

    def begin(self) -> dict[str, Any]:
        """See `Past`."""
        return {}

    def lengths(self, cuts: Iterable[int]) -> list[int]:
        """See `Past`."""
        return np.diff(sorted({0, *cuts})).tolist()

    def at_cuts(self, tokens: Tensor, needed: Mapping[int, np.ndarray]) -> str | None:
        """See `Past`; the unpatched documents run once more, from cut to cut."""
        from patchbench.adapters.cache import MixerLMCache

        cache = MixerLMCache(self._model.config.num_hidden_layers)
        start = 0
        for cut in sorted(needed):
            if not cut:
                continue
            self._model.base_model(tokens[:, start:cut], cache=cache)
            rows = torch.as_tensor(needed[cut], device=tokens.device)
            self._kept[cut] = (
                needed[cut],
                [
                    {name: state[rows] for name, state in (layer or {}).items()}
                    for layer in cache.states
                ],
            )
            start = cut
        return None

    @property
    def nbytes(self) -> int:
        """See `Past`."""
        kept = [layer for _, layers in self._kept.values() for layer in layers]
        return sum(state.nbytes for layer in kept for state in layer.values())

    def resume(self, documents: np.ndarray, cut: int, layer: int) -> dict[str, Any]:
        """See `Past`."""
        if not cut:
            return {}
        from patchbench.adapters.cache import MixerLMCache

        known, states = self._kept[cut]
        rows = torch.as_tensor(np.searchsorted(known, documents))
        cache = MixerLMCache(len(states))
        cache.length = cut
        for index in range(layer, len(states)):
            cache.states[index] = {
                name: state[rows.to(state.device)] for name, state in states[index].items()
            }
        return {"cache": cache}
