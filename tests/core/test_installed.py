"""What packages ask of each other, by metadata that is written here."""

import pytest

from patchbench.installed import fits, unmet, version_of, wishes
from tests.fake_distributions import install


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_versions(site):
    install(site, "made-up", "1.2+cpu")
    install(site, "half-made", "")
    assert version_of("made-up") == version_of("made_up") == "1.2+cpu"
    assert version_of("half-made") == "unknown"
    assert version_of("never-made") is None


def test_what_is_asked_for_depends_on_extras_and_markers(site):
    install(site, "low", "1.0")
    install(site, "nightly", "3.0.dev1")
    install(
        site,
        "asking",
        extras=("fast", "tests"),
        requires=(
            "low>=1,<2",
            "nightly<4",
            "lacking",
            'old; python_version < "3"',
            'low[more]>=2; extra == "fast"',
            'absent; extra == "fast"',
            'asking[fast]; extra == "tests"',
            'low==7; extra == "tests"',
            "no requirement (at all",
        ),
    )
    asked = {(wish.requirement, wish.extra): wish for wish in wishes("asking", without=["tests"])}
    assert {key: (wish.found, wish.met) for key, wish in asked.items()} == {
        ("low<2,>=1", ""): ("1.0", True),
        ("nightly<4", ""): ("3.0.dev1", True),
        ("lacking", ""): (None, False),
        ("low[more]>=2", "fast"): ("1.0", False),
        ("absent", "fast"): (None, False),
    }
    assert asked["low[more]>=2", "fast"].versions == ">=2"
    # An extra that nobody installed is no fault; one in the wrong version is.
    assert [w.requirement for w in unmet("asking", without=["tests"])] == [
        "lacking",
        "low[more]>=2",
    ]
    assert wishes("never-made") == []


@pytest.mark.parametrize(
    ("version", "met"),
    [("1.3.0", True), ("1.3.0+local", True), ("1.3.1", False), ("1.3.0-of-today", False)],
)
def test_what_fits(site, version, met):
    install(site, "made-up", version)
    assert fits("made-up<=1.3.0") == met
    assert not fits("never-made")
