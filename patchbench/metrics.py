"""What a prediction is worth: the answer's probability, its margin, its distance to another run.

Use:

    clean = measure(logits, answer, counterfactual)      # (batch, vocabulary) → (batch,) each
    kl = kl_divergence(clean.log_probs, patched.log_probs)    # KL(clean ‖ patched)

All in natural logarithms and float64 on the CPU: differences of small probabilities are the
subject, and a log-softmax in single precision already loses them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The prediction of each example, (batch,) in float64 unless stated.

    Attributes:
        log_probs: (batch, vocabulary) log p of every token.
        p: probability of the answer.
        logp: its natural logarithm.
        logit: the model's own, unnormalised.
        logit_diff: logit of the answer minus that of the counterfactual answer; NaN without one.
        best: (batch,) int64, the token with the largest logit.
    """

    log_probs: Tensor
    p: np.ndarray
    logp: np.ndarray
    logit: np.ndarray
    logit_diff: np.ndarray
    best: np.ndarray


def measure(
    logits: Tensor, answer: np.ndarray, counterfactual: np.ndarray | None = None
) -> Measurement:
    """Measure next-token predictions.

    Args:
        logits: (batch, vocabulary), of any float type, on any device.
        answer: (batch,) token ids.
        counterfactual: (batch,) token ids, −1 where an example has none.
    """
    exact = logits.detach().float().cpu().double()
    log_probs = torch.log_softmax(exact, dim=-1)
    rows = torch.arange(len(exact))
    answers = torch.as_tensor(answer, dtype=torch.long)
    logit = exact[rows, answers]
    logp = log_probs[rows, answers]
    logit_diff = torch.full_like(logit, torch.nan)
    if counterfactual is not None:
        other = torch.as_tensor(counterfactual, dtype=torch.long)
        has = other >= 0
        logit_diff[has] = logit[has] - exact[rows[has], other[has]]
    return Measurement(
        log_probs=log_probs,
        p=logp.exp().numpy(),
        logp=logp.numpy(),
        logit=logit.numpy(),
        logit_diff=logit_diff.numpy(),
        best=exact.argmax(dim=-1).numpy(),
    )


def kl_divergence(log_p: Tensor, log_q: Tensor) -> np.ndarray:
    """Return KL(p ‖ q) in nats for each example.

    Args:
        log_p: (batch, vocabulary) natural log-probabilities of the reference.
        log_q: the same of the approximation.

    Returns:
        (batch,), a plain sum over the vocabulary; a token with p = 0 adds nothing.
    """
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
    return terms.sum(dim=-1).numpy()


def best_candidate(log_probs: Tensor, candidates: np.ndarray) -> np.ndarray:
    """Return the likeliest of each example's candidates.

    Args:
        log_probs: (batch, vocabulary).
        candidates: (batch, most candidates) token ids, padded with −1.

    Returns:
        (batch,) token ids; −1 for an example without candidates.
    """
    ids = torch.as_tensor(candidates, dtype=torch.long)
    scores = log_probs.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
    best = ids.gather(1, scores.argmax(dim=1, keepdim=True))
    return best[:, 0].numpy()
