"""The effects of one corruption and direction by layer and position, with their resamples.

Use:

    grid = Grid.of(rows, run, num_layers=2, seed=0, resamples=2000)
    grid.boundaries()                                # layer → the sites that enter it
    grid.first_layer("value", default=None)          # Estimate of a layer

What a verdict asks of a site (does it carry more than half?) is asked of an interval, and what is
no single site (a sum, the first layer at which a curve passes a half) of the shared resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from patchbench.effects import differences
from patchbench.sites import Site, grid_site
from patchbench.statistics import Estimate, interval, ratio_draws

HALF = 0.5
# Offsets from the value at which a convolution of width 4, the usual one, reaches it and its key.
CONVOLVED = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The effects of one corruption and direction, with their resamples.

    Attributes:
        sites: single sites (no heads, none from elsewhere), k of them.
        effects: Attrib of each.
        drawn: (resamples, k).
        found: (k,) whether it is told from 0.
        num_layers: of the model.
        metric: of the effects.
        n: examples.
    """

    sites: Sequence[Site]
    effects: Sequence[Estimate]
    drawn: np.ndarray
    found: np.ndarray
    num_layers: int
    metric: str
    n: int

    @classmethod
    def of(
        cls, rows: pa.Table, run: Mapping[str, Any], *, num_layers: int, seed: int, resamples: int
    ) -> "Grid":
        """Return the grid of a summary's run, which is above the gate."""
        which = {"corruption": run["corruption"], "direction": run["direction"]}
        metric = run["primary"]
        q_values = {effect["site"]: effect["q_value"] for effect in run["effects"]}
        names = [name for name in q_values if grid_site(name) is not None]
        _, numerator, denominator = differences(rows, **which, metric=metric, sites=names)
        rng = np.random.default_rng(seed)
        values, drawn, n = ratio_draws(numerator, denominator, rng=rng, resamples=resamples)
        low, high = interval(drawn)
        return cls(
            sites=[Site.parse(name) for name in names],
            effects=[
                Estimate(*map(float, limits), n=int(count))
                for *limits, count in zip(values, low, high, n, strict=True)
            ],
            drawn=drawn,
            found=np.array([q_values[name] <= run["false_discoveries"] for name in names], bool),
            num_layers=num_layers,
            metric=metric,
            n=run["n"],
        )

    def carries(self, index: int) -> bool:
        """Whether more than half is there for sure."""
        return bool(self.effects[index].low > HALF and self.found[index])

    def lacks(self, index: int) -> bool:
        """Whether less than half is there for sure."""
        return self.effects[index].high < HALF

    def boundary(self, index: int) -> int | None:
        """Return the layer whose input the site is; None for the first's and for other sites."""
        site = self.sites[index]
        if site.layer is None or site.component not in ("block_input", "block_output"):
            return None
        layer = site.layer + (site.component == "block_output")
        return layer if 0 < layer < self.num_layers else None

    def boundaries(self) -> dict[int, list[int]]:
        """Return the sites entering each layer but the first."""
        found: dict[int, list[int]] = {}
        for index in range(len(self.sites)):
            layer = self.boundary(index)
            if layer is not None and place(self.sites[index]) != "placebo":
                found.setdefault(layer, []).append(index)
        return dict(sorted(found.items()))

    def together(self, indices: Sequence[int]) -> Estimate:
        """Return the sum of some sites' effects."""
        low, high = interval(self.drawn[:, indices].sum(axis=1, keepdims=True))[:, 0]
        value = sum(self.effects[index].value for index in indices)
        return Estimate(value, float(low), float(high), self.n)

    def first_layer(self, where: str, *, default: int | None) -> Estimate | None:
        """Return the first boundary at which a kind of place carries, over resamples.

        Args:
            where: as `place` says it.
            default: the layer where none does; None if there is none then.
        """
        layers = {b: [i for i in at if place(self.sites[i]) == where] for b, at in self._layers()}
        layers = {layer: at for layer, at in layers.items() if at}
        if not layers:
            return None
        never = np.nan if default is None else default
        value, drawn = never, np.full(len(self.drawn), never)
        for layer in sorted(layers, reverse=True):
            # What has no value carries nothing, and hides nothing that another site carries.
            drawn = np.where((self.drawn[:, layers[layer]] > HALF).any(axis=1), layer, drawn)
            if any(self.effects[index].value > HALF for index in layers[layer]):
                value = layer
        if np.isnan(value) or np.isnan(drawn).mean() > 0.025:
            return None
        low, high = np.nanquantile(drawn, (0.025, 0.975), method="inverted_cdf")
        return Estimate(float(value), float(low), float(high), self.n)

    def _layers(self) -> list[tuple[int, list[int]]]:
        return list(self.boundaries().items())


def unseen_convolutions(grid: Grid, model: Mapping[str, Any]) -> str:
    """Return which of a model's short convolutions could bind unseen; "" if none could.

    Args:
        grid: what was looked at.
        model: its provenance; `components` is read.
    """
    if "conv_output" not in (model.get("components") or ()):
        return ""
    offsets = {
        site.position.offset
        for site in grid.sites
        if site.component == "conv_output" and place(site) == "value"
    }
    if not offsets:
        return "its short convolutions were not looked at"
    if missing := sorted(set(CONVOLVED) - offsets):
        return f"its short convolutions were not looked at @value{missing[0]:+d}".removesuffix("+0")
    return ""


def place(site: Site) -> str:
    """Return what a position is to the association: key, value, query, placebo or other."""
    role, offset = site.position.role, site.position.offset
    if role == "answer":
        return "placebo" if offset >= 0 else "query"
    if role == "query" and offset >= 0:
        return "query"
    if role == "value" and offset >= 0:
        return "value"
    return "key" if (role, offset) == ("key", 0) else "other"
