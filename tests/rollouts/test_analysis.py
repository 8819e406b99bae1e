"""From samples to verdicts: what passes, what fails, what is not decided, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apps.rollouts.analysis import FEWEST_TO_FAIL, analyse
from apps.rollouts.auc import macro_auc
from apps.rollouts.findings import Finding
from apps.rollouts.samples import (
    Comparisons,
    Requests,
    StageData,
    baselines_each,
    batch_class,
    cap_nodes,
    match,
)
from apps.rollouts.strategy import CanaryStage, ShadowStage, default_metrics

ALPHA = 0.05 / 9
SHADOW = ShadowStage(percent=10, min_samples=600, window_s=60, max_duration_s=600)
CANARY = CanaryStage(weight=10, min_samples=600, window_s=60, max_duration_s=600)


def comparisons(similarity: Any, **changes: Any) -> Comparisons:
    """Pairs on three nodes in turn, both sides answering in 20 ms."""
    x = np.asarray(similarity, dtype=float)
    n = len(x)
    fields: dict[str, Any] = {
        "time_s": np.arange(n, dtype=float),
        "node": np.arange(n) % 3,
        "batch_size": np.ones(n, dtype=np.int64),
        "similarity": x,
        "baseline_ms": np.full(n, 20.0),
        "candidate_ms": np.full(n, 20.0),
        "baseline_error": np.zeros(n, dtype=bool),
        "candidate_error": np.zeros(n, dtype=bool),
        "request_id": [f"r{i}" for i in range(n)],
        "sample": [f"sentence {i}" for i in range(n)],
        "nodes": ["node-1", "node-2", "node-3"],
    }
    return Comparisons(**(fields | changes))


def requests(n: int, **changes: Any) -> Requests:
    fields: dict[str, Any] = {
        "time_s": np.arange(n, dtype=float),
        "node": np.arange(n) % 3,
        "batch_size": np.ones(n, dtype=np.int64),
        "latency_ms": np.full(n, 20.0),
        "error": np.zeros(n, dtype=bool),
        "entropy": np.full(n, np.nan),
        "score": np.full(n, np.nan),
        "predicted": [""] * n,
        "label": [None] * n,
    }
    return Requests(**(fields | changes))


def shadow(rows: Comparisons) -> dict[str, Finding]:
    data = StageData(rows, requests(0), requests(0), slo_latency_ms=500.0)
    return {finding.metric: finding for finding in analyse(SHADOW, ALPHA, data)}


def canary(baseline: Requests, candidate: Requests, similarity: Any = ()) -> dict[str, Finding]:
    data = StageData(comparisons(similarity), baseline, candidate, 500.0, baselines_each(CANARY.weight))
    return {finding.metric: finding for finding in analyse(CANARY, ALPHA, data)}


def similar(mean: float, scatter: float, n: int, seed: int = 1) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(mean, scatter, n), 0.0, 1.0)


def verdicts(findings: dict[str, Finding]) -> dict[str, str]:
    return {metric: finding.verdict for metric, finding in findings.items()}


def test_a_faithful_version_passes_every_required_metric_in_shadow() -> None:
    findings = shadow(comparisons(similar(0.9994, 0.0004, 700)))
    required = {metric: finding.verdict for metric, finding in findings.items() if finding.required}
    assert required == dict.fromkeys(["similarity", "errors", "slo_share", "slo_red_line"], "successful")
    assert findings["similarity"].sentence.startswith("Output similarity is 0.999 (0.99")
    assert verdicts(findings)["auc"] == "no_data"


def test_the_everyday_mistake_is_caught_within_thirty_pairs() -> None:
    finding = shadow(comparisons(similar(0.965, 0.012, FEWEST_TO_FAIL)))["similarity"]
    assert finding.verdict == "failed"
    assert finding.high is not None
    assert finding.high < 0.98
    assert finding.sentence.endswith(f"{FEWEST_TO_FAIL} pairs), below the required 0.98.")


def test_a_failure_needs_a_few_samples_however_bad_they_are() -> None:
    assert shadow(comparisons(np.zeros(FEWEST_TO_FAIL - 1)))["similarity"].verdict == "no_data"
    assert shadow(comparisons(np.zeros(FEWEST_TO_FAIL)))["similarity"].verdict == "failed"


def test_nothing_and_too_little_are_no_data_and_never_pass() -> None:
    assert set(verdicts(shadow(comparisons([]))).values()) == {"no_data"}
    assert shadow(comparisons(np.ones(599)))["similarity"].verdict == "no_data"
    assert shadow(comparisons(np.ones(599)))["similarity"].sentence == (
        "Output similarity: 599 of 600 pairs needed so far."
    )


def test_between_the_margins_nothing_is_decided() -> None:
    finding = shadow(comparisons(similar(0.9805, 0.02, 700)))["similarity"]
    assert finding.verdict == "inconclusive"
    assert finding.low is not None
    assert finding.high is not None
    assert finding.low < 0.98 < finding.high


def test_one_side_failing_counts_as_an_error_not_as_dissimilar() -> None:
    rows = comparisons(similar(0.9994, 0.0004, 700))
    broken = np.arange(700) % 10 == 0
    rows = replace(rows, candidate_error=broken, similarity=np.where(broken, np.nan, rows.similarity))
    findings = shadow(rows)
    assert findings["similarity"].verdict == "successful"
    assert findings["similarity"].samples == 630
    assert findings["errors"].verdict == "failed"
    assert "above the allowed +1.0 points" in findings["errors"].sentence


def test_a_slow_version_fails_its_share_within_the_slo() -> None:
    rows = comparisons(similar(0.9994, 0.0004, 700))
    slow = replace(rows, candidate_ms=np.where(np.arange(700) % 5 == 0, 900.0, 20.0))
    findings = shadow(slow)
    assert findings["slo_share"].verdict == "failed"
    assert findings["slo_red_line"].verdict == "failed"
    assert findings["slo_share"].estimate == pytest.approx(-0.2)
    assert findings["slo_share"].margin == -0.05


def test_the_red_line_holds_though_the_baseline_is_as_slow() -> None:
    rows = comparisons(similar(0.9994, 0.0004, 2_000))
    both = np.where(np.arange(2_000) % 10 == 0, 900.0, 20.0)
    findings = shadow(replace(rows, candidate_ms=both, baseline_ms=both))
    assert findings["slo_share"].verdict == "successful"
    assert findings["slo_red_line"].verdict == "failed"


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"similarity": np.full(700, 1.2)}, "similarity"),
        ({"similarity": np.full(700, -0.5)}, "similarity"),
        ({"similarity": np.full(700, np.nan)}, "similarity"),
        ({"candidate_ms": np.full(700, -1.0)}, "slo"),
        ({"baseline_ms": np.full(700, np.inf)}, "p99"),
    ],
)
def test_data_that_can_not_be_right_is_an_error_of_its_metric_alone(changes: dict[str, Any], metric: str) -> None:
    findings = shadow(replace(comparisons(np.ones(700)), **changes))
    assert findings[metric].verdict == "error"
    assert findings["errors"].verdict == "successful"


def test_worst_pairs_and_histogram_are_kept_for_people() -> None:
    x = similar(0.999, 0.0005, 700)
    x[[5, 50]] = (0.91, 0.93)
    detail = shadow(comparisons(x))["similarity"].detail
    assert [pair["request_id"] for pair in detail["worst"][:2]] == ["r5", "r50"]
    assert detail["worst"][0]["node"] == "node-3"
    assert sum(detail["histogram"]["counts"]) == 700
    assert len(detail["histogram"]["edges"]) == len(detail["histogram"]["counts"]) + 1
    assert [row["name"] for row in detail["by_node"]] == ["node-1", "node-2", "node-3"]


def test_a_canary_is_judged_by_live_requests() -> None:
    findings = canary(requests(6_000), requests(700), similar(0.9994, 0.0004, 700))
    assert all(finding.verdict == "successful" for finding in findings.values() if finding.required)
    failing = requests(700, error=np.random.default_rng(2).random(700) < 0.08)
    assert canary(requests(6_000), failing)["errors"].verdict == "failed"


def test_a_rise_within_the_margin_passes_given_enough_requests() -> None:
    rng = np.random.default_rng(4)
    baseline = requests(60_000, error=rng.random(60_000) < 0.010)
    candidate = requests(9_000, error=rng.random(9_000) < 0.011)
    assert canary(baseline, candidate)["errors"].verdict == "successful"


def test_batches_are_compared_with_batches_of_their_class() -> None:
    """The baseline's fuller batches are slower; that must not make the canary look fast, nor the other way round."""
    sizes_b = np.where(np.arange(8_000) % 2 == 0, 1, 8)
    baseline = requests(8_000, batch_size=sizes_b, latency_ms=np.where(sizes_b == 8, 600.0, 20.0))
    sizes_c = np.where(np.arange(700) % 8 == 0, 8, 1)
    candidate = requests(700, batch_size=sizes_c, latency_ms=np.where(sizes_c == 8, 600.0, 20.0))
    finding = canary(baseline, candidate)["slo_share"]
    assert finding.estimate == pytest.approx(0.0)
    assert [row["name"] for row in finding.detail["by_batch"]] == ["1", "5–16"]


def test_p99_is_the_share_above_the_line_that_the_first_baseline_requests_set() -> None:
    rng = np.random.default_rng(6)
    baseline = requests(9_000, latency_ms=rng.gamma(4.0, 5.0, 9_000))
    same = canary(baseline, requests(900, latency_ms=rng.gamma(4.0, 5.0, 900)))["p99"]
    slower = canary(baseline, requests(900, latency_ms=rng.gamma(4.0, 8.0, 900)))["p99"]
    assert not same.required
    assert same.verdict in ("successful", "inconclusive")
    assert slower.verdict == "failed"
    assert slower.unit == "ms"
    assert slower.candidate is not None
    assert slower.baseline is not None
    assert slower.candidate > slower.baseline
    assert canary(requests(150), requests(20))["p99"].verdict == "no_data"


def test_no_node_counts_more_than_one_and_a_half_shares() -> None:
    node = np.array([0] * 9_000 + [1, 2] * 500)
    kept = cap_nodes(np.random.default_rng(1).permutation(node))
    order = np.random.default_rng(1).permutation(node)
    assert (order[kept] == 0).mean() <= 0.5 + 1e-9
    assert (order[kept] == 1).sum() == 500
    assert cap_nodes(np.zeros(50, dtype=np.int64)).all()


def test_a_loud_node_of_three_can_not_outvote_the_others() -> None:
    loud = np.array(([0] * 8 + [1, 2]) * 300)
    finding = shadow(comparisons(np.where(loud == 0, 0.90, 0.9994), node=loud))["similarity"]
    assert finding.samples <= 2 * (loud != 0).sum() + 20
    assert finding.estimate == pytest.approx((0.90 + 0.9994) / 2, abs=0.002)  # by traffic alone it were 0.92


def test_matching_takes_each_request_once_and_keeps_the_order() -> None:
    matched = match(requests(1_000), requests(100), 7)
    assert matched.baseline.shape == (len(matched.candidate), 7)
    assert len(np.unique(matched.candidate)) == len(matched.candidate)
    assert len(np.unique(matched.baseline)) == matched.baseline.size
    assert (np.diff(matched.baseline[:, -1]) >= 0).all()


@pytest.mark.parametrize(("weight", "expected"), [(1, 8), (5, 8), (10, 7), (25, 2), (50, 1), (90, 1)])
def test_baselines_matched_to_each_canary_request(weight: int, expected: int) -> None:
    assert baselines_each(weight) == expected


def test_batch_classes() -> None:
    assert batch_class(np.array([1, 2, 4, 5, 16, 17, 64])).tolist() == [0, 1, 1, 2, 2, 3, 3]


def labelled(n: int, skill: float, seed: int) -> Requests:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 10, n)
    right = rng.random(n) < skill
    guess = np.where(right, truth, (truth + rng.integers(1, 10, n)) % 10)
    score = np.where(right, rng.uniform(0.6, 1.0, n), rng.uniform(0.3, 0.8, n))
    return requests(n, score=score, predicted=[str(g) for g in guess], label=[str(t) for t in truth])


def test_auc_agrees_with_its_definition_and_covers_the_truth() -> None:
    score = np.array([0.9, 0.8, 0.8, 0.7, 0.6, 0.4] * 4)
    label = ["a", "a", "b", "a", "b", "b"] * 4
    auc = macro_auc(score, ["a"] * 24, label)
    positive = np.array([each == "a" for each in label])
    pairs = [(p > q) + 0.5 * (p == q) for p in score[positive] for q in score[~positive]]
    assert auc is not None
    assert auc.value == pytest.approx(np.mean(pairs))
    assert macro_auc(score, ["a"] * 24, ["a"] * 24) is None


def test_aucs_error_is_that_of_repeated_experiments() -> None:
    values, errors = [], []
    for seed in range(200):
        side = labelled(400, 0.9, seed)
        auc = macro_auc(side.score, side.predicted, [str(label) for label in side.label])
        assert auc is not None
        values.append(auc.value)
        errors.append(auc.error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)


def test_auc_and_entropy_inform_and_do_not_decide() -> None:
    worse = canary(labelled(2_000, 0.95, 1), labelled(2_000, 0.5, 2))["auc"]
    assert (worse.verdict, worse.required) == ("failed", False)
    same = canary(labelled(3_000, 0.95, 1), labelled(3_000, 0.95, 2))["auc"]
    assert same.verdict == "successful"
    calm = requests(500, entropy=np.random.default_rng(1).normal(5.1, 0.3, 500))
    nervous = requests(500, entropy=np.random.default_rng(2).normal(6.0, 0.3, 500))
    assert canary(calm, nervous)["entropy"].verdict == "failed"
    assert canary(calm, calm)["entropy"].verdict == "successful"
    assert not any(rule.required for rule in default_metrics() if rule.name in ("auc", "entropy"))
