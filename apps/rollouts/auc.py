"""AUC from labelled feedback, by ranks, with its standard error.

One-vs-rest over the classes seen, averaged evenly (macro). The log keeps the top probability and its label only, so a
class's score is that probability where it was predicted and an even share of the rest where it was not.
Standard error: DeLong, DeLong & Clarke-Pearson, Biometrics 44 (1988): each sample's placement among the other side;
for several classes a sample's placements are averaged first, which keeps their correlation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apps.rollouts.confidence import Floats

CLASS_SAMPLES_MIN = 5  # of a class and of the rest; a rarer class is left out


@dataclass(frozen=True)
class Auc:
    """Macro AUC of `samples` labelled requests over `classes`, with its standard error."""

    value: float
    error: float
    samples: int
    classes: int


def ranks(x: Floats) -> Floats:
    """Return the mid-ranks of `x`, (n,), from 1; ties share their average."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[inverse]


def binary_auc(scores: Floats, positive: np.ndarray) -> tuple[float, Floats]:
    """Return the AUC and every sample's influence on it, (n,): the mean of their squares over n is its variance."""
    n1, n0 = int(positive.sum()), int((~positive).sum())
    overall = ranks(scores)
    placement = np.empty(len(scores))
    placement[positive] = (overall[positive] - ranks(scores[positive])) / n0
    placement[~positive] = 1.0 - (overall[~positive] - ranks(scores[~positive])) / n1
    value = float(placement[positive].mean())
    weight = np.where(positive, len(scores) / n1, len(scores) / n0)
    return value, (placement - value) * weight


def macro_auc(score: Floats, predicted: Sequence[str], label: Sequence[str]) -> Auc | None:
    """Return the macro one-vs-rest AUC of labelled requests, or None when no class has samples on both sides.

    `score` (n,) is the top probability, `predicted` its class, `label` the true class.
    """
    truth = np.asarray(label, dtype=object)
    guess = np.asarray(predicted, dtype=object)
    names = sorted(set(truth.tolist()) | set(guess.tolist()))
    usable = [
        name for name in names if CLASS_SAMPLES_MIN <= int((truth == name).sum()) <= len(truth) - CLASS_SAMPLES_MIN
    ]
    if not usable:
        return None
    rest = max(1, len(names) - 1)
    values = []
    influence = np.zeros(len(truth))
    for name in usable:
        of_class = np.where(guess == name, score, (1.0 - score) / rest)
        value, share = binary_auc(of_class, truth == name)
        values.append(value)
        influence += share / len(usable)
    return Auc(float(np.mean(values)), float(np.sqrt((influence**2).mean() / len(truth))), len(truth), len(usable))
