"""Can this environment run patchbench, and what of it can be used here?

Use:

    report = examine()
    report.usable                          # False where something is broken
    for finding in report.findings:
        print(finding.level, finding.what, finding.remedy)

Versions are judged by packages' own metadata; what has to be imported is imported, since metadata
says nothing of a broken build. A *problem* keeps something of patchbench from working, a *note* is
about other packages or about speed.
"""

import os
import platform
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import patchbench
from patchbench.installed import Wish, fits, unmet, version_of, wishes
from patchbench.machine import devices, failure, folders, kernels

# Shown beside what patchbench's own metadata names.
_ALSO = ("triton", "xarray")
# What contributors need says nothing of whether a user can work.
_NOT_FOR_USERS = ("dev", "oracle")
# What has to be importable, each after what it imports itself.
_IMPORTED = {
    **{name: name for name in ("torch", "transformers", "datasets", "accelerate")},
    **{name: name for name in ("pyvene", "nnsight")},
    "patchbench": "patchbench.adapters.model",
}
# Packages below and beside this one, whose own wishes are looked at too.
_NEIGHBOURS = (
    *("torch", "transformers", "datasets", "accelerate", "pyvene", "nnsight"),
    *("transformer-lens", "sae-lens", "nnterp", "lm-eval"),
)
# (what, beside what, what happens, remedy): found by trying; nobody's metadata says it.
_CONFLICTS = (
    (
        "nnterp<=1.3.0",
        "nnsight>=0.8",
        "nnterp cannot be imported beside nnsight 0.8 (patchbench is not affected)",
        "give nnterp an environment of its own",
    ),
)
_DRIVER = Path("/proc/driver/nvidia/version")
_LEAST_FREE_GIB = 1


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        level: "problem" where something of patchbench does not work, else "note".
        what: it is, in one line.
        remedy: what to do about it.
    """

    level: Literal["problem", "note"]
    what: str
    remedy: str


@dataclass(kw_only=True)
class Report:
    """What was found.

    Attributes:
        system: patchbench, its folder, Python and the platform.
        packages: name, version (None: not installed), which versions are asked for, for which
            extra.
        devices: see `patchbench.machine.devices`; empty where torch is broken.
        kernels: see `patchbench.machine.kernels`; empty likewise.
        plugins: entry points of other packages, and why one is skipped.
        folders: see `patchbench.machine.folders`.
        findings: what is not as it should be.
    """

    system: dict[str, str] = field(default_factory=dict)
    packages: list[dict[str, Any]] = field(default_factory=list)
    devices: dict[str, Any] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    plugins: list[dict[str, Any]] = field(default_factory=list)
    folders: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether nothing is broken."""
        return all(finding.level == "note" for finding in self.findings)

    def problem(self, what: str, remedy: str) -> None:
        """Add a finding that keeps something from working."""
        self.findings.append(Finding(level="problem", what=what, remedy=remedy))

    def note(self, what: str, remedy: str) -> None:
        """Add a finding that does not."""
        self.findings.append(Finding(level="note", what=what, remedy=remedy))


def examine() -> Report:
    """Look at everything; what cannot be looked at because something else is broken is left out."""
    report = Report(
        system={
            "patchbench": patchbench.__version__,
            "folder": str(Path(patchbench.__file__).parent),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
    )
    _packages(report)
    broken = _first_broken(report)
    if broken != "torch":
        _devices(report)
        _kernels(report)
    if broken is None:
        _plugins(report)
    _folders(report)
    return report


def _packages(report: Report) -> None:
    asked = wishes("patchbench", without=_NOT_FOR_USERS)
    report.packages = [
        {"package": w.name, "version": w.found, "wanted": w.versions, "extra": w.extra}
        for w in asked
    ]
    report.packages += [
        {"package": name, "version": version_of(name), "wanted": "", "extra": ""} for name in _ALSO
    ]
    installed = version_of("patchbench")
    if installed is None:
        report.note(
            "patchbench is imported without being installed: what it asks for cannot be checked",
            "pip install -e . in its folder",
        )
    elif installed != patchbench.__version__:
        report.problem(
            f"patchbench {patchbench.__version__} is imported, and {installed} is installed",
            "pip install it again, or start Python outside of its source folder",
        )
    for wish in unmet("patchbench", without=_NOT_FOR_USERS):
        report.problem(*_told("patchbench", wish))
    for name in _NEIGHBOURS:
        for wish in unmet(name):
            if not wish.extra:  # their extras are for their own purposes
                report.note(*_told(f"{name} {version_of(name)}", wish))
    for first, second, what, remedy in _CONFLICTS:
        if fits(first) and fits(second):
            report.note(what, remedy)


def _told(who: str, wish: Wish) -> tuple[str, str]:
    """Return what is wrong, and what to do about it."""
    has = f"{wish.name} {wish.found} is installed" if wish.found else "that is not installed"
    more = "--no-build-isolation " if wish.extra == "cuda" else ""
    return (
        f"{who} asks for {wish.requirement}, and {has}",
        f'pip install {more}"{wish.requirement}"',
    )


def _first_broken(report: Report) -> str | None:
    """Return the first of `_IMPORTED` that does not import: those after it may fail by it."""
    for name, module in _IMPORTED.items():
        reason = failure(module)
        if reason is None:
            continue
        if version_of(name) is not None or name == "patchbench":  # else it was told already
            report.problem(
                f"{name} {version_of(name) or ''} is there, and cannot be imported ({reason})",
                f"pip install --force-reinstall {name}, or look into that error",
            )
        return name
    return None


def _devices(report: Report) -> None:
    report.devices = found = devices()
    if found["gpus"] or not _DRIVER.exists():
        return
    if found["cuda"] is None:
        report.note(
            f"an NVIDIA driver is there, and torch {version_of('torch')} is built without CUDA",
            "install a build of torch with CUDA, or go on with the CPU",
        )
    elif os.environ.get("CUDA_VISIBLE_DEVICES") != "":  # empty is meant
        report.note(
            f"an NVIDIA driver is there, and torch sees no GPU with CUDA {found['cuda']}",
            "update the driver, or look at CUDA_VISIBLE_DEVICES",
        )


def _kernels(report: Report) -> None:
    report.kernels = kernels()
    gpu = any(device["device"].startswith("cuda") for device in report.devices["gpus"])
    told = set()
    for row in report.kernels:
        if gpu and row["error"] is not None and row["package"] not in told:
            told.add(row["package"])
            report.note(
                f"{row['why']}; PyTorch computes {row['op']} instead, more slowly",
                "install it again, built for this torch: "
                'pip install --no-build-isolation --force-reinstall "patchbench[cuda]"',
            )


def _plugins(report: Report) -> None:
    from patchbench.adapters import HOOK_MAPS, MIXERS
    from patchbench.recipes import RECIPES
    from patchbench.tasks import TASKS

    for registry in (MIXERS, HOOK_MAPS, TASKS, RECIPES):
        with warnings.catch_warnings(action="ignore"):  # they are told here
            points = registry.plugins()
        for point, reason in points:
            package = point.dist.name if point.dist is not None else "a package"
            row = {
                "plugin": f"{registry.kind} {point.name}",
                "target": point.value,
                "package": package,
                "skipped": reason,
            }
            if row in report.plugins:  # one distribution may be found twice
                continue
            report.plugins.append(row)
            if reason is not None:
                report.problem(
                    f"the {registry.kind} {point.name!r} of {package} is skipped ({reason})",
                    f"correct {point.value}, or uninstall {package}",
                )


def _folders(report: Report) -> None:
    report.folders = folders()
    for row in report.folders:
        where = f"{row['folder'] or 'a folder'} for {row['for']}"
        if row["error"] is not None:
            # Models may also lie in a folder that is only read.
            tell = report.note if row["for"] == "models" else report.problem
            tell(
                f"{where} cannot be written ({row['error']})",
                f"set {row['set_by']} to a folder that can",
            )
        elif row["free_gib"] < _LEAST_FREE_GIB:
            report.note(
                f"{where} has {row['free_gib']} GiB left",
                f"make room, or set {row['set_by']} to a folder elsewhere",
            )
