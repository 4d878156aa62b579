"""Colours: told apart by colour-blind readers, and in greyscale by shade, dash or marker."""

import itertools

import numpy as np
import pytest

from patchbench.report.palette import (
    DIVERGING,
    GREYED,
    ROLE_COLORS,
    SERIES,
    dash,
    marker,
)

# Viénot, Brettel & Mollon (1999) on linear RGB: what a dichromat sees.
PROTAN = [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]
DEUTAN = [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]
SEEN = {"trichromat": np.eye(3), "protanope": np.array(PROTAN), "deuteranope": np.array(DEUTAN)}


def linear(hexadecimal):
    """Return linear RGB of a colour in sRGB (IEC 61966-2-1)."""
    values = np.array([int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return CIE L*a*b* of linear RGB, D65."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    ratio = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def shade(hexadecimal):
    return lab(linear(hexadecimal))[0]


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_are_told_apart(eyes):
    """A difference of 2.3 can just be seen; 10 is seen at a glance."""
    roles = {ROLE_COLORS[name] for name in ("key", "value", "query")}
    for colours in (roles, SERIES[:6], {end for _, end in DIVERGING}):
        for one, other in itertools.combinations(sorted(colours), 2):
            seen = [lab(SEEN[eyes] @ linear(colour)) for colour in (one, other)]
            assert np.linalg.norm(seen[0] - seen[1]) > 10, (one, other)


def test_roles_have_shades_of_their_own_in_grey():
    shades = sorted(shade(ROLE_COLORS[name]) for name in ("key", "value", "query"))
    assert np.diff(shades).min() > 10


@pytest.mark.parametrize("scale", [DIVERGING, GREYED], ids=["diverging", "greyed"])
def test_a_larger_effect_is_darker(scale):
    """Interpolated as a browser does it, in sRGB; the sign stands in the cell's number."""
    ends = [np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) for _, colour in scale]
    for end in (ends[0], ends[2]):
        way = [
            shade("#{:02x}{:02x}{:02x}".format(*(ends[1] + (end - ends[1]) * t).astype(int)))
            for t in np.linspace(0, 1, 11)
        ]
        assert np.diff(way).max() < 0
        assert way[0] - way[-1] > 20


def test_models_and_offsets_differ_without_colour():
    """Next to one another by their marker; positions of one role by their dash."""
    symbols = [marker(index)["symbol"] for index in range(49)]
    assert all(one != other for one, other in itertools.pairwise(symbols))
    assert len({tuple(marker(index).items()) for index in range(49)}) == 49
    assert len({dash(offset) for offset in (-2, -1, 0, 1, 2)}) == 5
