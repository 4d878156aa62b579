"""TransformerLens' and pyvene's names mean the places that they mean there."""

import pytest
import pyvene as pv

import patchbench as pb
from patchbench.adapters import hook_map_for
from patchbench.foreign_sites import as_expression
from patchbench.interventions import Intervention
from patchbench.site_expressions import expand
from patchbench.sites import Site
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def hook_map():
    return hook_map_for(tiny("llama", layers=4))


@pytest.mark.parametrize(
    ("lens", "ours"),
    [
        ("blocks.3.hook_resid_pre@value", "L3.block_input@value"),
        ("blocks.0.hook_resid_post@value+1", "L0.block_output@value+1"),
        ("blocks.1.hook_attn_out@query", "L1.mixer_output@query"),
        ("blocks.12.hook_mlp_out@key", "L12.mlp_output@key"),
        ("blocks.2.attn.hook_z[1]@query", "L2.head_output[1]@query"),
        ("blocks.2.attn.hook_q@query", "L2.q@query"),
        ("hook_embed@key", "embed@key"),
    ],
)
def test_hook_names_of_transformer_lens(lens, ours):
    assert Site.parse(lens) == Site.parse(ours)
    assert str(Site.parse(lens)) == ours


def test_they_stand_in_expressions(hook_map):
    roles = ["key", "value", "query"]
    for lens, ours in (
        ("blocks.*.hook_resid_pre@value+0..1", "L*.block_input@value+0..1"),
        ("blocks.0..1.attn.hook_z[*]@query", "L0..1.head_output[*]@query"),
        (
            "blocks.0.hook_resid_post@key -> blocks.1.hook_resid_pre@query & hook_embed@key",
            "L0.block_output@key -> L1.block_input@query & embed@key",
        ),
    ):
        assert expand([lens], hook_map, roles) == expand([ours], hook_map, roles)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blocks.0.hook_resid_mid@key", "'hook_resid_mid' of TransformerLens .* no component here"),
        ("blocks.0.attn.hook_zz@key", "did you mean 'attn.hook_z'"),
        ("blocks.0.hook_resid_pre", "is not a site"),
    ],
)
def test_hooks_without_a_component(text, message):
    with pytest.raises(pb.UserError, match=message):
        Site.parse(text)


@pytest.mark.parametrize(
    "sites",
    [
        ["L1.block_input@value"],
        ["L0.mixer_output@key", "L2.mlp_output@query"],
        ["embed@key"],
        ["L1.head_output[2]@value", "L1.head_output@key"],
    ],
    ids=" & ".join,
)
def test_a_config_that_we_make_for_pyvene_comes_back(hook_map, sites):
    parsed = tuple(map(Site.parse, sites))
    config = Intervention(sites=parsed, corruption="key").to_pyvene(
        hook_map, tiny("llama", layers=4)
    )
    positions = [str(site.position) for site in parsed]
    assert as_expression(config, hook_map, positions) == " & ".join(sites)


def test_a_config_of_their_own():
    hook_map = hook_map_for(tiny("gpt2"))
    config = pv.IntervenableConfig(
        [
            {"layer": 1, "component": "block_output", "unit": "pos"},
            {"layer": 0, "component": "mlp_output"},
            {"component": "transformer.h[1].attn.output"},
        ]
    )
    expression = as_expression(config, hook_map, ["value"])
    assert expression == "L1.block_output@value & L0.mlp_output@value & L1.mixer_output@value"
    with pytest.raises(pb.UserError, match="2 positions for 3 representations"):
        as_expression(config, hook_map, ["value", "key"])
    unknown = pv.IntervenableConfig([{"layer": 9, "component": "block_output"}])
    with pytest.raises(pb.UserError, match="'block_output' in layer 9 is no site here"):
        as_expression(unknown, hook_map, ["value"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intervention_type": pv.ZeroIntervention}, "ZeroIntervention is no interchange"),
        ({"intervention": pv.AdditionIntervention(embed_dim=8)}, "AdditionIntervention is no"),
        ({"unit": "h.pos"}, "unit 'h.pos' is no whole position"),
        ({"subspace_partition": [[0, 4], [4, 8]]}, "is no whole position"),
    ],
    ids=["zero", "addition", "heads", "part"],
)
def test_what_is_no_interchange_of_whole_positions_is_refused(change, message):
    hook_map = hook_map_for(tiny("gpt2"))
    config = pv.IntervenableConfig([{"layer": 1, "component": "block_output", **change}])
    with pytest.raises(pb.UserError, match=message):
        as_expression(config, hook_map, ["value"])


def test_one_type_for_all_is_looked_at_too():
    hook_map = hook_map_for(tiny("gpt2"))
    places = [{"layer": 1, "component": "block_output"}]
    config = pv.IntervenableConfig(places, intervention_types=pv.ZeroIntervention)
    with pytest.raises(pb.UserError, match="ZeroIntervention is no interchange"):
        as_expression(config, hook_map, ["value"])


def test_an_evaluation_takes_both():
    task = pb.load_task("ar/tiny")
    model = tiny("gpt2", vocab=task.vocab_size)
    config = pv.IntervenableConfig([{"layer": 1, "component": "block_input"}])
    theirs = as_expression(config, hook_map_for(model), ["value"])
    settings = {"n": 4, "selfcheck": False}
    lens = pb.evaluate(model, task, sites=["blocks.1.hook_resid_pre@value"], **settings)
    ours = pb.evaluate(model, task, sites=["L1.block_input@value"], **settings)
    assert lens.rows.equals(ours.rows)
    assert pb.evaluate(model, task, sites=[theirs], **settings).rows.equals(ours.rows)
