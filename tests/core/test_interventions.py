"""Interventions: what is base and what is source, and the way to JSON and back."""

import json

import pytest

import patchbench as pb
from patchbench.interventions import Intervention
from patchbench.sites import Site

SITE = Site.parse("L1.block_input@value")


@pytest.mark.parametrize(
    ("direction", "source", "base_run", "source_run", "donor_run"),
    [
        ("denoise", "counterpart", "key", "clean", "clean"),
        ("noise", "counterpart", "clean", "key", "key"),
        ("denoise", "self", "key", "clean", "key"),
        ("noise", "self", "clean", "key", "clean"),
    ],
)
def test_runs(direction, source, base_run, source_run, donor_run):
    made = Intervention(sites=(SITE,), corruption="key", direction=direction, source=source)
    assert (made.base_run, made.source_run, made.donor_run) == (base_run, source_run, donor_run)


@pytest.mark.parametrize(
    "intervention",
    [
        Intervention(sites=(SITE,), corruption="key"),
        Intervention(
            sites=(SITE, Site.parse("L0.q[2]@query-1"), Site.parse("embed@key")),
            corruption="swap",
            direction="noise",
            source="self",
            control="identity",
        ),
        Intervention(
            sites=(SITE, Site.parse("L1.q[1]@query")),
            source_sites=(SITE, Site.parse("L0.q[0]@value")),
            corruption="key",
        ),
    ],
    ids=["plain", "everything", "from elsewhere"],
)
def test_json_round_trip(intervention):
    text = intervention.to_json()
    assert json.loads(text)["schema"] == "patchbench/intervention/1"
    assert Intervention.from_json(text) == intervention
    assert hash(Intervention.from_json(text)) == hash(intervention)


def changed(**changes) -> str:
    data = json.loads(Intervention(sites=(SITE,), corruption="key").to_json()) | changes
    return json.dumps({name: value for name, value in data.items() if value != "absent"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        (changed(schema="patchbench/intervention/2"), "intervention/2"),
        (changed(direktion="noise"), "direction"),
        (changed(sites="absent"), "'sites'"),
        (changed(sites="L0.q@key"), "list of strings"),
        (changed(sites=[]), "no sites"),
        (changed(sites=None), "list of strings"),
        (changed(source_sites="L0.q@key"), "list of strings"),
        (changed(source_sites=["L0.q@key", "L0.q@value"]), "2 source sites for 1"),
        (changed(sites=["L0.q"]), "not a site"),
        (changed(sites=["L0.q@key", "L0.q@key"]), "twice"),
        (changed(direction="denoize"), "denoise"),
        (changed(source="none"), "counterpart"),
        (changed(corruption="clean"), "corruption"),
    ],
)
def test_bad_json_is_one_line(text, says):
    with pytest.raises(pb.UserError, match=says) as caught:
        Intervention.from_json(text)
    assert "\n" not in str(caught.value)


def test_sites_are_their_own_sources_unless_others_are_named():
    plain = Intervention(sites=(SITE,), corruption="key")
    same = Intervention(sites=(SITE,), source_sites=(SITE,), corruption="key")
    other = Intervention(sites=(SITE,), source_sites=(Site.parse("embed@key"),), corruption="key")
    assert plain == same
    assert plain.donors == (SITE,)
    assert plain.label == "L1.block_input@value"
    assert other.donors == (Site.parse("embed@key"),)
    assert other.label == "embed@key -> L1.block_input@value"
    assert other != plain
