"""A module in the place of a stock mixer: the same parameters, and hook points on the way."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.common import UserError

# What a module keeps of others: hooks that somebody placed on it stay in force on its twin.
_SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
# Several documents in one row, told apart by these.
_PACKED = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")


class Twin(nn.Module):
    """A stock mixer with hook points; every other attribute is the original's.

    With a cache, or with several documents in one row, the original computes, and hooks on the hook
    points are refused: they would not fire.

    Args:
        original: the mixer; its parameters, children and hooks are shared, not copied.
    """

    points: ClassVar[tuple[str, ...]]
    """The component words, in the order in which the values arise."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        # Not as a child: its parameters would be there twice.
        self.__dict__["original"] = original
        for name in _SHARED:
            if name in original.__dict__:
                self.__dict__[name] = original.__dict__[name]
        self._modules.update(original._modules)
        self.hook_points = HookPoints(*self.points)
        self.train(original.training)

    original: nn.Module

    @classmethod
    def possible(cls, original: nn.Module) -> bool:
        """Return whether a mixer's weights are there as they are used: not quantised, not away."""
        own = list(original.parameters())
        return all(p.is_floating_point() and p.device.type != "meta" for p in own)

    @abstractmethod
    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mixer's output (b, t, m) for its input, passing the hook points.

        Args:
            x: (b, t, m).
            mask: (b, t), 0 at padding; None where there is none.
        """

    def heads(self, component: str) -> int | None:
        """Return in how many equal slices a component's features belong to one head each."""
        return None

    def forward(
        self,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **further: Any,
    ) -> Tensor:
        """Compute what the original computes; see there."""
        cache = further.pop("cache_params", None) if cache is None else cache
        packed = any(further.get(name) is not None for name in _PACKED)
        if cache is None and not packed:
            return self.mix(hidden_states, attention_mask)
        looked_at = [name for name, hook in self.hook_points.items() if hook.active]
        if looked_at:
            raise UserError(
                f"hooks on {', '.join(looked_at)} with a cache or packed documents would not fire",
                "run the model with use_cache=False, one document in a row",
            )
        return self.original.forward(
            hidden_states, cache=cache, attention_mask=attention_mask, **further
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set it; a child that takes another's place (as LoRA's do) takes the original's too."""
        super().__setattr__(name, value)
        original = self.__dict__.get("original")
        if original is not None and name in original._modules:
            setattr(original, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return the twin's own, or else the original's attribute."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            original = self.__dict__.get("original")
            if original is None:  # while it is being copied
                raise
            return getattr(original, name)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x` (b, t, d) with zeros at padding."""
    return x if mask is None else (x * mask[:, :, None]).to(x.dtype)
