"""Which implementation an op runs, and a record of what ran.

`backend="auto"` takes an installed CUDA kernel when the tensors are on a GPU and the kernel covers
the case, and this package's pure PyTorch otherwise. A result must say which one computed it, so
every choice is recorded.

Use:

    ops.selective_scan(u, dt, A, B, C)                     # "auto"
    ops.selective_scan(u, dt, A, B, C, backend="naive")    # "torch", "naive", or a kernel's name
    dispatch.used()                                        # {"selective_scan": "torch"}
"""

import importlib
from functools import cache
from typing import Any

import torch

from patchbench.common import UserError, near_names

# op -> (backend name, module, attribute)
KERNELS: dict[str, tuple[str, str, str]] = {
    "selective_scan": (
        "mamba_ssm",
        "mamba_ssm.ops.selective_scan_interface",
        "selective_scan_fn",
    ),
    "ssd": ("mamba_ssm", "mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined"),
    "delta_rule": ("fla", "fla.ops.delta_rule", "chunk_delta_rule"),
    "gated_delta_rule": ("fla", "fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    "short_conv": ("causal_conv1d", "causal_conv1d", "causal_conv1d_fn"),
}

_used: dict[str, set[str]] = {}


@cache
def kernel(op: str) -> Any | None:
    """Return the installed kernel function for `op`, or None.

    A kernel package that is installed but does not import (no compiler, no driver) counts as
    absent.
    """
    if op not in KERNELS:
        return None
    _, module, attribute = KERNELS[op]
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception:
        return None


@torch.compiler.assume_constant_result
def choose(
    op: str,
    backend: str,
    device: torch.device,
    *,
    unsupported: str = "",
    ours: tuple[str, ...] = ("torch",),
) -> str:
    """Return the backend that `op` shall run, and record it.

    Args:
        op: name of the op.
        backend: "auto", "naive", one of `ours` or the name of the op's kernel package.
        device: where the tensors of the call are.
        unsupported: what of this call the kernel cannot do ("" when it can do it all).
        ours: names of this package's own implementations, the preferred one first.

    Raises:
        UserError: unknown backend, or a kernel asked for by name that cannot run here.
    """
    name = KERNELS[op][0] if op in KERNELS else None
    if backend == "auto":
        usable = device.type == "cuda" and not unsupported and kernel(op) is not None
        chosen = name if usable and name else ours[0]
    elif backend in (*ours, "naive"):
        chosen = backend
    elif backend == name:
        if unsupported:
            raise UserError(f"{op}: backend {name!r} does not support {unsupported}", "use 'auto'")
        if device.type != "cuda":
            raise UserError(
                f"{op}: backend {name!r} needs CUDA tensors, not {device}", "use 'auto'"
            )
        if kernel(op) is None:
            raise UserError(
                f"{op}: backend {name!r} is not installed or does not import",
                "install the extra 'cuda', or use 'auto'",
            )
        chosen = backend
    else:
        known = ["auto", *ours, "naive", *([name] if name else [])]
        raise UserError(f"{op}: unknown backend {backend!r}", near_names(backend, known))
    _used.setdefault(op, set()).add(chosen)
    return chosen


def used() -> dict[str, str]:
    """Return {op: backend} for the ops run since `reset`; several backends are joined by "+"."""
    return {op: "+".join(sorted(names)) for op, names in sorted(_used.items())}


def reset() -> None:
    """Forget what was used."""
    _used.clear()
