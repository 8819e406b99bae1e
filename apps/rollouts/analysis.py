"""What the samples of a stage say about each metric: pure numpy, no clock, no database.

Every required metric becomes a mean of numbers in [0, 1], the higher the better, held against a bound by one betting
confidence sequence (confidence.py). Pass = the interval lies on the good side of the bound, fail = wholly on the bad
side, else inconclusive. Fewer samples than the stage asks for never pass; a failure that is proven already counts, for
waiting would only hurt more requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from apps.rollouts import advisory
from apps.rollouts.confidence import Floats, Interval, confidence_sequence
from apps.rollouts.findings import ERROR, FAILED, INCONCLUSIVE, NO_DATA, SUCCESSFUL, Finding, mean, points, quantile
from apps.rollouts.samples import (
    BATCH_LABELS,
    Comparisons,
    DataFault,
    Ints,
    Matched,
    Requests,
    StageData,
    batch_class,
    cap_nodes,
    match,
)
from apps.rollouts.strategy import SLO_RED_LINE, AnalysingStage, MetricName, MetricRule, ShadowStage

FEWEST_TO_FAIL = 30  # so that one hiccup of one batch is not the end of a rollout
CALIBRATION = 200  # baseline requests that set the p99 line, and are not judged by it
WORST_PAIRS = 10


@dataclass(frozen=True)
class _Pairs:
    """Matched requests of both versions with what each metric needs of them."""

    baseline: Requests
    candidate: Requests
    matched: Matched


@dataclass(frozen=True)
class _Job:
    """One metric's judgement in the making."""

    rule: MetricRule
    alpha: float
    needed: int
    data: StageData
    pairs: _Pairs


def analyse(stage: AnalysingStage, alpha: float, data: StageData) -> list[Finding]:
    """Return the findings of a stage's metrics, each at level `alpha`. Data that can't be right gives verdict error."""
    pairs = _shadow_pairs(data.comparisons) if isinstance(stage, ShadowStage) else _live_pairs(data)
    findings: list[Finding] = []
    for rule in stage.metrics:
        job = _Job(rule, alpha, stage.needed(rule), data, pairs)
        try:
            findings += _METRICS[rule.name](job)
        except DataFault as fault:
            findings.append(
                Finding(rule.name, rule.required, ERROR, needed=job.needed, sentence=f"{rule.name}: {fault}.")
            )
    return findings


def _shadow_pairs(rows: Comparisons) -> _Pairs:
    """Pair every mirrored request with itself: both versions answered it, one after the other."""
    nothing = np.full(len(rows), np.nan)
    counted = np.flatnonzero(cap_nodes(rows.node))
    baseline = Requests(
        rows.time_s, rows.node, rows.batch_size, rows.baseline_ms, rows.baseline_error, nothing, nothing
    )
    candidate = replace(baseline, latency_ms=rows.candidate_ms, error=rows.candidate_error)
    classes = batch_class(rows.batch_size)[counted]
    return _Pairs(baseline, candidate, Matched(counted, counted[:, None], rows.node[counted], classes))


def _live_pairs(data: StageData) -> _Pairs:
    return _Pairs(data.baseline, data.candidate, match(data.baseline, data.candidate, data.baselines_each))


def _verdict(interval: Interval, bound: float, needed: int) -> str:
    if interval.samples >= min(needed, FEWEST_TO_FAIL) and interval.high < bound:
        return FAILED
    if interval.samples < needed:
        return NO_DATA
    return SUCCESSFUL if interval.low >= bound else INCONCLUSIVE


def _similarity(job: _Job) -> list[Finding]:
    rows = job.data.comparisons
    both = ~(rows.baseline_error | rows.candidate_error)
    if np.isnan(rows.similarity[both]).any():
        raise DataFault("a mirrored request has two good answers and no similarity")
    usable = np.flatnonzero(~np.isnan(rows.similarity))
    usable = usable[cap_nodes(rows.node[usable])]
    x = rows.similarity[usable]
    if ((x < 0.0) | (x > 1.0 + 1e-5)).any():
        raise DataFault("a similarity lies outside 0 to 1")
    interval = confidence_sequence(np.minimum(x, 1.0), job.alpha, job.rule.bold)
    verdict = _verdict(interval, job.rule.margin, job.needed)
    numbers = f"{interval.estimate:.3f} ({interval.low:.3f}–{interval.high:.3f}, {interval.samples:,} pairs)"
    limit = f"the required {job.rule.margin:g}"
    inside, beyond = f"above {limit}", f"below {limit}"
    return [
        Finding(
            metric="similarity",
            required=job.rule.required,
            verdict=verdict,
            candidate=interval.estimate if len(x) else None,
            estimate=interval.estimate if len(x) else None,
            low=interval.low,
            high=interval.high,
            margin=job.rule.margin,
            samples=interval.samples,
            needed=job.needed,
            sentence=_sentence("Output similarity is", numbers, inside, beyond, verdict, interval, job.needed, "pairs"),
            detail=_similarity_detail(rows, usable, x),
        )
    ]


def _similarity_detail(rows: Comparisons, usable: Ints, x: Floats) -> dict[str, Any]:
    """Return histogram, worst pairs and strata, for people."""
    edges = np.concatenate([[0.0], np.linspace(0.9, 1.0, 41)])
    counts, _ = np.histogram(np.clip(x, 0.0, 1.0), bins=edges)
    worst = usable[np.argsort(x, kind="stable")[:WORST_PAIRS]]
    return {
        "of": "mean cosine of the outputs",
        "histogram": {"edges": [round(float(edge), 4) for edge in edges], "counts": counts.tolist()},
        "worst": [
            {
                "request_id": rows.request_id[row] if rows.request_id else "",
                "similarity": round(float(rows.similarity[row]), 4),
                "sample": rows.sample[row] if rows.sample else "",
                "node": rows.nodes[rows.node[row]] if rows.nodes else "",
            }
            for row in worst.tolist()
        ],
        "by_node": _means_by(rows.node[usable], x, rows.nodes),
        "by_batch": _means_by(batch_class(rows.batch_size[usable]), x, BATCH_LABELS),
        "dropped": rows.dropped,
        "one_side_failed": int(np.isnan(rows.similarity).sum()),
    }


def _means_by(codes: Ints, x: Floats, names: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": names[code] if len(names) else str(code),
            "samples": int((codes == code).sum()),
            "mean": round(float(x[codes == code].mean()), 5),
        }
        for code in np.unique(codes).tolist()
    ]


def _errors(job: _Job) -> list[Finding]:
    good = [(~side.error).astype(float) for side in (job.pairs.baseline, job.pairs.candidate)]
    return [_change(job, "errors", "Error rate", good, of_bad=True, of="difference of the error rates")]


def _p99(job: _Job) -> list[Finding]:
    """Judge the share of requests above a line: the p99 of the baseline's first requests, which then don't count."""
    latencies = [_latencies(side) for side in (job.pairs.baseline, job.pairs.candidate)]
    baseline_ms, candidate_ms = (quantile(side) for side in latencies)
    if len(latencies[0]) <= CALIBRATION:
        sentence = f"p99 latency: {len(latencies[0]):,} of {CALIBRATION} baseline requests that set the line."
        finding = Finding("p99", job.rule.required, NO_DATA, needed=job.needed, sentence=sentence)
    else:
        line_ms = float(np.quantile(latencies[0][:CALIBRATION], 0.99))
        finding = _change(
            replace(job, pairs=_without_calibration(job.pairs)),
            "p99",
            f"Share of requests above {line_ms:.1f} ms, the baseline's p99,",
            [(side <= line_ms).astype(float) for side in latencies],
            of_bad=True,
            of="difference of the shares above the baseline's p99",
        )
    detail = {**finding.detail, "by_batch": _latency_by_batch(job.pairs)}
    return [replace(finding, baseline=baseline_ms, candidate=candidate_ms, unit="ms", detail=detail)]


def _without_calibration(pairs: _Pairs) -> _Pairs:
    matched = pairs.matched
    later = (matched.baseline >= CALIBRATION).all(axis=1)
    rest = replace(
        matched,
        candidate=matched.candidate[later],
        baseline=matched.baseline[later],
        node=matched.node[later],
        batch_class=matched.batch_class[later],
    )
    return replace(pairs, matched=rest)


def _slo(job: _Job) -> list[Finding]:
    """Judge two things: the share within the SLO may fall by the margin at most, and never below the red line.

    Both must hold to pass; since either one failing is enough to fail, that side's α is halved.
    """
    limit_ms = job.data.slo_latency_ms
    name = f"Share of requests within {limit_ms:g} ms"
    sides = (job.pairs.baseline, job.pairs.candidate)
    good = [((_latencies(side) <= limit_ms) & ~side.error).astype(float) for side in sides]
    against = job.alpha / 2.0
    fall = _change(
        job, "slo_share", name, good, of_bad=False, of="difference of the shares within the SLO", against=against
    )
    fall = replace(fall, detail={**fall.detail, "by_batch": _latency_by_batch(job.pairs)})
    return [fall, _red_line(job, name, good[1], against)]


def _red_line(job: _Job, name: str, good: Floats, against: float) -> Finding:
    x = good[job.pairs.matched.candidate]
    line = confidence_sequence(x, job.alpha, job.rule.bold, against)
    verdict = _verdict(line, SLO_RED_LINE, job.needed)
    numbers = f"{line.estimate:.1%} ({line.low:.1%}–{line.high:.1%}, {line.samples:,} requests)"
    limit = f"the {SLO_RED_LINE:.0%} red line"
    return Finding(
        metric="slo_red_line",
        required=job.rule.required,
        verdict=verdict,
        unit="share",
        candidate=mean(x),
        estimate=mean(x),
        low=line.low,
        high=line.high,
        margin=SLO_RED_LINE,
        samples=line.samples,
        needed=job.needed,
        sentence=_sentence(f"{name} is", numbers, "above " + limit, "below " + limit, verdict, line, job.needed),
        detail={"of": "share of the candidate's requests within the SLO"},
    )


def _change(
    job: _Job, metric: str, name: str, good: Sequence[Floats], *, of_bad: bool, of: str, against: float | None = None
) -> Finding:
    """Judge that the share of good requests falls by at most the margin, and tell it as a change of either.

    `good` are the baseline's and the candidate's columns of 0 and 1, (n_b,) and (n_c,).
    """
    matched, margin = job.pairs.matched, job.rule.margin
    theirs, mine = good[0][matched.baseline].mean(axis=1), good[1][matched.candidate]  # (k,) each
    interval = confidence_sequence((1.0 + mine - theirs) / 2.0, job.alpha, job.rule.bold, against)
    verdict = _verdict(interval, (1.0 - margin) / 2.0, job.needed)
    estimate, low, high = (2.0 * value - 1.0 for value in (interval.estimate, interval.low, interval.high))
    if of_bad:
        estimate, low, high, theirs, mine = -estimate, -high, -low, 1.0 - theirs, 1.0 - mine
    bound = margin if of_bad else -margin
    numbers = f"{points(estimate)} points ({points(low)} to {points(high)}, {interval.samples:,} requests)"
    limit = f"the allowed {points(bound)} points"
    beyond = f"{'above' if of_bad else 'below'} {limit}"
    return Finding(
        metric=metric,
        required=job.rule.required,
        verdict=verdict,
        unit="share",
        baseline=mean(theirs),
        candidate=mean(mine),
        estimate=estimate if interval.samples else None,
        low=low,
        high=high,
        margin=bound,
        better="lower" if of_bad else "higher",
        samples=interval.samples,
        needed=job.needed,
        sentence=_sentence(f"{name} changes by", numbers, f"within {limit}", beyond, verdict, interval, job.needed),
        detail={"of": of, **matched.detail},
    )


def _latencies(side: Requests) -> Floats:
    if not np.isfinite(side.latency_ms).all() or (side.latency_ms < 0.0).any():
        raise DataFault("a latency is negative or not a number")
    return side.latency_ms


def _latency_by_batch(pairs: _Pairs) -> list[dict[str, Any]]:
    """Return median and p99 latency of both sides by batch class: a version may be slow in full batches only."""
    matched = pairs.matched
    table = []
    for code in np.unique(matched.batch_class).tolist():
        rows = matched.batch_class == code
        theirs = pairs.baseline.latency_ms[matched.baseline[rows].ravel()]
        mine = pairs.candidate.latency_ms[matched.candidate[rows]]
        table.append(
            {
                "name": BATCH_LABELS[code],
                "samples": len(mine),
                "baseline_p50_ms": quantile(theirs, 0.5),
                "candidate_p50_ms": quantile(mine, 0.5),
                "baseline_p99_ms": quantile(theirs),
                "candidate_p99_ms": quantile(mine),
            }
        )
    return table


def _sentence(
    name: str,
    numbers: str,
    inside: str,
    beyond: str,
    verdict: str,
    interval: Interval,
    needed: int,
    unit: str = "requests",
) -> str:
    """Say a judgement in one sentence; `inside` and `beyond` name the bound from either side of it."""
    if verdict == NO_DATA:
        what = name.removesuffix(" is").removesuffix(" changes by")
        return f"{what}: {interval.samples:,} of {needed:,} {unit} needed so far."
    relation = {SUCCESSFUL: inside, FAILED: beyond, INCONCLUSIVE: f"not yet clear of {inside.split(' ', 1)[1]}"}
    return f"{name} {numbers}, {relation[verdict]}."


def _auc(job: _Job) -> list[Finding]:
    return [advisory.auc(job.data.baseline, job.data.candidate, job.rule.margin)]


def _entropy(job: _Job) -> list[Finding]:
    return [advisory.entropy(job.data.baseline, job.data.candidate, job.rule.margin)]


_METRICS: dict[MetricName, Callable[[_Job], list[Finding]]] = {
    MetricName.SIMILARITY: _similarity,
    MetricName.ERRORS: _errors,
    MetricName.SLO: _slo,
    MetricName.P99: _p99,
    MetricName.AUC: _auc,
    MetricName.ENTROPY: _entropy,
}
