"""The strategies that every team starts with."""

from __future__ import annotations

from typing import Any

from apps.rollouts.strategy import (
    AnyStage,
    ApprovalStage,
    CanaryStage,
    FullStage,
    MetricName,
    MetricRule,
    ShadowStage,
    default_metrics,
)

FIRST = "first"
MINUTE_S = 60.0

# For a demonstration's traffic of a few requests a second: wider margins on shares, the same proof of similarity
_DEMO_METRICS = (
    MetricRule(name=MetricName.SIMILARITY, margin=0.98),
    MetricRule(name=MetricName.ERRORS, margin=0.03),
    MetricRule(name=MetricName.SLO, margin=0.05),
    MetricRule(name=MetricName.P99, margin=0.05, required=False),
    MetricRule(name=MetricName.AUC, margin=0.02, required=False),
    MetricRule(name=MetricName.ENTROPY, margin=0.2, required=False),
)

# A retrained classifier may be right in its own way: probabilities agree less than embeddings do
_DIGITS_METRICS = (
    MetricRule(name=MetricName.SIMILARITY, margin=0.9),
    MetricRule(name=MetricName.ERRORS, margin=0.05),
    MetricRule(name=MetricName.SLO, margin=0.05),
    MetricRule(name=MetricName.P99, margin=0.05, required=False),
    MetricRule(name=MetricName.AUC, margin=0.02, required=False),
    MetricRule(name=MetricName.ENTROPY, margin=0.2, required=False),
)


def _short(samples: int) -> dict[str, Any]:
    """Windows of a demonstration: half a minute, extended up to ten minutes when requests are few."""
    return {"min_samples": samples, "bake_s": 5.0, "window_s": 30.0, "max_duration_s": 600.0, "ready_s": 300.0}


def _long(samples: int, bake_s: float) -> dict[str, Any]:
    return {"min_samples": samples, "bake_s": bake_s, "window_s": 2 * bake_s, "max_duration_s": 12 * bake_s}


def _stages(metrics: tuple[MetricRule, ...], windows: list[dict[str, Any]], mirror: int) -> tuple[AnyStage, ...]:
    shadow, small, half = windows
    return (
        ShadowStage(percent=mirror, metrics=metrics, **shadow),
        CanaryStage(weight=10, mirror_percent=mirror, metrics=metrics, **small),
        CanaryStage(weight=50, mirror_percent=mirror, metrics=metrics, **half),
        ApprovalStage(),
        FullStage(),
    )


# slug → (what it is for, stages)
STRATEGIES: dict[str, tuple[str, tuple[AnyStage, ...]]] = {
    "standard": (
        "Shadow 10 %, canary 10 % and 50 %, a person's approval, then everywhere.",
        _stages(default_metrics(), [_long(1000, 10 * MINUTE_S), _long(1000, 15 * MINUTE_S), _long(2000, 900.0)], 10),
    ),
    "demo": (
        "The standard's stages in minutes, for a few requests a second.",
        _stages(_DEMO_METRICS, [_short(300)] * 3, 10),
    ),
    "digits-demo": (
        "The demo for classifiers that were retrained, whose outputs agree less.",
        _stages(_DIGITS_METRICS, [_short(120)] * 3, 10),
    ),
    FIRST: (
        "Straight to all nodes: for a model that nothing serves yet, or a version that has passed its gates elsewhere.",
        (FullStage(),),
    ),
}
