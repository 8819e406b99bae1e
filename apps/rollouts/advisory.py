"""Metrics that inform a person and never decide: their intervals (normal, 95 %) hold for one look, not for many."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from apps.rollouts.auc import Auc, macro_auc
from apps.rollouts.findings import FAILED, INCONCLUSIVE, NO_DATA, SUCCESSFUL, Finding, mean
from apps.rollouts.samples import Requests

SAMPLES_MIN = 100  # of each side
ONE_LOOK_Z = NormalDist().inv_cdf(0.975)


def auc(baseline: Requests, candidate: Requests, margin: float) -> Finding:
    """Judge that the AUC, from labelled feedback, falls by at most `margin`."""
    sides = [_labelled(side) for side in (baseline, candidate)]
    fewest = min(count for count, _ in sides)
    before, after = (value for _, value in sides)
    if fewest < SAMPLES_MIN or before is None or after is None:
        sentence = f"AUC: {fewest:,} of {SAMPLES_MIN} labelled requests on each side, with every class among them."
        return Finding("auc", False, NO_DATA, samples=fewest, needed=SAMPLES_MIN, sentence=sentence)
    change, spread = after.value - before.value, ONE_LOOK_Z * math.hypot(before.error, after.error)
    return Finding(
        metric="auc",
        required=False,
        verdict=_verdict(change - spread, change + spread, -margin, math.inf),
        baseline=before.value,
        candidate=after.value,
        estimate=change,
        low=change - spread,
        high=change + spread,
        margin=-margin,
        samples=fewest,
        needed=SAMPLES_MIN,
        sentence=_sentence("AUC", change, spread, f"{fewest:,} labels"),
        detail={"of": "difference of the AUCs", "classes": after.classes, "labels": [before.samples, after.samples]},
    )


def entropy(baseline: Requests, candidate: Requests, margin: float) -> Finding:
    """Judge that the mean output entropy moves by at most `margin` bits, up or down."""
    before, after = (side.entropy[~np.isnan(side.entropy)] for side in (baseline, candidate))
    fewest = min(len(before), len(after))
    if fewest < SAMPLES_MIN:
        sentence = f"Output entropy: {fewest:,} of {SAMPLES_MIN} requests on each side whose output is a distribution."
        return Finding("entropy", False, NO_DATA, samples=fewest, needed=SAMPLES_MIN, sentence=sentence)
    spread = ONE_LOOK_Z * math.sqrt(before.var() / len(before) + after.var() / len(after))
    change = float(after.mean() - before.mean())
    return Finding(
        metric="entropy",
        required=False,
        verdict=_verdict(change - spread, change + spread, -margin, margin),
        unit="bits",
        baseline=mean(before),
        candidate=mean(after),
        estimate=change,
        low=change - spread,
        high=change + spread,
        margin=margin,
        better="near",
        samples=fewest,
        needed=SAMPLES_MIN,
        sentence=_sentence("Mean output entropy", change, spread, f"{fewest:,} requests"),
        detail={"of": "difference of the mean entropies"},
    )


def _labelled(side: Requests) -> tuple[int, Auc | None]:
    rows = [row for row, label in enumerate(side.label) if label is not None and not np.isnan(side.score[row])]
    labels = [str(side.label[row]) for row in rows]
    return len(rows), macro_auc(side.score[rows], [side.predicted[row] for row in rows], labels) if rows else None


def _verdict(low: float, high: float, lowest: float, highest: float) -> str:
    if lowest <= low and high <= highest:
        return SUCCESSFUL
    return FAILED if high < lowest or low > highest else INCONCLUSIVE


def _sentence(name: str, change: float, spread: float, count: str) -> str:
    text = f"{name} changes by {change:+.3f} ({change - spread:+.3f} to {change + spread:+.3f}, {count}), advisory."
    return text.replace("-", "−")
