"""Where to intervene: a layer's component at a named position, and optionally one of its heads.

Use:

    Site.parse("L0.conv_output@value+1")      # layer 0, one token after the value
    Site.parse("embed@key")                   # a component outside the layers
    Site.parse("blocks.3.hook_resid_pre@key") # TransformerLens' name of L3.block_input
    str(Site.parse("L1.head_output[3]@query"))

A position is a role of the example with an offset, never a bare index: roles stay right when
examples differ, and an offset reaches the tokens that no role names (Mamba binds at `value+1`).
"""

import re
from dataclasses import dataclass
from functools import total_ordering

from patchbench.common import UserError
from patchbench.foreign_sites import as_site

# In the order in which a document has them; other roles (a task's own) sort behind.
ROLES = ("bos", "key", "value", "divider", "query", "answer")

_POSITION = re.compile(r"(?P<role>[A-Za-z_][A-Za-z0-9_]*)(?P<offset>[+-]\d{1,9})?")
_SITE = re.compile(
    r"(?:L(?P<layer>\d{1,6})\.)?(?P<component>[A-Za-z_][A-Za-z0-9_]*)(?:\[(?P<head>\d{1,6})\])?"
    r"@(?P<position>.+)"
)


@total_ordering
@dataclass(frozen=True)
class Position:
    """A token of an example: a role, and how many tokens behind (+) or before (−) it."""

    role: str
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Read "value", "value+1" or "answer-1".

        Raises:
            UserError: `text` is not a position.
        """
        match = _POSITION.fullmatch(text.strip())
        if match is None:
            raise UserError(f"{text!r} is not a position", "a role and an offset, as in 'value+1'")
        return cls(match["role"], int(match["offset"] or 0))

    def __str__(self) -> str:
        return f"{self.role}{self.offset:+d}" if self.offset else self.role

    def __lt__(self, other: "Position") -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[int, str, int]:
        known = ROLES.index(self.role) if self.role in ROLES else len(ROLES)
        return known, self.role, self.offset


@total_ordering
@dataclass(frozen=True)
class Site:
    """One place in a model's computation.

    Attributes:
        layer: index of the block, or None for a component outside the blocks (`embed`).
        component: a component word, which a HookMap gives a module.
        position: where in the sequence.
        head: restricts the site to this head's slice of the features.
    """

    layer: int | None
    component: str
    position: Position
    head: int | None = None

    def __post_init__(self) -> None:
        for name in ("layer", "head"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"{name}={value} of a site", f"a {name} counts from 0")

    @classmethod
    def parse(cls, text: str) -> "Site":
        """Read "L0.conv_output@value+1", "embed@key" or "L1.head_output[3]@query".

        Raises:
            UserError: `text` is not a site.
        """
        match = _SITE.fullmatch(as_site(text))
        if match is None:
            raise UserError(
                f"{text!r} is not a site", "layer, component and position, as in 'L0.q[1]@value+1'"
            )
        layer, head = match["layer"], match["head"]
        return cls(
            None if layer is None else int(layer),
            match["component"],
            Position.parse(match["position"]),
            None if head is None else int(head),
        )

    def __str__(self) -> str:
        layer = "" if self.layer is None else f"L{self.layer}."
        head = "" if self.head is None else f"[{self.head}]"
        return f"{layer}{self.component}{head}@{self.position}"

    def __lt__(self, other: "Site") -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[int, str, int, Position]:
        return (
            -1 if self.layer is None else self.layer,
            self.component,
            -1 if self.head is None else self.head,
            self.position,
        )


def single_site(name: str) -> Site | None:
    """Return the site that an intervention is named after, if it is one site's own activation.

    Args:
        name: as in the rows' `site`: "L1.q@value", "L1.q@value & L1.k@value", "L0.q@key -> …".
    """
    return None if {"&", "->"} & set(name.split()) else Site.parse(name)


def grid_site(name: str) -> Site | None:
    """Return the site that has a place in a grid of layers and positions: single, no head's."""
    site = single_site(name)
    return None if site is None or site.head is not None else site
