"""Places inside a mixer where a hook can read or replace a value, at no cost when none does.

Submodules of a mixer are not enough: most inner values (a convolution's output before its
activation, a step size, a memory write) are the output of no module, and fused kernels read
weights without calling the module that holds them. A mixer therefore passes such values through
named identity modules, whose names are the component words.

Use:

    self.hook_points = HookPoints("conv_input", "conv_output", "ssm_state")
    x = self.hook_points["conv_output"](x)             # identity; a forward hook may replace it
    if self.hook_points["ssm_state"].active:           # expensive values only when asked for
        ...

Hooked tensors are (batch, time, features).
"""

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from patchbench.common import UserError


class Hook(nn.Module):
    """The identity. A forward (pre-)hook on it sees, and may replace, the value that passes.

    Args:
        name: the component word.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Return what the hooks make of `x`.

        Floats of another width are cast to that of `x`.

        Raises:
            UserError: a hook returned another shape, which might broadcast without an error, or
                what is no floating point number, with which convolutions compute in integers.
        """
        y = super().__call__(x)
        if y is x:
            return y
        if not isinstance(y, Tensor) or y.shape != x.shape:
            given = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise UserError(
                f"a hook on {self.name!r} returned {given}, the value has shape {tuple(x.shape)}",
                "return a tensor of the same shape, (batch, time, features)",
            )
        if not y.is_floating_point():
            raise UserError(
                f"a hook on {self.name!r} returned {y.dtype}, the value is {x.dtype}",
                "return floating point numbers",
            )
        return y.to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` itself, unchanged."""
        return x

    @property
    def active(self) -> bool:
        """Whether anything may look at the value: a hook of any kind, or a replaced `forward`.

        Tracing libraries that work without hooks install a `forward` on the instance.
        """
        return bool(
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or torch_module._global_forward_hooks
            or torch_module._global_forward_pre_hooks
            or "forward" in self.__dict__
        )


class HookPoints(nn.ModuleDict):
    """Named hooks of one mixer; the names are the components that the mixer offers.

    Args:
        names: component words, in the order in which the values arise.
    """

    def __init__(self, *names: str) -> None:
        super().__init__({name: Hook(name) for name in names})

    def __getitem__(self, key: str) -> Hook:
        """Return the hook called `key`."""
        hook = super().__getitem__(key)
        assert isinstance(hook, Hook)
        return hook
