"""Names to things: lazy, with near names, and safe from broken plugins."""

import sys
from types import SimpleNamespace

import pytest

from patchbench.common import Registry, UserError
from patchbench.common import registry as module


def point(name, load):
    return SimpleNamespace(name=name, value=f"package:{name}", load=load)


def broken():
    raise ImportError("no module named theirs")


@pytest.fixture
def plugins(monkeypatch):
    """Three entry points: one good, one broken, one with a name that is taken."""
    points = [point("theirs", lambda: 3), point("broken", broken), point("own", lambda: "stolen")]
    monkeypatch.setattr(
        module, "entry_points", lambda group: points if group == "patchbench.things" else []
    )


def test_a_target_is_imported_when_it_is_asked_for():
    things = Registry("thing")
    sys.modules.pop("colorsys", None)
    things.add("lazy", "colorsys:rgb_to_hsv")
    assert "lazy" in things
    assert list(things) == ["lazy"]
    assert "colorsys" not in sys.modules
    assert things["lazy"](0, 0, 0) == (0, 0, 0)


def test_the_decorator_returns_what_it_registers():
    things = Registry("thing")

    @things.register("mine")
    class Mine:
        pass

    assert things["mine"] is Mine
    assert len(things) == 1


def test_unknown_and_double_names():
    things = Registry("thing")
    things.add("mamba", 1)
    things.add("mamba", 1)  # the same again is no mistake
    with pytest.raises(UserError, match="unknown thing 'mambo': did you mean 'mamba'"):
        things["mambo"]
    with pytest.raises(UserError, match="thing 'mamba' is registered twice"):
        things.add("mamba", 2)


def test_a_broken_plugin_warns_and_the_others_are_there(plugins):
    things = Registry("thing", entry_points="patchbench.things")
    things.add("own", 1)
    assert repr(things) == "Registry('thing': own)"
    with (
        pytest.warns(UserWarning, match="package:own.*skipped: the name is taken"),
        pytest.warns(UserWarning, match=r"package:broken.*skipped: ImportError: no module"),
    ):
        assert list(things) == ["own", "theirs"]
    assert (things["theirs"], things["own"]) == (3, 1)
    found = {point.name: reason for point, reason in things.plugins()}
    assert (found["theirs"], found["own"]) == (None, "the name is taken")
    assert found["broken"].startswith("ImportError: no module")


def stops():
    raise SystemExit("give --config")


@pytest.mark.parametrize(
    ("name", "load", "reason"),
    [
        ("ends", stops, "SystemExit: give --config"),
        ("a,b", lambda: 3, "a name has letters, digits and _ . + - only"),
        ("a/b", lambda: 3, "a name has letters, digits and _ . + - only"),
        ("", lambda: 3, "a name has letters, digits and _ . + - only"),
        ("odd", lambda: "no number", "it is no number"),
        ("own", lambda: 4, "the name is taken"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_warning(monkeypatch, name, load, reason):
    good = point("good", lambda: 7)
    monkeypatch.setattr(module, "entry_points", lambda group: [point(name, load), good, good])

    def refuse(target):
        return None if isinstance(target, int) else "it is no number"

    things = Registry("thing", entry_points="patchbench.things", refuse=refuse)
    things.add("own", 1)
    with pytest.warns(UserWarning, match="is skipped") as caught:
        assert list(things) == ["good", "own"]
    (warning,) = caught
    value = f"package:{name}"
    assert str(warning.message) == f"plugin {value!r} (thing {name!r}) is skipped: {reason}"
    assert (things["good"], things["own"]) == (7, 1)


def test_the_user_may_interrupt_a_plugin(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "entry_points", lambda group: [point("slow", interrupted)])
    with pytest.raises(KeyboardInterrupt):
        list(Registry("thing", entry_points="patchbench.things"))
