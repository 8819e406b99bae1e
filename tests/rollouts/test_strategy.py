"""What a plan may say, and what is refused when it is written."""

from __future__ import annotations

from typing import Any

import pytest

from apps.lib.errors import DomainError
from apps.rollouts.defaults import STRATEGIES
from apps.rollouts.strategy import (
    CanaryStage,
    MetricName,
    MetricRule,
    ShadowStage,
    alpha_each,
    analysing_stages,
    check_plan,
    dump_plan,
    parse_plan,
    plan_sha256,
)

WINDOWS = {"window_s": 60, "max_duration_s": 600}
FULL = {"kind": "full"}


def shadow(**changes: Any) -> dict[str, Any]:
    return {"kind": "shadow", "percent": 10, "min_samples": 1_000, **WINDOWS, **changes}


def canary(**changes: Any) -> dict[str, Any]:
    return {"kind": "canary", "weight": 10, "min_samples": 1_000, **WINDOWS, **changes}


def refused(stages: Any) -> DomainError:
    with pytest.raises(DomainError) as error:
        parse_plan(stages)
    return error.value


@pytest.mark.parametrize("slug", STRATEGIES)
def test_the_default_strategies_can_be_proven_and_survive_being_stored(slug: str) -> None:
    _, plan = STRATEGIES[slug]
    check_plan(plan)
    assert parse_plan(dump_plan(plan)) == plan
    assert plan_sha256(parse_plan(dump_plan(plan))) == plan_sha256(plan)


def test_the_standard_splits_alpha_nine_ways() -> None:
    _, plan = STRATEGIES["standard"]
    assert alpha_each(plan) == pytest.approx(0.05 / 9)
    similarity = MetricRule(name=MetricName.SIMILARITY, margin=0.98)
    assert similarity.fewest_samples(alpha_each(plan)) == 258
    assert similarity.fewest_samples(0.05) == 149


def test_too_few_samples_to_prove_the_margin_are_refused_with_the_number_that_would_do() -> None:
    only = [{"name": "similarity", "margin": 0.98}]
    error = refused([shadow(metrics=only, min_samples=148), FULL])
    assert error.code == "too_few_samples"
    assert "at least 149" in error.sentence
    assert parse_plan([shadow(metrics=only, min_samples=149), FULL])


def test_the_number_grows_with_the_stages_that_share_alpha() -> None:
    only = [{"name": "similarity", "margin": 0.98}]
    stages = [shadow(metrics=only, min_samples=149), canary(metrics=only, min_samples=149), FULL]
    assert "at least 184" in refused(stages).sentence


def test_a_metric_may_need_more_samples_than_its_stage() -> None:
    rules = [{"name": "similarity", "margin": 0.98, "min_samples": 200}, {"name": "slo", "margin": 0.05}]
    stage = parse_plan([shadow(metrics=rules, min_samples=100), FULL])[0]
    assert isinstance(stage, ShadowStage)
    assert [stage.needed(rule) for rule in stage.metrics] == [200, 100]


def test_similarity_may_be_said_beside_the_metrics() -> None:
    stage = parse_plan([shadow(similarity=0.9), FULL])[0]
    assert isinstance(stage, ShadowStage)
    rules = {rule.name: rule.margin for rule in stage.metrics}
    assert rules[MetricName.SIMILARITY] == 0.9
    assert rules[MetricName.ERRORS] == 0.01


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([], "at least 1 item"),
        ([shadow()], "ends with its one «full»"),
        ([FULL, FULL], "ends with its one «full»"),
        ([FULL, shadow()], "ends with its one «full»"),
        ([{"kind": "approval"}, FULL], "must show them evidence"),
        ([{"kind": "approval"}, shadow(), FULL], "without evidence"),
        ([canary(weight=50), canary(weight=10), FULL], "may only rise"),
        ([canary(), shadow(), FULL], "may only rise"),
        ([shadow(percent=0), FULL], "percent"),
        ([canary(weight=100), FULL], "weight"),
        ([canary(mirror_percent=0), FULL], "must go on mirroring"),
        ([canary(nodes={"zone": []}), FULL], "nodes"),
        ([canary(nodes=0), FULL], "nodes"),
        ([shadow(metrics=[]), FULL], "metrics"),
        ([shadow(metrics=[{"name": "p99", "margin": 0.1, "required": False}]), FULL], "without a gate"),
        ([shadow(metrics=[{"name": "auc", "margin": 0.02}]), FULL], "only be advisory"),
        ([shadow(metrics=[{"name": "similarity", "margin": 1.0}]), FULL], "margin"),
        ([shadow(metrics=[{"name": "errors", "margin": 0.1}] * 2), FULL], "named twice"),
        ([shadow(window_s=700), FULL], "max_duration_s"),
        ([shadow(percentage=10), FULL], "percentage"),
        ([{"kind": "approval", "expires_s": 14_401}, FULL], "expires_s"),
        ([{"kind": "blue-green"}, FULL], "blue-green"),
        ("full", "a list of stages"),
        ([7], "0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_one_sentence(stages: Any, says: str) -> None:
    error = refused(stages)
    assert error.code == "bad_plan"
    assert says in error.sentence


def test_every_change_of_a_plan_changes_its_hash() -> None:
    plans = [
        parse_plan(stages)
        for stages in (
            [shadow(), FULL],
            [shadow(percent=11), FULL],
            [shadow(), {"kind": "approval"}, FULL],
            [shadow(), {"kind": "approval", "approvers": 2}, FULL],
        )
    ]
    assert len({plan_sha256(plan) for plan in plans}) == len(plans)


def test_canaries_say_which_nodes_take_part() -> None:
    plan = parse_plan([canary(nodes=1), canary(nodes={"zone": ["zone-a"]}), canary(nodes="all"), FULL])
    stages = [stage for stage in analysing_stages(plan) if isinstance(stage, CanaryStage)]
    assert [stage.label for stage in stages] == ["canary 10 % on some nodes"] * 2 + ["canary 10 %"]
