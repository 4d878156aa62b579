"""What this machine offers: devices, the kernels that would run on them, folders to write to.

Use:

    devices()                  # cores, threads, memory, GPUs
    kernels()                  # by op, which implementation runs here
    folders()                  # caches, and whether they can be written

Nothing is judged here; `patchbench.doctor` does that.
"""

import importlib
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patchbench.installed import version_of

GIB = 2**30
# The distribution that brings a kernel's package.
_DISTRIBUTIONS = {"mamba_ssm": "mamba-ssm", "fla": "fla-core", "causal_conv1d": "causal-conv1d"}
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def failure(module: str) -> str | None:
    """Return why a module cannot be imported, in one line, or None."""
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a module does while it is imported
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


def devices() -> dict[str, Any]:
    """Return CPU cores that may be used and that exist, threads, memory in GiB, and the GPUs."""
    import torch

    from patchbench.sweeping.local import cores

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such file, or "max" for no limit
        memory = min(memory, int(_MEMORY_LIMIT.read_text()))
    return {
        "cores": cores(),
        "cores_of_the_machine": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory / GIB, 1),
        "cuda": torch.version.cuda,
        "gpus": list(_gpus()),
    }


def _gpus() -> Iterator[dict[str, Any]]:
    import torch

    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        free = None
        with suppress(RuntimeError):  # another process has it for itself
            free = round(torch.cuda.mem_get_info(index)[0] / GIB, 1)
        total = round(found.total_memory / GIB, 1)
        yield {
            "device": f"cuda:{index}",
            "name": found.name,
            "memory_gib": total,
            "free_gib": free,
        }
    if torch.backends.mps.is_available():
        name = platform.processor() or platform.machine()
        yield {"device": "mps", "name": name, "memory_gib": None, "free_gib": None}


def kernels() -> list[dict[str, Any]]:
    """Return by op the package whose kernel could run, what runs here, and why.

    `error` says why an installed package gives no kernel, and is None otherwise.
    """
    import torch

    from patchbench.adapters.ops import dispatch

    cuda, found = torch.cuda.is_available(), []
    for op, (package, module, attribute) in dispatch.KERNELS.items():
        name = f"{package} {version_of(_DISTRIBUTIONS[package]) or ''}".strip()
        there, error = dispatch.kernel(op) is not None, None
        if find_spec(package) is None:
            why = f"{package} is not installed"
        elif not there:
            error = failure(module) or f"it has no {attribute}"
            why = f"{name} cannot be used: {error}"
        else:
            why = name if cuda else f"{name} needs a CUDA GPU"
        found.append(
            {
                "op": op,
                "package": package,
                "runs": package if cuda and there else "torch",
                "why": why,
                "error": error,
            }
        )
    return found


def folders() -> list[dict[str, Any]]:
    """Return where is written, by which variable to change it, free GiB, and what is wrong."""
    places: list[tuple[str, str | None, str]] = []
    with suppress(Exception):  # what does not import has no cache either
        from datasets import config

        places.append(("rows of tasks", str(config.HF_DATASETS_CACHE), "HF_DATASETS_CACHE"))
    with suppress(Exception):
        from huggingface_hub import constants

        places.append(("models", str(constants.HF_HUB_CACHE), "HF_HUB_CACHE"))
    try:
        places.append(("temporary files", tempfile.gettempdir(), "TMPDIR"))
    except OSError:  # it tries several
        places.append(("temporary files", None, "TMPDIR"))
    found = []
    for what, folder, variable in places:
        error, free = ("there is none", None) if folder is None else _try_to_write(Path(folder))
        found.append(
            {"for": what, "folder": folder, "set_by": variable, "error": error, "free_gib": free}
        )
    return found


def _try_to_write(path: Path) -> tuple[str | None, float | None]:
    """Return what keeps a file from being written below a folder, or None, and free GiB.

    A folder that is not there yet would be made in the nearest one that is.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"0")
            file.flush()
        return None, round(shutil.disk_usage(path).free / GIB, 1)
    except OSError as error:
        return error.strerror or str(error), None
