"""Finished runs by folder, parent folder or glob, under the shortest names that tell them apart.

Use:

    find_results(["runs/*", "sweep/"])         # {"a": Path("runs/a"), …}
    load_results(["runs/*", "sweep/"])         # {"a": Result, …}
"""

import glob
from collections.abc import Sequence
from pathlib import Path

from patchbench.common import UserError
from patchbench.result_file import DEV, JSON_FILE, UNTRAINED
from patchbench.results import Result

_BEFORE, _TRAINING = "before", "training.json"  # see `patchbench.training.folder`


def find_results(patterns: Sequence[str]) -> dict[str, Path]:
    """Return the folders of Results by name, in the order given.

    Args:
        patterns: folders of Results, folders that hold some at any depth (a sweep's, a training
            run's), or globs of either. Results beside another one, as of the weights before a
            training, are found by their own folder's name alone.

    Raises:
        UserError: one of them matches nothing, or holds no Result.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        named = Path(pattern).exists()
        places = [Path(pattern)] if named else sorted(map(Path, glob.glob(pattern, recursive=True)))
        if not places:
            raise UserError(f"{pattern} matches no folder", "name the folder of a Result")
        held = [folder for place in places for folder in _held(place, named=named)]
        if not held:
            raise UserError(
                f"{pattern} holds no Result, no {JSON_FILE} in or below it",
                "name a folder that was somebody's --out",
            )
        for folder in held:  # once, by whatever name
            found.setdefault(folder.resolve(), folder)
    return dict(zip(_short_names(list(found.values())), found.values(), strict=True))


def _held(place: Path, *, named: bool) -> list[Path]:
    """Return the folders of Results at or below a place; those beside another only by name."""
    if place.name == JSON_FILE and place.is_file():
        place = place.parent
    files = [place / JSON_FILE] if (place / JSON_FILE).is_file() else sorted(place.rglob(JSON_FILE))
    # What a run keeps beside itself while it is written is no Result.
    return [
        file.parent
        for file in files
        if not any(part.startswith(".") for part in file.relative_to(place).parts)
        and ((named and file.parent == place) or not _beside(file.parent))
    ]


def _beside(folder: Path) -> bool:
    """Return whether a Result is what another one is read against."""
    of = _TRAINING if folder.name == _BEFORE else JSON_FILE
    return folder.name in (DEV, UNTRAINED, _BEFORE) and (folder.parent / of).is_file()


def load_results(patterns: Sequence[str]) -> dict[str, Result]:
    """Load what `find_results` finds.

    Raises:
        UserError: see there; or one is damaged or of another schema.
    """
    return {name: Result.load(path) for name, path in find_results(patterns).items()}


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths without the folders that they share, and without a training run's last."""
    parts = [
        path.parts[:-1] if path.name == "result" and len(path.parts) > 1 else path.parts
        for path in paths
    ]
    shared = 0
    shortest = min(map(len, parts), default=1)
    while shared < shortest - 1 and len({p[shared] for p in parts}) == 1:
        shared += 1
    names = ["/".join(p[shared:]) for p in parts]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
