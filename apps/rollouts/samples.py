"""The columns that analysis works on, and how requests are matched and weighed before they count.

Selection here looks only at when, where and in what batch a request ran, never at how it went: what is left is as
random as what came in, so the confidence sequences stay valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apps.rollouts.confidence import Floats

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Mask = npt.NDArray[np.bool_]

BATCH_EDGES = np.array([2, 5, 17])  # batch classes: 1, 2–4, 5–16, above
BATCH_LABELS = ("1", "2–4", "5–16", "17+")
NODE_SHARE = 1.5  # a node counts at most this many times its even share …
HEAD_START = 20  # … once this many samples are there; before, order of arrival decides
BASELINES_MAX = 8  # per candidate request; more adds nothing, the candidate's scatter dominates


class DataFault(ValueError):
    """The samples can't be right (negative latencies, similarities above 1): an error verdict, not a failure."""


@dataclass(frozen=True)
class Comparisons:
    """Mirrored requests, replayed through both versions; all columns (n,), by time."""

    time_s: Floats
    node: Ints  # codes into `nodes`
    batch_size: Ints
    similarity: Floats  # NaN where either side failed
    baseline_ms: Floats
    candidate_ms: Floats
    baseline_error: Bools
    candidate_error: Bools
    request_id: Sequence[str] = ()
    sample: Sequence[str] = ()
    nodes: Sequence[str] = ()
    dropped: int = 0  # mirrored requests that the comparator had no room for

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(frozen=True)
class Requests:
    """Requests that one version answered; all columns (n,), by time."""

    time_s: Floats
    node: Ints
    batch_size: Ints
    latency_ms: Floats
    error: Bools
    entropy: Floats  # bits; NaN where the output is no distribution
    score: Floats  # top probability; NaN likewise
    predicted: Sequence[str] = ()
    label: Sequence[str | None] = ()  # the true one, from feedback

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(frozen=True)
class StageData:
    """All that was seen in one attempt of a stage, sick nodes already left out."""

    comparisons: Comparisons
    baseline: Requests
    candidate: Requests
    slo_latency_ms: float
    baselines_each: int = 1  # baseline requests matched to one of the candidate


@dataclass(frozen=True)
class Matched:
    """Candidate requests, each with `r` baseline requests of the same node and batch class; by time."""

    candidate: Ints  # (k,)
    baseline: Ints  # (k, r)
    node: Ints  # (k,)
    batch_class: Ints  # (k,)
    detail: dict[str, Any] = field(default_factory=dict)


def batch_class(batch_size: Ints) -> Ints:
    """Return the class 0–3 of each batch size, (n,)."""
    return np.digitize(batch_size, BATCH_EDGES).astype(np.int64)


def baselines_each(weight: int) -> int:
    """Return how many baseline requests to match with one of a canary's, given its weight in percent.

    A fifth less than there should be, so that a chance shortage seldom keeps candidates waiting.
    """
    return max(1, min(BASELINES_MAX, int(0.8 * (100 - weight) / weight)))


def cap_nodes(node: Ints) -> Mask:
    """Return which samples (n,) in time order count, so that no node outweighs the others.

    Each node may have 1.5 times its even share of what has been counted so far, whatever its traffic.
    """
    names, codes = np.unique(node, return_inverse=True)
    share = min(1.0, NODE_SHARE / max(1, len(names)))
    if share >= 1.0:
        return np.ones(len(node), dtype=np.bool_)
    counted = [0] * len(names)
    total = 0
    keep = np.zeros(len(node), dtype=np.bool_)
    for position, code in enumerate(codes.tolist()):
        if counted[code] + 1 <= share * max(total + 1, HEAD_START):
            counted[code] += 1
            total += 1
            keep[position] = True
    return keep


def match(baseline: Requests, candidate: Requests, each: int) -> Matched:
    """Match candidate requests with `each` baseline requests of the same node and batch class, first come first served.

    Comparing within a stratum keeps a busier node or a fuller batch on one side from passing for a slower version.
    """
    strata_b = baseline.node * len(BATCH_LABELS) + batch_class(baseline.batch_size)
    strata_c = candidate.node * len(BATCH_LABELS) + batch_class(candidate.batch_size)
    rows_c: list[Ints] = []
    rows_b: list[Ints] = []
    for stratum in np.unique(strata_c):
        mine = np.flatnonzero(strata_c == stratum)
        theirs = np.flatnonzero(strata_b == stratum)
        count = min(len(mine), len(theirs) // each)
        rows_c.append(mine[:count])
        rows_b.append(theirs[: count * each].reshape(count, each))
    chosen_c = np.concatenate(rows_c) if rows_c else np.empty(0, dtype=np.int64)
    chosen_b = np.concatenate(rows_b) if rows_b else np.empty((0, each), dtype=np.int64)
    complete_s = candidate.time_s[chosen_c]
    if len(chosen_c):
        complete_s = np.maximum(complete_s, baseline.time_s[chosen_b[:, -1]])
    order = np.argsort(complete_s, kind="stable")
    chosen_c, chosen_b = chosen_c[order], chosen_b[order]
    keep = cap_nodes(candidate.node[chosen_c])
    chosen_c, chosen_b = chosen_c[keep], chosen_b[keep]
    return Matched(
        candidate=chosen_c,
        baseline=chosen_b,
        node=candidate.node[chosen_c],
        batch_class=batch_class(candidate.batch_size[chosen_c]),
        detail={"baselines_each": each, "unmatched": int(len(candidate) - len(chosen_c))},
    )
