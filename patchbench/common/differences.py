"""What differs between two trees of settings, in words.

Use:

    differences({"task": {"n": 4}}, {"task": {"n": 8}})       # ["task.n: 4 → 8"]
"""

from collections.abc import Mapping
from typing import Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return "name: old → new" for every value that differs, nested names joined by points."""
    before, after = _flat(old), _flat(new)
    return [
        f"{name}: {before.get(name, 'absent')} → {after.get(name, 'absent')}"
        for name in [*before, *(name for name in after if name not in before)]
        if name not in before or name not in after or before[name] != after[name]
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
