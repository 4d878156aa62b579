"""A counting recurrence, where every effect of a patch can be told without a computer."""

import pytest
import torch
from torch import Tensor

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers.stepwise import stepwise


def run(*, of_read: bool = False, **replace: dict[int, float]) -> list[float]:
    """State ← state / 2 + (1 + state / 4), from 4, for 4 steps; steps to values by hook.

    The result is what is gone on from, or what is read, at each step.
    """
    points = HookPoints("ssm_write", "ssm_state")
    for name, values in replace.items():

        def hook(_: object, __: object, out: Tensor, values: dict[int, float] = values) -> Tensor:
            for step, value in values.items():
                out[0, step] = value
            return out

        points[name].register_forward_hook(hook)
    read, states = stepwise(
        keep=lambda t, state: state / 2,
        write=lambda t, kept: 1 + kept / 2,
        start=torch.full((1, 1), 4.0),
        length=4,
        state_hook=points["ssm_state"],
        write_hook=points["ssm_write"],
    )
    assert states.shape == read.shape == (1, 4, 1)
    return (read if of_read else states).flatten().tolist()


def test_unpatched() -> None:
    assert run() == [4, 4, 4, 4]


def test_a_replaced_write_changes_later_writes() -> None:
    assert run(ssm_write={1: 6.0}) == [4, 8, 7, 6.25]


def test_a_replaced_state_is_gone_on_from() -> None:
    assert run(ssm_state={1: 8.0}) == [4, 8, 7, 6.25]


def test_what_is_read_where_a_state_is_replaced_stays() -> None:
    assert run(of_read=True, ssm_state={1: 8.0}) == [4, 4, 7, 6.25]
    assert run(of_read=True, ssm_state={0: 0.0, 2: 8.0}) == [4, 1, 1.75, 7]


def test_what_is_read_where_a_write_is_replaced_changes() -> None:
    assert run(of_read=True, ssm_write={1: 6.0}) == [4, 8, 7, 6.25]


def test_two_replaced_states() -> None:
    assert run(ssm_state={0: 0.0, 2: 8.0}) == [0, 1, 8, 7]


def test_the_state_comes_after_the_write() -> None:
    assert run(ssm_write={1: 6.0}, ssm_state={1: 0.0}) == [4, 0, 1, 1.75]


def test_an_earlier_write_and_a_later_state_both_hold() -> None:
    assert run(ssm_write={0: 6.0}, ssm_state={2: 8.0}) == [8, 7, 8, 7]


def test_the_same_value_put_back_is_no_replacement() -> None:
    # The states seen by the hook are 4, 4, 4, 4: at step 2 it returns what it was given.
    assert run(ssm_state={0: 0.0, 2: 4.0}) == [0, 1, 1.75, 2.3125]


@pytest.mark.parametrize("name", ["ssm_write", "ssm_state"])
def test_zeros_that_a_hook_adds_can_be_differentiated_by(name: str) -> None:
    points, zeros = HookPoints("ssm_write", "ssm_state"), torch.zeros(1, 4, 1, requires_grad=True)
    points[name].register_forward_hook(lambda _, __, out: out + zeros)
    _, states = stepwise(
        keep=lambda t, state: state / 2,
        write=lambda t, kept: 1 + kept / 2,
        start=torch.full((1, 1), 4.0),
        length=4,
        state_hook=points["ssm_state"],
        write_hook=points["ssm_write"],
    )
    assert states.flatten().tolist() == [4, 4, 4, 4]
    (slopes,) = torch.autograd.grad(states[0, 3, 0], zeros)
    # What is added to a write or state reaches the next state at 1/2 + 1/4.
    assert slopes.flatten().tolist() == [0.75**3, 0.75**2, 0.75, 1]
