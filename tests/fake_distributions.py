"""What an installer leaves of a package, without the package."""

from collections.abc import Iterable, Mapping
from pathlib import Path


def install(
    site: Path,
    name: str,
    version: str = "0.1.0",
    *,
    requires: Iterable[str] = (),
    extras: Iterable[str] = (),
    points: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write the metadata of a distribution into a folder.

    Args:
        site: a folder that is (to be) on `sys.path`.
        name: of the distribution.
        version: as text; "" leaves it out.
        requires: its requirements.
        extras: names of its extras.
        points: entry points by group and name.
    """
    info = site / f"{name.replace('-', '_')}-{version or 0}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}"]
    lines += [f"Version: {version}"] if version else []
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in targets.items())
        for group, targets in (points or {}).items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
