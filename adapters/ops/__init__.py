"""The recurrences and convolutions behind the mixers: pure PyTorch, or a CUDA kernel if installed.

Every op takes `initial_state`, `return_state` and `backend`, returns `(output, state or None)`,
computes in float32 or wider, and has an obvious twin in `naive`. `dispatch.used()` tells which
implementation ran.
"""

from patchbench.adapters.ops import dispatch, naive
from patchbench.adapters.ops.conv import long_conv, short_conv
from patchbench.adapters.ops.delta_rule import delta_rule
from patchbench.adapters.ops.selective_scan import selective_scan
from patchbench.adapters.ops.ssd import ssd

__all__ = [
    "delta_rule",
    "dispatch",
    "long_conv",
    "naive",
    "selective_scan",
    "short_conv",
    "ssd",
]
