"""A patch at any place of any tabled family is that of a hook by hand; the README's table is true.

Which module a place is, the tests of families prove by the block's arithmetic; here the engine is
compared with single documents and hooks that share nothing with it.
"""

from dataclasses import replace

import pytest

import patchbench as pb
from patchbench.adapters.families import FAMILIES
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.families_table import table, written
from tests.core.batches import patched_logits, random_batch
from tests.tiny_models import tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_every_place_is_patched_as_by_hand(family):
    model = tiny(family)
    loaded = pb.load_model(model, device="cpu")
    batch = random_batch(size=2)
    batch = replace(batch, corrupted={"key": (batch.clean + 1) % 64})
    points = {  # the inner places of twins have tests of their own
        Site(layer, name, Site.parse("embed@value").position): point
        for (layer, name), point in loaded.hook_map.points.items()
        if ".hook_points." not in point.path
    }
    plan = [Intervention(sites=(site,), corruption="key") for site in points]
    rows = {
        row["site"]: row
        for row in ENGINES["native"]().run(loaded, plan, batch).to_pylist()
        if row["example"] == 101
    }
    assert len(rows) == len(points)
    for site, point in points.items():
        logits = patched_logits(
            model,
            model.get_submodule(point.path),
            point.io,
            batch.corrupted["key"][1],
            batch.clean[1],
            int(batch.positions["value"][1]),
        )[-2]
        wanted = float(logits[batch.answer[1]])
        assert rows[str(site)]["logit_patched"] == pytest.approx(wanted, abs=5e-5, rel=1e-5), site


def test_the_table_of_families_is_what_the_models_have():
    assert written() == table()


def test_a_family_outside_of_the_table_goes_through_inspection_and_says_so():
    hook_map = pb.load_model(tiny("biogpt"), device="cpu").hook_map
    assert hook_map.origin == "inspection"
    assert "biogpt is in no table; found by inspection" in hook_map.notes[0]
