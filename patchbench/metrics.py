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
    logp = logit - _log_total(exact)
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


class Reference:
    """A run whose distance to many others is measured: what these need of it, computed once.

    Args:
        log_probs: (batch, vocabulary) natural log-probabilities in float64.
    """

    # Rows at a time: what is computed of them stays in the processor's cache.
    ROWS = 32

    def __init__(self, log_probs: Tensor) -> None:
        self._log_probs = log_probs
        self._probs = log_probs.exp()
        terms = torch.where(self._probs > 0, self._probs * log_probs, 0.0)
        self._expected = terms.sum(dim=-1)

    def measure(
        self,
        logits: Tensor,
        examples: np.ndarray,
        answer: np.ndarray,
        counterfactual: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Measure predictions of some examples, and their distance.

        Args:
            logits: (n, vocabulary), of any float type, on any device.
            examples: (n,) which row of the reference each belongs to.
            answer: (n,) token ids.
            counterfactual: (n,) token ids, −1 where there is none.

        Returns:
            p, logp, logit and logit_diff as in `Measurement`, and kl = KL(reference ‖ prediction),
            each (n,).
        """
        logits = logits.detach().float().cpu()
        columns = [torch.as_tensor(ids) for ids in (examples, answer, counterfactual)]
        parts = [
            self._measure(*(column[start : start + self.ROWS] for column in (logits, *columns)))
            for start in range(0, len(logits), self.ROWS)
        ]
        logp, logit, logit_diff, kl = (torch.cat(column) for column in zip(*parts, strict=True))
        found = {"p": logp.exp(), "logp": logp, "logit": logit, "logit_diff": logit_diff, "kl": kl}
        return {name: column.numpy() for name, column in found.items()}

    def _measure(
        self, logits: Tensor, examples: Tensor, answer: Tensor, other: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = logits.double()
        rows = torch.arange(len(exact))
        total = _log_total(exact)
        logit = exact[rows, answer]
        difference = torch.where(other >= 0, logit - exact[rows, other.clamp(min=0)], torch.nan)
        # Σ p (log p − log q), with log q = logit − total.
        crossed = self._probs[examples].mul_(exact).sum(dim=-1)
        kl = self._expected[examples] + total - crossed
        # A token that is excluded on both sides is 0 · ∞.
        for row in kl.isnan().nonzero()[:, 0].tolist():
            log_q = torch.log_softmax(exact[row : row + 1], dim=-1)
            reference = self._log_probs[examples[row : row + 1]]
            kl[row] = float(kl_divergence(reference, log_q)[0])
        return logit - total, logit, difference, kl


def _log_total(logits: Tensor) -> Tensor:
    """Return log Σ exp(logits), (n,) of (n, vocabulary): in half the time of `torch.logsumexp`."""
    largest = logits.amax(dim=-1, keepdim=True)
    return (logits - largest).exp_().sum(dim=-1).log_() + largest[:, 0]


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
