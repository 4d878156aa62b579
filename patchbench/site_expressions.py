"""Many sites in a few words: globs, ranges, sites patched together or from elsewhere.

Use:

    for sites, donors in expand(["L*.conv_output@value+0..2"], hook_map, roles): ...

| written                                    | means                                        |
|--------------------------------------------|----------------------------------------------|
| `L*.conv_output@value+0..2`                | every layer that has it, at three positions  |
| `L0..2.*_output@key`                       | a range of layers, every such component      |
| `L1.q[*]@query`                            | each head on its own                         |
| `L0.block_input@key & L0.q@query`          | both in one forward                          |
| `L0.block_output@key -> L1.block_input@query` | the first's activation put at the second  |
| `blocks.*.hook_resid_pre@value`            | TransformerLens' name of `L*.block_input`    |

`L*` is the same layer wherever it stands in an expression; every other glob and range is free, so
that two of them give all combinations.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING

from patchbench.common import UserError, near_names
from patchbench.foreign_sites import as_site
from patchbench.sites import Position, Site

if TYPE_CHECKING:
    from patchbench.adapters.hook_map import HookMap

# Sites patched together, and where their activations come from.
Patch = tuple[tuple[Site, ...], tuple[Site, ...]]

# More interventions than anybody waits for: an expression with too many free ranges.
MOST = 100_000
_NAME = r"[A-Za-z_*?][A-Za-z0-9_*?]*"
_PATTERN = re.compile(
    r"(?:L(?P<layer>\*|\d{1,6}(?:\.\.\d{1,6})?)\.)?"
    rf"(?P<component>{_NAME})(?:\[(?P<head>\*|\d{{1,6}}(?:\.\.\d{{1,6}})?)\])?"
    rf"@(?P<role>{_NAME})(?P<offset>[+-]\d{{1,6}}(?:\.\.[+-]?\d{{1,6}})?)?"
)


def expand(expressions: Sequence[str], hook_map: "HookMap", roles: Sequence[str]) -> list[Patch]:
    """Return what the expressions stand for, each patch once.

    Args:
        expressions: see above.
        hook_map: of the model.
        roles: of the task.

    Raises:
        UserError: one cannot be read, or it or a part of it matches nothing.
    """
    found: dict[frozenset[tuple[Site, Site]], Patch] = {}
    for text in expressions:
        before = len(found)
        some = False
        for patch in _expand(text, hook_map, roles):
            some = True
            found.setdefault(frozenset(zip(*patch, strict=True)), patch)
            if len(found) - before > MOST:
                raise UserError(f"{text!r} is more than {MOST:,} patches", "narrow its ranges")
        if not some:
            raise UserError(
                f"{text!r} matches nothing: its parts never exist together",
                "`L*` is one layer throughout an expression",
            )
    return list(found.values())


def parse(text: str) -> "list[tuple[_Pattern, _Pattern]]":
    """Return the (patched, donor) patterns of an expression.

    Raises:
        UserError: it is not one.
    """
    pairs = []
    for part in text.split("&"):
        ends = [_Pattern.parse(end, text) for end in part.split("->")]
        if len(ends) > 2:
            raise UserError(f"{text!r} has two arrows in one part", "write 'source -> site'")
        pairs.append((ends[-1], ends[0]))
    return pairs


@dataclass(frozen=True)
class _Pattern:
    text: str
    layer: str | None
    component: str
    head: str | None
    role: str
    offsets: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, whole: str) -> "_Pattern":
        text = as_site(text)
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise UserError(
                f"{text!r} in {whole!r} is not a site", "for example 'L*.conv_output@value+0..2'"
            )
        offsets = _span(match["offset"] or "0", text)
        for name in ("layer", "head"):
            if match[name] not in (None, "*"):
                _span(match[name], text)
        return cls(text, match["layer"], match["component"], match["head"], match["role"], offsets)

    def sites(self, hook_map: "HookMap", roles: Sequence[str]) -> list[Site]:
        """Return the sites that it matches, in the order of the model.

        Raises:
            UserError: there are none.
        """
        named = [role for role in roles if fnmatchcase(role, self.role)]
        if not named:
            raise UserError(
                f"{self.text!r}: no role {self.role!r} in this task", near_names(self.role, roles)
            )
        places = [Position(role, offset) for role in named for offset in self.offsets]
        return [
            Site(layer, component, place, head)
            for layer, component in self._points(hook_map)
            for head in self._heads(hook_map, layer, component)
            for place in places
        ]

    def _points(self, hook_map: "HookMap") -> list[tuple[int | None, str]]:
        layers: Sequence[int | None] = [None]
        if self.layer == "*":
            layers = range(hook_map.num_layers)
        elif self.layer is not None:
            layers = _span(self.layer, self.text)
            if layers[-1] >= hook_map.num_layers:
                raise UserError(
                    f"{self.text!r}: layer {layers[-1]} does not exist",
                    f"the model has layers 0–{hook_map.num_layers - 1}",
                )
        there = [(layer, name) for layer in layers for name in hook_map.components(layer)]
        points = [point for point in there if fnmatchcase(point[1], self.component)]
        if not points:
            where = "outside its layers" if self.layer is None else f"in L{self.layer}"
            raise UserError(
                f"{self.text!r}: the model has no component {self.component!r} {where}",
                near_names(self.component, {name for _, name in there}),
            )
        if self.head is None:
            return points
        with_heads = [point for point in points if hook_map.points[point].heads is not None]
        if not with_heads:
            known = {name for (_, name), p in hook_map.points.items() if p.heads is not None}
            raise UserError(
                f"{self.text!r}: {self.component} has no heads",
                f"leave out [{self.head}]" + (f", or take {min(known)}" if known else ""),
            )
        return with_heads

    def _heads(
        self, hook_map: "HookMap", layer: int | None, component: str
    ) -> Sequence[int | None]:
        if self.head is None:
            return [None]
        count = hook_map.points[layer, component].heads or 0
        if self.head == "*":
            return range(count)
        heads = _span(self.head, self.text)
        if heads[-1] >= count:
            raise UserError(
                f"{self.text!r}: no head {heads[-1]} in layer {layer}",
                f"the heads are 0–{count - 1}",
            )
        return heads


def _expand(text: str, hook_map: "HookMap", roles: Sequence[str]) -> Iterator[Patch]:
    pairs = parse(text)
    patterns = [pattern for pair in pairs for pattern in dict.fromkeys(pair)]
    matched = {pattern: pattern.sites(hook_map, roles) for pattern in patterns}
    same_layer = any(pattern.layer == "*" for pattern in patterns)
    for layer in range(hook_map.num_layers) if same_layer else (None,):
        choices = []
        for pattern in patterns:
            starred = pattern.layer == "*"
            choices.append([s for s in matched[pattern] if not starred or s.layer == layer])
        for combination in product(*choices):
            rest = iter(combination)
            sites, donors = [], []
            for site, donor in pairs:
                first = next(rest)
                sites.append(first)
                donors.append(first if donor == site else next(rest))
            if len(set(sites)) == len(sites):
                yield tuple(sites), tuple(donors)


def _span(text: str, whole: str) -> tuple[int, ...]:
    """Return the integers of "2", "0..3" or "-1..+1".

    Raises:
        UserError: it counts down.
    """
    first, _, last = text.partition("..")
    low = int(first)
    high = int(last) if last else low
    if high < low:
        raise UserError(f"{text!r} in {whole!r} counts down", f"write {high}..{low}")
    if high - low > MOST:
        raise UserError(f"{text!r} in {whole!r} is too long", f"at most {MOST:,} are possible")
    return tuple(range(low, high + 1))
