"""Names to things: filled by a decorator or by entry points, imported only when asked for.

Use:

    TASKS: Registry[type[Task]] = Registry("task", entry_points="patchbench.tasks")
    TASKS.add("ar", "patchbench.tasks.ar:ARTask")      # lazy
    @TASKS.register("my_task")                         # eager
    class MyTask(Task): ...
    TASKS["ar"]
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from patchbench.common.errors import UserError, near_names

T = TypeVar("T")


class Registry(Generic[T]):
    """A mapping from name to object whose targets may be "module:attribute" strings.

    Args:
        kind: what is registered, for messages ("task", "mixer").
        entry_points: entry-point group through which other packages add names. An entry point
            that fails to load is skipped with a warning.
    """

    def __init__(self, kind: str, *, entry_points: str | None = None) -> None:
        self.kind = kind
        self._group = entry_points
        self._targets: dict[str, T | str] = {}
        self._scanned = entry_points is None

    def add(self, name: str, target: T | str) -> None:
        """Register `target` (an object, or "module:attribute" to import on first use).

        Raises:
            UserError: the name stands for something else already.
        """
        if name in self._targets and self._targets[name] != target:
            raise UserError(f"{self.kind} {name!r} is registered twice", "choose another name")
        self._targets[name] = target

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate an object to register it under `name`."""

        def decorate(target: T) -> T:
            self.add(name, target)
            return target

        return decorate

    def _scan(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        for point in entry_points(group=self._group or ""):
            try:
                target = point.load()
                if point.name not in self._targets:
                    self.add(point.name, target)
            except Exception as error:
                warnings.warn(
                    f"plugin {point.value!r} ({self.kind} {point.name!r}) is skipped: "
                    f"{type(error).__name__}: {error}",
                    stacklevel=3,
                )

    def __getitem__(self, name: str) -> T:
        self._scan()
        if name not in self._targets:
            raise UserError(f"unknown {self.kind} {name!r}", near_names(name, self._targets))
        target = self._targets[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = cast(T, getattr(importlib.import_module(module), attribute))
            self._targets[name] = target
        return target

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._targets

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._targets))

    def __len__(self) -> int:
        self._scan()
        return len(self._targets)
