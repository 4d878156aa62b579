"""Recipes: experiments as Python functions that return frozen configs.

Use:

    sweep = RECIPES["paper_ar"](scale="mini", seeds=(0, 1, 2))        # a SweepConfig
    list_recipes()                                                    # one line each

    @RECIPES.register("mine")
    def mine(*, scale="mini", seeds=(0,), **choice) -> SweepConfig: ...

Another package adds recipes by entry points of the group `patchbench.recipes`; `patchbench sweep`
runs them all.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from patchbench.common import Registry
from patchbench.recipes.config import RunConfig, SweepConfig

__all__ = ["RECIPES", "Recipe", "RunConfig", "SweepConfig", "list_recipes"]

Recipe = Callable[..., SweepConfig]

RECIPES: Registry[Recipe] = Registry("recipe", entry_points="patchbench.recipes")
for _name in (
    *("paper_ar", "paper_ar_conv", "paper_ar_layers"),
    *("paper_atr_easy", "paper_atr_medium", "paper_atr_large_vocab", "paper_atr_noconv"),
    *("paper_held_out", "paper_sibling"),
):
    RECIPES.add(_name, f"patchbench.recipes.paper:{_name}")


@dataclass(frozen=True)
class RecipeInfo:
    """A recipe's name and one line on what it is."""

    name: str
    description: str


def list_recipes() -> list[RecipeInfo]:
    """Return every recipe, by name."""
    return [
        RecipeInfo(name, (inspect.getdoc(RECIPES[name]) or "").partition("\n")[0])
        for name in RECIPES
    ]
