"""How much is fuzzed, and what values users may write where another one belongs.

python -m pytest tests/fuzz                            # few cases, the same ones each time
PATCHBENCH_FUZZ=2000 python -m pytest tests/fuzz       # so many of each kind, new ones
"""

import os
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from patchbench.common import UserError

# Of so many values one is wrong: where all of twenty settings may be, few would get far.
_RARITY = 12
MOST = int(os.environ.get("PATCHBENCH_FUZZ", "0"))


def fuzzed(few: int = 100, *, share: float = 1.0) -> settings:
    """Return the settings of a test.

    Args:
        few: cases where nobody asked for more.
        share: of the number that was asked for; a slow test takes less.
    """
    return settings(
        max_examples=max(1, int(MOST * share)) or few if MOST else few,
        derandomize=not MOST,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


NUMBERS = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**20, 10**400, -(2**63) - 1]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e-300, 1e300]),
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "key", "auto", "all", "none", "None", "nan", "1e3", "-1", "0", "²", "٣", "[",
         "{}", "a=b", "\x00", "\ud800", "null", "true", "L0.block_input@key", "*", "../x",
         "-", "--", "'"]
    ),
    st.text(max_size=12),
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


def either(meant: Any, *, wrong: Any = JSON) -> Any:
    """Return a strategy of what is meant, and seldom of anything else."""
    good = meant if isinstance(meant, st.SearchStrategy) else st.sampled_from(meant)
    return mostly(good, wrong)


def mostly(good: Any, seldom: Any) -> Any:
    """Return a strategy of one, and one time in `_RARITY` of another."""
    return st.integers(1, _RARITY).flatmap(lambda drawn: seldom if drawn == _RARITY else good)


def some_of(fields: dict[str, Any], *, unknown: bool = True, most: int = 5, **always: Any) -> Any:
    """Return a strategy of keywords.

    Args:
        fields: what each may be; most are left out.
        unknown: whether seldom one does not exist.
        most: how many there are.
        **always: what is there unless it is drawn.
    """
    names = st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=most)
    known = names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: either(fields[name]) for name in chosen})
    ).map(lambda found: {**always, **found})
    more = st.dictionaries(st.text(min_size=1, max_size=5), SCALARS, max_size=1)
    strange = st.builds(lambda known, more: {**more, **known}, known, more)
    return mostly(known, strange) if unknown else known


def told(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return what a call returns, None where it refuses by a `UserError`; all else is a bug."""
    with suppress(UserError):
        return call(*arguments, **keywords)
    return None
