"""Globs, ranges and combinations of sites, against lists written by hand."""

import pytest

import patchbench as pb
from patchbench.interventions import Intervention
from patchbench.site_expressions import expand
from tests.tiny_models import tiny

ROLES = ("bos", "key", "value", "divider", "query", "answer")


@pytest.fixture(scope="module")
def hook_map():
    return pb.load_model(tiny("gpt2")).hook_map


def labels(expressions, hook_map):
    return [
        Intervention(sites=sites, source_sites=donors, corruption="key").label
        for sites, donors in expand(expressions, hook_map, ROLES)
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("embed@key", ["embed@key"]),
        ("L1.block_input@value-1", ["L1.block_input@value-1"]),
        ("L*.mlp_output@value", ["L0.mlp_output@value", "L1.mlp_output@value"]),
        ("L0..1.mlp_output@key", ["L0.mlp_output@key", "L1.mlp_output@key"]),
        (
            "L0.block_input@value-1..+1",
            [f"L0.block_input@value{o}" for o in ("-1", "", "+1")],
        ),
        ("L1.mlp_*@key", ["L1.mlp_input@key", "L1.mlp_output@key"]),
        (
            "L0.mlp_input@*er*",
            ["L0.mlp_input@divider", "L0.mlp_input@query", "L0.mlp_input@answer"],
        ),
        (
            "L*.mlp_input@key & L*.mlp_output@query",
            [f"L{n}.mlp_input@key & L{n}.mlp_output@query" for n in (0, 1)],
        ),
        (
            "L0..1.mlp_input@key & L0..1.mlp_output@query",
            [f"L{m}.mlp_input@key & L{n}.mlp_output@query" for m in (0, 1) for n in (0, 1)],
        ),
        (
            "L0.block_output@key -> L*.block_input@query",
            [f"L0.block_output@key -> L{n}.block_input@query" for n in (0, 1)],
        ),
        (
            "L0.mlp_input@query & L*.block_input@key -> L*.block_input@value",
            [
                f"L0.mlp_input@query & L{n}.block_input@key -> L{n}.block_input@value"
                for n in (0, 1)
            ],
        ),
        # Both are one pair, and no site is patched together with itself.
        (
            "L0..1.mlp_input@key & L0..1.mlp_input@key",
            ["L0.mlp_input@key & L1.mlp_input@key"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_expression_is_a_list_of_patches(expression, expected, hook_map):
    assert labels([expression], hook_map) == expected


def test_what_several_expressions_share_is_patched_once(hook_map):
    found = labels(["L*.mlp_input@key", "L0..1.mlp_input@key", "embed@key"], hook_map)
    assert found == ["L0.mlp_input@key", "L1.mlp_input@key", "embed@key"]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("L*.mlp_outptu@key", "the model has no component 'mlp_outptu'.*'mlp_output'"),
        ("mlp_output@key", "outside its layers.*embed"),
        ("L0.zz*@key", "no component 'zz"),
        ("L0..2.mlp_output@key", "layer 2 does not exist.*layers 0–1"),
        ("L0.mlp_output@vlaue+1", "no role 'vlaue'.*did you mean 'value'"),
        ("L0.mlp_output@value+2..1", "counts down"),
        ("L1..0.mlp_output@value", "counts down.*0..1"),
        ("L0.mlp_output[0]@value", "has no heads"),
        ("L0.mlp_output", "is not a site"),
        ("", "is not a site"),
        ("L0.q@key & ", "is not a site"),
        ("embed@key -> embed@value -> embed@query", "two arrows"),
        ("embed@key & embed@key", "matches nothing"),
        ("L0.mlp_output@value+0..9999999", "is not a site|too long"),
    ],
)
def test_what_matches_nothing_is_named_in_one_line(expression, says, hook_map):
    with pytest.raises(pb.UserError, match=says) as error:
        expand([expression], hook_map, ROLES)
    assert "\n" not in str(error.value)


def test_heads_are_patched_one_by_one():
    model = pb.load_model("patchbench/ar-attention", device="cpu")
    with_heads = [name for (at, name), p in model.hook_map.points.items() if p.heads and at == 0]
    name = with_heads[0]
    count = model.hook_map.points[0, name].heads
    assert labels([f"L0.{name}[*]@key"], model.hook_map) == [
        f"L0.{name}[{head}]@key" for head in range(count)
    ]
    with pytest.raises(pb.UserError, match=f"the heads are 0–{count - 1}"):
        expand([f"L0.{name}[{count}]@key"], model.hook_map, ROLES)
