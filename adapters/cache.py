"""What a MixerLM remembers between calls: one state per layer, of whatever kind its mixer keeps.

transformers' own caches know keys and values, or one convolution and one recurrent state of fixed
names; a mixer's state here is any dict of tensors with the batch first.

Use:

    out = model(input_ids[:, :10], use_cache=True)
    out = model(input_ids[:, 10:], cache=out.cache)        # equals the whole in one call
    out.cache.states[0]["ssm_state"]                       # read or replace a state
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from patchbench.adapters.mixers import Mixer, MixerState
from patchbench.common import UserError


class MixerLMCache(Cache):
    """The states of all layers after the tokens seen so far.

    Args:
        num_layers: number of layers of the model.

    Attributes:
        states: per layer the mixer's state, None before the first token.
        length: number of tokens seen.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[])
        self.states: list[MixerState | None] = [None] * num_layers
        self.length = 0

    def __repr__(self) -> str:
        return f"MixerLMCache({len(self.states)} layers, {self.length} tokens)"

    def __len__(self) -> int:
        return len(self.states)

    def draft(self) -> MixerLMCache:
        """Return a cache with the same states, in which others can be put without changing this."""
        other = MixerLMCache(0)
        other.states, other.length = list(self.states), self.length
        return other

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens seen, the same for every layer."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return −1: the cache itself sets no limit."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.states = [None] * len(self.states)
        self.length = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take row `beam_idx[i]` as the new row i (beam search)."""
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times, copies side by side."""
        self._map(lambda tensor: tensor.repeat_interleave(repeats, 0))

    @property
    def is_linear(self) -> list[bool]:
        """False for every layer: of a prompt only what the cache has not seen may run again."""
        return [False] * len(self.states)

    @property
    def is_compileable(self) -> bool:
        """False: the states grow, and no mask in four dimensions is wanted."""
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: a recurrent state cannot be taken back.

        Raises:
            UserError: always, unless there is nothing to remove.
        """
        if tokens_to_remove:
            raise UserError(
                f"a MixerLM cache cannot forget its last {tokens_to_remove} tokens",
                "keep a copy.deepcopy of the cache, or run the shorter sequence again",
            )

    @property
    def batch_size(self) -> int:
        """The number of rows, −1 before the first token."""
        tensors = [tensor for state in self.states for tensor in (state or {}).values()]
        return tensors[0].shape[0] if tensors else -1

    @property
    def is_croppable(self) -> bool:
        """False: see `crop`."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether any token was seen."""
        return self.length > 0

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            self.states = [
                None if state is None else {name: change(tensor) for name, tensor in state.items()}
                for state in self.states
            ]


def check_cache(cache: object, *, layers: int, rows: int) -> None:
    """Raise `UserError` unless `cache` is one of a model this deep and of a batch of this size.

    States of one row would otherwise be broadcast over all rows without an error.

    Args:
        cache: what was passed as one.
        layers: of the model.
        rows: rows of the batch.
    """
    if not isinstance(cache, MixerLMCache):
        raise UserError(
            f"the cache is a {type(cache).__name__}", "pass what an earlier call returned as .cache"
        )
    if len(cache) != layers:
        raise UserError(
            f"the cache has {len(cache)} layers, the model {layers}", "pass a cache of this model"
        )
    if cache.batch_size not in (-1, rows):
        raise UserError(
            f"the cache has {cache.batch_size} rows, the input {rows}",
            "select or repeat the cache's rows (reorder_cache, batch_repeat_interleave)",
        )


def state_of(cache: MixerLMCache, layer: int, mixer: Mixer, *, rows: int) -> MixerState | None:
    """Return what `mixer`, of layer `layer`, goes on from; None before the first token.

    Raises:
        UserError: this mixer cannot have made it: it would be misread.
    """
    state = cache.states[layer]
    if not cache.length or type(mixer).initial_state is Mixer.initial_state:
        return state  # nothing was seen yet, or the mixer says nothing of its states
    wanted = mixer.initial_state(rows, torch.device("meta"), torch.float32)
    if state is None or not _alike(state, wanted):
        found = None if state is None else _shapes(state)
        raise UserError(
            f"layer {layer} of the cache holds {found}, the model has {_shapes(wanted)}",
            "pass a cache that this model made",
        )
    return state


def _alike(state: MixerState, wanted: MixerState) -> bool:
    """Whether names and shapes agree; what begins with no entry (a history) has any length."""
    return state.keys() == wanted.keys() and all(
        state[name].dim() == one.dim()
        and all(b in (a, 0) for a, b in zip(state[name].shape, one.shape, strict=True))
        for name, one in wanted.items()
    )


def _shapes(state: MixerState) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
