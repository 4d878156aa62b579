"""What is installed, and whether its versions are those that packages ask for.

Everything comes from the metadata that installers write; nothing is imported.

Use:

    version_of("torch")                    # "2.13.0+cpu", or None
    for wish in unmet("patchbench"):       # what it asks for and does not get
        print(wish.requirement, wish.found, wish.extra)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What one package asks of another.

    Attributes:
        requirement: without its marker, as pip takes it: "torch<2.14,>=2.6".
        name: of the package that is asked for.
        versions: which of its versions will do: "<2.14,>=2.6".
        extra: for which it is asked; "" for what is always needed.
        found: its installed version, or None.
        met: whether that version will do.
    """

    requirement: str
    name: str
    versions: str
    extra: str
    found: str | None
    met: bool


def version_of(name: str) -> str | None:
    """Return the version of an installed package; "unknown" where its metadata is damaged."""
    try:
        return distribution(name).metadata["Version"] or "unknown"
    except PackageNotFoundError:
        return None
    except KeyError:
        return "unknown"


def wishes(name: str, *, without: Sequence[str] = ()) -> list[Wish]:
    """Return what an installed package asks for, extras included.

    Args:
        name: of the package; one that is not installed asks for nothing.
        without: extras that are left out.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return []
    extras = [e for e in found.metadata.get_all("Provides-Extra") or () if e not in without]
    made = []
    for text in found.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # a form that only older installers knew
            continue
        extra = _extra_of(requirement, extras)
        if extra is None or requirement.name == name:  # its own extras, under another name
            continue
        made.append(_wish(requirement, extra))
    return made


def unmet(name: str, *, without: Sequence[str] = ()) -> list[Wish]:
    """Return those of `wishes` that are not met; of an extra, what is not installed is no fault."""
    found = wishes(name, without=without)
    return [wish for wish in found if not wish.met and (wish.found is not None or not wish.extra)]


def fits(requirement: str) -> bool:
    """Return whether a package is installed in a version that a requirement allows."""
    return _wish(Requirement(requirement), "").met


def _extra_of(requirement: Requirement, extras: Sequence[str]) -> str | None:
    """Return the extra that asks for it, "" for what is always needed, None for neither."""
    marker = requirement.marker
    if marker is None:
        return ""
    return next((e for e in ("", *extras) if marker.evaluate({"extra": e})), None)


def _wish(requirement: Requirement, extra: str) -> Wish:
    found = version_of(requirement.name)
    try:
        # A pre-release that somebody installed is what there is.
        met = found is not None and requirement.specifier.contains(found, prereleases=True)
    except InvalidVersion:
        met = False
    brackets = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return Wish(
        requirement=f"{requirement.name}{brackets}{requirement.specifier}",
        name=requirement.name,
        versions=str(requirement.specifier),
        extra=extra,
        found=found,
        met=met,
    )
