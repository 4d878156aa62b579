"""Keeps A_log, D and step biases of transformers' Mamba and Mamba-2 in fp32 in a half load.

transformers rounds them with everything else, although its forward widens A_log, D and Mamba's
step bias to fp32 before it computes: what was lost is a rounding error in every decay. Mamba-2's
dt_bias is kept too, for the CUDA kernels; the PyTorch forward rounds it when it adds it.

Use:

    with float32_parts():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    kept = float32_names(model)                       # ["A_log", "D", "dt_bias"]
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_SETTING = "_keep_in_fp32_modules_strict"  # transformers' own, read while weights are loaded
_NAMES = ("A_log", "D", "dt_bias", "dt_proj.bias")


@contextmanager
def float32_parts() -> Iterator[None]:
    """Let transformers load these parameters as fp32; its classes are as before afterwards."""
    from transformers.models.mamba.modeling_mamba import MambaPreTrainedModel
    from transformers.models.mamba2.modeling_mamba2 import Mamba2PreTrainedModel

    with ExitStack() as stack:
        for family in (MambaPreTrainedModel, Mamba2PreTrainedModel):
            stack.callback(setattr, family, _SETTING, getattr(family, _SETTING))
            setattr(family, _SETTING, {*(getattr(family, _SETTING) or ()), *_NAMES})
        yield


def float32_names(model: nn.Module) -> list[str]:
    """Return which of these parameters are fp32 in a Mamba or Mamba-2 of half precision.

    Args:
        model: a loaded model; any other family, or fp32 throughout, gives an empty list.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in ("mamba", "mamba2"):
        return []
    if getattr(model, "dtype", None) not in (torch.bfloat16, torch.float16):
        return []
    return sorted(
        {
            name
            for path, parameter in model.named_parameters()
            for name in _NAMES
            if path.endswith("." + name) and parameter.dtype == torch.float32
        }
    )
