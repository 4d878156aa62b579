"""Metrics against sums written out in plain Python."""

import math

import numpy as np
import pytest
import torch

from patchbench.metrics import Reference, best_candidate, kl_divergence, measure


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    parts = [math.exp(x - top) for x in row]
    return [part / math.fsum(parts) for part in parts]


@pytest.fixture
def logits():
    return torch.tensor(np.random.default_rng(0).normal(0, 5, size=(4, 11)), dtype=torch.float32)


def test_measure(logits):
    answer, other = np.array([3, 0, 10, 5]), np.array([1, -1, 2, -1])
    found = measure(logits, answer, other)
    for row, values in enumerate(logits.tolist()):
        p = softmax(values)[answer[row]]
        assert found.p[row] == pytest.approx(p, rel=1e-12)
        assert found.logp[row] == pytest.approx(math.log(p), rel=1e-12)
        assert found.logit[row] == values[answer[row]]
        assert found.best[row] == values.index(max(values))
        if other[row] < 0:
            assert math.isnan(found.logit_diff[row])
        else:
            assert found.logit_diff[row] == values[answer[row]] - values[other[row]]


def test_kl_is_a_plain_sum_from_the_first_to_the_second(logits):
    log_probs = torch.log_softmax(logits.double(), -1)
    found = kl_divergence(log_probs[:2], log_probs[2:])
    for row in range(2):
        p, q = softmax(logits[row].tolist()), softmax(logits[row + 2].tolist())
        truth = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert found[row] == pytest.approx(truth, rel=1e-10)
    assert (kl_divergence(log_probs, log_probs) == 0).all()


def test_a_masked_token_adds_nothing_to_the_kl():
    log_p = torch.log(torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64))
    log_q = torch.log(torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64))
    truth = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    assert kl_divergence(log_p, log_q)[0] == pytest.approx(truth, rel=1e-12)


def test_a_reference_measures_many_predictions_at_once(logits):
    """Against sums by hand, in any order and more rows than are computed at a time."""
    reference = Reference(torch.log_softmax(logits[:2].double(), -1))
    examples = np.array([1, 0, 1] * 15)
    predictions = logits[[2, 3, 3] * 15]
    answer, other = np.array([3, 0, 10] * 15), np.array([1, -1, 2] * 15)
    found = reference.measure(predictions, examples, answer, other)
    for row, values in enumerate(predictions.tolist()):
        q, p = softmax(values), softmax(logits[examples[row]].tolist())
        truth = math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert found["kl"][row] == pytest.approx(truth, rel=1e-10)
        assert found["p"][row] == pytest.approx(q[answer[row]], rel=1e-12)
        assert found["logp"][row] == pytest.approx(math.log(q[answer[row]]), rel=1e-12)
        assert found["logit"][row] == values[answer[row]]
        if other[row] < 0:
            assert math.isnan(found["logit_diff"][row])
        else:
            assert found["logit_diff"][row] == values[answer[row]] - values[other[row]]


def test_tokens_excluded_on_one_or_both_sides_of_a_reference():
    excluded = -math.inf
    log_p = torch.log_softmax(torch.tensor([[0.0, 0.0, excluded]], dtype=torch.float64), -1)
    both = torch.tensor([[0.0, math.log(3), excluded], [excluded, 0.0, 0.0]])
    none, ids = np.array([-1, -1]), np.array([0, 0])
    found = Reference(log_p).measure(both, ids, np.array([0, 1]), none)
    assert found["kl"][0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-6)
    assert found["kl"][1] == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_probabilities_are_double_whatever_the_logits(dtype):
    """In single precision the log-probability of a near-certain answer is 0."""
    logits = torch.tensor([[0.0, 30.0]], dtype=dtype)
    found = measure(logits, np.array([1]))
    assert found.p.dtype == np.float64
    assert found.logp[0] == pytest.approx(-math.exp(-30), rel=1e-6)


def test_best_candidate_ignores_padding_and_other_tokens():
    log_probs = torch.tensor([[-1.0, -5.0, -3.0], [-9.0, -2.0, -1.0], [-1.0, -2.0, -3.0]])
    candidates = np.array([[1, 2, -1], [0, -1, -1], [-1, -1, -1]])
    assert best_candidate(log_probs, candidates).tolist() == [2, 0, -1]
