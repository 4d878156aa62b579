"""Positions and sites as text, and their order."""

import pytest

import patchbench as pb
from patchbench.sites import Position, Site


@pytest.mark.parametrize(
    ("text", "site"),
    [
        ("L0.conv_output@value+1", Site(0, "conv_output", Position("value", 1))),
        ("embed@key", Site(None, "embed", Position("key"))),
        ("L1.head_output[3]@query", Site(1, "head_output", Position("query"), 3)),
        ("L12.B@answer-1", Site(12, "B", Position("answer", -1))),
        ("L0.q[0]@bos", Site(0, "q", Position("bos"), 0)),
    ],
)
def test_text_and_site_are_one_to_one(text, site):
    assert Site.parse(text) == site
    assert str(site) == text


@pytest.mark.parametrize(
    "text",
    ["", "L0.@key", "L.block_input@key", "block_input", "L0.q[]@key", "L0.q[-1]@key", "L-1.q@key",
     "L0.q@value+", "L0.q@value+1.5", "L0.q@3", "L0.q@value + 1", "L0.q@key@key"],
)  # fmt: skip
def test_what_is_not_a_site_is_refused(text):
    with pytest.raises(pb.UserError, match="is not a"):
        Site.parse(text)


@pytest.mark.parametrize("field", ["layer", "head"])
def test_negative_indices_are_refused(field):
    with pytest.raises(pb.UserError, match=field):
        Site(**{"layer": 0, "component": "q", "position": Position("key"), field: -1})


def test_positions_sort_as_in_a_document():
    texts = ["partner", "answer-1", "value+1", "query", "value", "key", "value-1", "bos"]
    expected = ["bos", "key", "value-1", "value", "value+1", "query", "answer-1", "partner"]
    assert [str(p) for p in sorted(map(Position.parse, texts))] == expected


def test_sites_sort_by_layer_number():
    texts = ["L10.q@key", "L2.q[1]@key", "L2.q@key", "embed@key", "L2.q@bos"]
    expected = ["embed@key", "L2.q@bos", "L2.q@key", "L2.q[1]@key", "L10.q@key"]
    assert [str(s) for s in sorted(map(Site.parse, texts))] == expected
    assert len({Site.parse(text) for text in texts * 2}) == len(texts)
