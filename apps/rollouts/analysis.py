"""What the samples of a stage say about each metric: pure numpy, no clock, no database.

Every required metric becomes a mean of numbers in [0, 1], the higher the better, held against a bound by one betting
confidence sequence (confidence.py). Pass = the interval lies on the good side of the bound, fail = wholly on the bad
side, else inconclusive. Fewer samples than the stage asks for never pass; a failure that is proven already counts, for
waiting would only hurt more requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
        job = _Job(rule, alpha, stage.min_samples, data, pairs)
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
    sides = [
        Requests(rows.time_s, rows.node, rows.batch_size, latency, error, nothing, nothing)
        for latency, error in ((rows.baseline_ms, rows.baseline_error), (rows.candidate_ms, rows.candidate_error))
    ]
    classes = batch_class(rows.batch_size)[counted]
    return _Pairs(*sides, Matched(counted, counted[:, None], rows.node[counted], classes))


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
    relation = {
        SUCCESSFUL: f"at or above the required {job.rule.margin:g}",
        FAILED: f"below the required {job.rule.margin:g}",
        INCONCLUSIVE: f"not yet clear of the required {job.rule.margin:g}",
    }
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
            sentence=_sentence("Output similarity is", numbers, relation, verdict, interval, job.needed, "pairs"),
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
    baseline, candidate = job.pairs.baseline.error.astype(float), job.pairs.candidate.error.astype(float)
    return [_rise(job, "errors", "Error rate", baseline, candidate, "difference of the error rates")]


def _p99(job: _Job) -> list[Finding]:
    """Judge the share of requests above a line: the p99 of the baseline's first requests, which then don't count."""
    baseline, candidate = _latencies(job.pairs.baseline), _latencies(job.pairs.candidate)
    shown = {"baseline": quantile(baseline), "candidate": quantile(candidate), "unit": "ms"}
    if len(baseline) <= CALIBRATION:
        sentence = f"p99 latency: {len(baseline):,} of {CALIBRATION} baseline requests that set the line."
        return [Finding("p99", job.rule.required, NO_DATA, needed=job.needed, sentence=sentence, **shown)]
    line_ms = float(np.quantile(baseline[:CALIBRATION], 0.99))
    matched = job.pairs.matched
    later = (matched.baseline >= CALIBRATION).all(axis=1)
    rest = Matched(matched.candidate[later], matched.baseline[later], matched.node[later], matched.batch_class[later])
    above = _Job(job.rule, job.alpha, job.needed, job.data, _Pairs(job.pairs.baseline, job.pairs.candidate, rest))
    of = "difference of the shares above the baseline's p99"
    name = f"Share of requests above {line_ms:.1f} ms, the baseline's p99,"
    finding = _rise(above, "p99", name, (baseline > line_ms).astype(float), (candidate > line_ms).astype(float), of)
    detail = {**finding.detail, "line_ms": line_ms, "by_batch": _latency_by_batch(job.pairs)}
    return [Finding(**{**vars(finding), **shown, "detail": detail})]


def _rise(job: _Job, metric: str, name: str, baseline: Floats, candidate: Floats, of: str) -> Finding:
    """Judge that a share of bad requests rises by at most the margin; columns (n_b,) and (n_c,) of 0 and 1."""
    bad_c, bad_b = _paired(job, baseline, candidate)
    margin = job.rule.margin
    interval = confidence_sequence((1.0 + bad_b - bad_c) / 2.0, job.alpha, job.rule.bold)
    verdict = _verdict(interval, (1.0 - margin) / 2.0, job.needed)
    estimate, low, high = (1.0 - 2.0 * value for value in (interval.estimate, interval.high, interval.low))
    numbers = f"{points(estimate)} points ({points(low)} to {points(high)}, {interval.samples:,} requests)"
    allowed = f"the allowed {points(margin)} points"
    relation = {
        SUCCESSFUL: f"within {allowed}",
        FAILED: f"above {allowed}",
        INCONCLUSIVE: f"not yet clear of {allowed}",
    }
    return Finding(
        metric=metric,
        required=job.rule.required,
        verdict=verdict,
        unit="share",
        baseline=mean(bad_b),
        candidate=mean(bad_c),
        estimate=estimate if interval.samples else None,
        low=low,
        high=high,
        margin=margin,
        better="lower",
        samples=interval.samples,
        needed=job.needed,
        sentence=_sentence(f"{name} changes by", numbers, relation, verdict, interval, job.needed, "requests"),
        detail={"of": of, **job.pairs.matched.detail},
    )


def _slo(job: _Job) -> list[Finding]:
    """Judge two things: the share within the SLO may fall by the margin at most, and never below the red line.

    Both must hold to pass; since either one failing is enough to fail, that side's α is halved.
    """
    limit_ms = job.data.slo_latency_ms
    sides = (job.pairs.baseline, job.pairs.candidate)
    good = [((_latencies(side) <= limit_ms) & ~side.error).astype(float) for side in sides]
    good_c, good_b = _paired(job, *good)
    name = f"Share of requests within {limit_ms:g} ms"
    detail = {"of": "difference of the shares within the SLO", "by_batch": _latency_by_batch(job.pairs)}
    change = confidence_sequence((1.0 + good_c - good_b) / 2.0, job.alpha, job.rule.bold, job.alpha / 2.0)
    verdict = _verdict(change, (1.0 - job.rule.margin) / 2.0, job.needed)
    estimate, low, high = (2.0 * value - 1.0 for value in (change.estimate, change.low, change.high))
    numbers = f"{points(estimate)} points ({points(low)} to {points(high)}, {change.samples:,} requests)"
    common = {"required": job.rule.required, "unit": "share", "needed": job.needed, "samples": change.samples}
    fall = Finding(
        metric="slo_share",
        verdict=verdict,
        baseline=mean(good_b),
        candidate=mean(good_c),
        estimate=estimate if change.samples else None,
        low=low,
        high=high,
        margin=-job.rule.margin,
        sentence=_sentence(
            f"{name} changes by", numbers, _relation(f"{points(-job.rule.margin)} points"), verdict, change, job.needed
        ),
        detail=detail,
        **common,
    )
    line = confidence_sequence(good_c, job.alpha, job.rule.bold, job.alpha / 2.0)
    verdict = _verdict(line, SLO_RED_LINE, job.needed)
    numbers = f"{line.estimate:.1%} ({line.low:.1%}–{line.high:.1%}, {line.samples:,} requests)"
    red_line = Finding(
        metric="slo_red_line",
        verdict=verdict,
        candidate=mean(good_c),
        estimate=mean(good_c),
        low=line.low,
        high=line.high,
        margin=SLO_RED_LINE,
        sentence=_sentence(f"{name} is", numbers, _relation(f"{SLO_RED_LINE:.0%} red line"), verdict, line, job.needed),
        detail={"of": "share of the candidate's requests within the SLO"},
        **common,
    )
    return [fall, red_line]


def _paired(job: _Job, baseline: Floats, candidate: Floats) -> tuple[Floats, Floats]:
    """Return candidate values (k,) and the means of their matched baseline values (k,)."""
    matched = job.pairs.matched
    return candidate[matched.candidate], baseline[matched.baseline].mean(axis=1)


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


def _relation(limit: str) -> dict[str, str]:
    return {
        SUCCESSFUL: f"within the allowed {limit}",
        FAILED: f"below the allowed {limit}",
        INCONCLUSIVE: f"not yet clear of the allowed {limit}",
    }


def _sentence(
    name: str,
    numbers: str,
    relation: dict[str, str],
    verdict: str,
    interval: Interval,
    needed: int,
    unit: str = "requests",
) -> str:
    if verdict == NO_DATA:
        what = name.removesuffix(" is").removesuffix(" changes by")
        return f"{what}: {interval.samples:,} of {needed:,} {unit} needed so far."
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
