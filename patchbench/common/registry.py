"""Names to things: filled by a decorator or by entry points, imported only when asked for.

Use:

    TASKS: Registry[type[Task]] = Registry("task", entry_points="patchbench.tasks")
    TASKS.add("ar", "patchbench.tasks.ar:ARTask")      # lazy
    @TASKS.register("my_task")                         # eager
    class MyTask(Task): ...
    TASKS["ar"]
"""

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, cast

from patchbench.common.errors import UserError, near_names

T = TypeVar("T")
# A name is typed in lists and before "/variant": "a,b" could never be asked for.
_NAME = re.compile(r"\w[\w.+-]*")


class PluginWarning(UserWarning):
    """Another package's entry point is skipped; the message says which and why."""


class Registry(Generic[T]):
    """A mapping from name to object whose targets may be "module:attribute" strings.

    Args:
        kind: what is registered, for messages ("task", "mixer").
        entry_points: entry-point group through which other packages add names. An entry point
            that fails to load, or is no such thing, is skipped with a warning.
        refuse: what is wrong with an object that another package registers, or None.
    """

    def __init__(
        self,
        kind: str,
        *,
        entry_points: str | None = None,
        refuse: Callable[[object], str | None] = lambda target: None,
    ) -> None:
        self.kind, self._refuse = kind, refuse
        self._group = entry_points
        self._targets: dict[str, T | str] = {}
        self._scanned = entry_points is None
        self._plugins: list[tuple[EntryPoint, str | None]] = []

    def __repr__(self) -> str:
        # Without other packages: to look at a registry imports nothing.
        return f"Registry({self.kind!r}: {', '.join(sorted(self._targets))})"

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
                reason = self._add_plugin(point)
            except (Exception, SystemExit) as error:  # whatever a module does while it is imported
                reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._plugins.append((point, reason))
            if reason is not None:
                warnings.warn(
                    f"plugin {point.value!r} ({self.kind} {point.name!r}) is skipped: {reason}",
                    PluginWarning,
                    stacklevel=3,
                )

    def _add_plugin(self, point: EntryPoint) -> str | None:
        """Register what an entry point gives, or return what is wrong with it."""
        if not _NAME.fullmatch(point.name):
            return "a name has letters, digits and _ . + - only"
        target = point.load()
        if (reason := self._refuse(target)) is not None:
            return reason
        # One distribution may be found twice; its second finding is the same object.
        if self._targets.setdefault(point.name, target) is not target:
            return "the name is taken"
        return None

    def plugins(self) -> list[tuple[EntryPoint, str | None]]:
        """Return the entry points of other packages, each with why it is skipped, or None."""
        self._scan()
        return list(self._plugins)

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
