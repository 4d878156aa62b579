"""Any text is a site, an expression, an intervention, or one line that says why not."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, hook_map_for
from patchbench.interventions import SCHEMA, Intervention
from patchbench.site_expressions import MOST, expand, parse
from patchbench.sites import Position, Site, grid_site, single_site
from tests.fuzz.cases import JSON, TEXTS, either, fuzzed, mostly, some_of, told

# Pieces of what is meant, in any order.
PIECES = st.sampled_from(
    ["L", "0", "1", "*", "..", ".", "block_input", "embed", "q", "_", "[", "]", "@", "key", "value",
     "+", "-", "&", "->", " ", "blocks", "hook_resid_pre", "attn.hook_q", "hook_embed", "?", "\n",
     "9" * 5000, "²", "L0.q[1]@value+1", "L*.block_input@key", "blocks.0.hook_resid_pre@key"]
)  # fmt: skip
TEXT = st.one_of(st.lists(PIECES, max_size=9).map("".join), TEXTS, st.text(max_size=20))
LAYER = either(["0", "1", "*", "0..1"], wrong=TEXT)
SITE = st.builds(
    "L{}.{}@{}{}".format,
    LAYER,
    either(["block_input", "q", "q[0]", "q[*]", "*_output", "conv_output", "*"], wrong=TEXT),
    either(["key", "value", "qu*", "*"], wrong=TEXT),
    either(["", "+1", "-1..+1", "+0..2"], wrong=TEXT),
)
EXPRESSION = mostly(
    st.lists(SITE, min_size=1, max_size=3).flatmap(
        lambda sites: st.sampled_from([" & ", " -> "]).map(lambda sign: sign.join(sites))
    ),
    TEXT,
)


@pytest.fixture(scope="module")
def hook_map():
    config = MixerLMConfig(vocab_size=8, hidden_size=8, mixers=["attention", "mamba"], num_heads=2)
    return hook_map_for(MixerLMForCausalLM(config))


@fuzzed(300)
@given(TEXT)
@example("L" + "9" * 5000 + ".q@key")
@example("L0.q[" + "9" * 5000 + "]@key")
@example("blocks." + "9" * 5000 + ".attn.hook_q@key")
def test_positions_and_sites(text):
    for kind in (Position, Site):
        found = told(kind.parse, text)
        if found is not None:
            assert kind.parse(str(found)) == found
    for read in (single_site, grid_site):
        told(read, text)


@fuzzed(300)
@given(st.lists(EXPRESSION, min_size=1, max_size=2))
def test_expressions(hook_map, texts):
    for text in texts:
        told(parse, text)
    patches = told(expand, texts, hook_map, ["key", "value", "query"])
    if patches is not None:
        assert 1 <= len(patches) <= len(texts) * MOST
        for sites, donors in patches:
            assert len(sites) == len(donors)
            assert all((site.layer, site.component) in hook_map.points for site in sites)


FIELDS = {
    "sites": st.lists(either(SITE), min_size=1, max_size=2), "source_sites": st.lists(SITE),
    "corruption": ["key", "swap", "clean"], "direction": ["denoise", "noise"],
    "source": ["counterpart", "self", "shuffled"], "control": TEXTS,
}  # fmt: skip
ODD = st.one_of(JSON.map(json.dumps), st.sampled_from(["[" * 10**5, "9" * 5000, "NaN", ""]))
INTERVENTION = some_of(FIELDS, schema=SCHEMA, sites=["L0.q@key"], corruption="key")


@fuzzed(300)
@given(mostly(INTERVENTION.map(json.dumps), ODD), st.data())
def test_interventions(text, data):
    """Whole ones, and ones that are cut or have a character changed."""
    if text and data.draw(st.integers(0, 3)) == 0:
        place = data.draw(st.integers(0, len(text) - 1))
        text = text[:place] + data.draw(st.text(max_size=2)) + text[place + 1 :]
    found = told(Intervention.from_json, text)
    if found is not None:
        assert Intervention.from_json(found.to_json()) == found
