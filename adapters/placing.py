"""In which number format and on which device a model is loaded, by the names that users give.

Use:

    dtype, device = dtype_of("bfloat16"), device_of("auto")     # UserError for what does not exist
    model = moved(model, device)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from patchbench.common import UserError, near_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
DEVICES = ("auto", "cpu", "cuda", "mps")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def dtype_of(name: str) -> torch.dtype | str:
    """Return PyTorch's dtype of that name; "auto" stays.

    Raises:
        UserError: there is none.
    """
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}", near_names(name, DTYPES))
    return "auto" if name == "auto" else getattr(torch, name)


def device_of(name: str) -> torch.device:
    """Return the device of that name; "auto" is CUDA, or else MPS, or else the CPU.

    Raises:
        UserError: the machine has none.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in DEVICES or (index and not index.isdecimal()):
        raise UserError(f"unknown device {name!r}", near_names(name, DEVICES))
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name!r} is not there",
            f"PyTorch sees {torch.cuda.device_count()} CUDA devices",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' is not there", "use --device cpu")
    return torch.device(name)


def check_device_map(
    device_map: str | Mapping[str, Any] | None, device: str, *, is_object: bool
) -> None:
    """Refuse what accelerate would stumble over, or what would have no effect.

    Args:
        device_map: see `load_model`.
        device: the name that was given beside it.
        is_object: whether the model is in memory already.

    Raises:
        UserError: it is no map, or stands beside a device or a model object.
    """
    if device_map is None:
        return
    if is_object:
        raise UserError("a model object is where it is", "drop device_map")
    if device != "auto":
        raise UserError(f"device {device!r} and a device_map", "give one of the two")
    if isinstance(device_map, str) and device_map not in DEVICE_MAPS:
        raise UserError(f"unknown device_map {device_map!r}", near_names(device_map, DEVICE_MAPS))
    if not isinstance(device_map, str | Mapping) or not device_map:
        raise UserError(
            f"device_map is {device_map!r}", f"one of {', '.join(DEVICE_MAPS)}, or names to devices"
        )
    for place in device_map.values() if isinstance(device_map, Mapping) else ():
        if place != "disk":
            device_of(f"cuda:{place}" if isinstance(place, int) else str(place))


def told_places(model: Any) -> list[str]:
    """Return where accelerate put a model's parts, in words; nothing where it is in one place."""
    places = sorted({str(place) for place in getattr(model, "hf_device_map", {}).values()})
    return [f"spread over {', '.join(places)} by accelerate"] if len(places) > 1 else []


def moved(model: Any, device: torch.device) -> PreTrainedModel:
    """Return the model on the device, in evaluation mode.

    Raises:
        UserError: it does not fit there.
    """
    try:
        return model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the model does not fit into the memory of {device}",
            "use --device cpu or --dtype bfloat16",
        ) from error
