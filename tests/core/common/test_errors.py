"""Near names: a suggestion where one is near, else what is known."""

import pytest

from patchbench.common import UserError, near_names

MANY = [f"n{i:02}" for i in range(14)]


@pytest.mark.parametrize(
    ("name", "known", "says"),
    [
        ("vlaue", ["value", "key"], "did you mean 'value'?"),
        ("valua", ["value", "values"], "did you mean 'value' or 'values'?"),
        ("zzz", ["value", "key"], "known: key, value"),
        ("zzz", MANY, f"known: {', '.join(MANY[:12])}, …"),
        ("zzz", [], "none is known"),
    ],
    ids=["near", "two near", "none near", "many", "nothing known"],
)
def test_near_names(name, known, says):
    assert near_names(name, known) == says


def test_a_mistake_is_a_value_error_with_its_remedy():
    assert issubclass(UserError, ValueError)
    assert str(UserError("n=0", "at least 1 is needed")) == "n=0: at least 1 is needed"
    assert str(UserError("n=0")) == "n=0"
