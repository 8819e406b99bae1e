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
)

FIRST = "first"
MINUTE_S = 60.0


def _demo_metrics(similarity: float, pairs: int) -> tuple[MetricRule, ...]:
    """For a demonstration's few requests a second: wider margins on shares, so that fewer requests prove them."""
    return (
        MetricRule(name=MetricName.SIMILARITY, margin=similarity, min_samples=pairs),
        MetricRule(name=MetricName.ERRORS, margin=0.03),
        MetricRule(name=MetricName.SLO, margin=0.05),
        MetricRule(name=MetricName.P99, margin=0.05, required=False),
        MetricRule(name=MetricName.AUC, margin=0.02, required=False),
        MetricRule(name=MetricName.ENTROPY, margin=0.2, required=False),
    )


def _demo(similarity: float, pairs: int) -> tuple[AnyStage, ...]:
    """The standard's stages in a minute or two each at some thirty requests a second; longer when they are few."""
    common = {
        "metrics": _demo_metrics(similarity, pairs),
        "min_samples": 180,
        "bake_s": 10.0,
        "window_s": 60.0,
        "max_duration_s": 1200.0,
        "ready_s": 300.0,
    }
    return (
        ShadowStage(percent=10, **common),
        CanaryStage(weight=10, mirror_percent=20, **common),
        CanaryStage(weight=50, mirror_percent=20, **common),
        ApprovalStage(),
        FullStage(ready_s=300.0),
    )


def _standard_stage(samples: int, bake_s: float) -> dict[str, Any]:
    return {"min_samples": samples, "bake_s": bake_s, "window_s": 2 * bake_s, "max_duration_s": 12 * bake_s}


_STANDARD: tuple[AnyStage, ...] = (
    ShadowStage(percent=10, **_standard_stage(1000, 10 * MINUTE_S)),
    CanaryStage(weight=10, **_standard_stage(1000, 15 * MINUTE_S)),
    CanaryStage(weight=50, **_standard_stage(2000, 15 * MINUTE_S)),
    ApprovalStage(),
    FullStage(),
)

# slug → (what it is for, stages)
STRATEGIES: dict[str, tuple[str, tuple[AnyStage, ...]]] = {
    "standard": ("Shadow 10 %, canary 10 % and 50 %, a person's approval, then everywhere.", _STANDARD),
    "demo": ("The standard's stages in minutes, for some tens of requests a second.", _demo(0.98, 265)),
    # a retrained classifier may be right in its own way: probabilities agree less than embeddings do
    "digits-demo": ("The demo for retrained classifiers, whose outputs agree less.", _demo(0.9, 180)),
    FIRST: (
        "Straight to all nodes: for a model that nothing serves yet, or a version that has passed its gates elsewhere.",
        (FullStage(),),
    ),
}
