"""Typed stages of a rollout: what a plan may say, checked when it is written.

A plan is a list of stages, the last one `full`. Its stages' required metrics share α = 0.05; a minimum of samples
that could not prove a margin even if all went well is refused here, not discovered after an hour of canary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from apps.lib.canonical import canonical_json
from apps.lib.errors import DomainError
from apps.rollouts import confidence
from protocol.messages import Slug

ALPHA = 0.05  # the chance that a rollout passes on evidence that only looked good
SLO_RED_LINE = 0.95  # the share of requests within the SLO that holds always, whatever the baseline does
APPROVAL_LIFE_MAX_S = 4 * 3600.0
DAY_S = 86_400.0


class MetricName(StrEnum):
    """What is judged; `margin` means something else for each."""

    SIMILARITY = "similarity"  # mean cosine of mirrored outputs: at least the margin
    ERRORS = "errors"  # error rate, candidate minus baseline: at most the margin
    SLO = "slo"  # share within the SLO may fall by at most the margin, and never below the red line
    P99 = "p99"  # share of requests above the baseline's p99, candidate minus baseline: at most the margin
    AUC = "auc"  # candidate minus baseline, from labelled feedback: falls by at most the margin
    ENTROPY = "entropy"  # bits, candidate minus baseline: moves by at most the margin


# Judged by intervals that hold for one look only, so they may inform a person but never decide.
ADVISORY_ONLY = frozenset({MetricName.AUC, MetricName.ENTROPY})


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MetricRule(Strict):
    """One metric, its margin, and whether it decides (required) or only informs (advisory)."""

    name: MetricName
    margin: float = Field(gt=0.0, lt=1.0)
    required: bool = True
    min_samples: int | None = Field(default=None, ge=1, le=10_000_000)  # None: the stage's

    @model_validator(mode="after")
    def _may_decide(self) -> MetricRule:
        if self.required and self.name in ADVISORY_ONLY:
            raise ValueError(f"{self.name} can only be advisory: its interval is not valid under repeated looks")
        return self

    @property
    def bold(self) -> float:
        """How boldly the confidence sequence bets for a pass (confidence.py)."""
        is_similarity = self.name is MetricName.SIMILARITY
        return confidence.BOLD_FOR_SIMILARITY if is_similarity else confidence.BOLD_FOR_SHARES

    def fewest_samples(self, alpha: float) -> int:
        """Return how many samples it takes at least to prove the margin at level `alpha`, all of them flawless.

        For differences, flawless means that neither side errs. 1 for metrics that have no such number.
        """
        if self.name is MetricName.SIMILARITY:
            return confidence.fewest_samples(1.0, self.margin, alpha, self.bold)
        if self.name in ADVISORY_ONLY:
            return 1
        of_difference = confidence.fewest_samples(0.5, (1.0 - self.margin) / 2.0, alpha, self.bold)
        if self.name is not MetricName.SLO:
            return of_difference
        return max(of_difference, confidence.fewest_samples(1.0, SLO_RED_LINE, alpha, self.bold))


def default_metrics() -> tuple[MetricRule, ...]:
    """Return what a stage judges when it doesn't say."""
    return (
        MetricRule(name=MetricName.SIMILARITY, margin=0.98),
        MetricRule(name=MetricName.ERRORS, margin=0.01),
        MetricRule(name=MetricName.SLO, margin=0.05),
        MetricRule(name=MetricName.P99, margin=0.02, required=False),
        MetricRule(name=MetricName.AUC, margin=0.02, required=False),
        MetricRule(name=MetricName.ENTROPY, margin=0.2, required=False),
    )


class Analysing(Strict):
    """What shadow and canary share: metrics, samples, and the windows in which they are gathered."""

    metrics: tuple[MetricRule, ...] = Field(default_factory=default_metrics, min_length=1)
    min_samples: int = Field(ge=1, le=10_000_000)
    bake_s: float = Field(default=0.0, ge=0.0, le=7 * DAY_S)  # at least this long, however clear the evidence
    window_s: float = Field(gt=0.0, le=7 * DAY_S)  # extended while the evidence is undecided …
    max_duration_s: float = Field(gt=0.0, le=14 * DAY_S)  # … up to this; then a person is asked
    ready_s: float = Field(default=900.0, gt=0.0, le=DAY_S)  # for nodes to fetch, load and warm up

    @model_validator(mode="before")
    @classmethod
    def _similarity_shorthand(cls, data: Any) -> Any:
        """Accept `similarity: 0.98` beside the metrics, the way people say it."""
        if not isinstance(data, dict) or "similarity" not in data:
            return data
        data = dict(data)
        margin = data.pop("similarity")
        rules = data.get("metrics", [rule.model_dump() for rule in default_metrics()])
        others = [rule for rule in rules if _name_of(rule) != MetricName.SIMILARITY]
        return {**data, "metrics": [{"name": "similarity", "margin": margin}, *others]}

    @model_validator(mode="after")
    def _consistent(self) -> Analysing:
        names = [rule.name for rule in self.metrics]
        if len(set(names)) != len(names):
            raise ValueError("a metric is named twice")
        if not any(rule.required for rule in self.metrics):
            raise ValueError("at least one metric must be required: a stage without a gate would pass anything")
        if self.max_duration_s < max(self.window_s, self.bake_s):
            raise ValueError("max_duration_s must be at least window_s and bake_s")
        return self

    def needed(self, rule: MetricRule) -> int:
        """Return how many samples a metric must have before it may pass."""
        return rule.min_samples or self.min_samples

    @property
    def required(self) -> tuple[MetricRule, ...]:
        return tuple(rule for rule in self.metrics if rule.required)


def _name_of(rule: Any) -> Any:
    return rule.get("name") if isinstance(rule, dict) else getattr(rule, "name", None)


class ShadowStage(Analysing):
    """Mirrored requests go through both versions; people get the baseline's answers only."""

    kind: Literal["shadow"] = "shadow"
    percent: int = Field(ge=1, le=100)  # of each gateway's requests, mirrored

    @property
    def weight(self) -> int:
        return 0

    @property
    def mirror_percent(self) -> int:
        return self.percent

    @property
    def label(self) -> str:
        return f"shadow {self.percent} %"


class Zones(Strict):
    zone: tuple[Slug, ...] = Field(min_length=1)


class CanaryStage(Analysing):
    """The candidate answers a share of the requests; mirroring goes on, so that similarity stays judged."""

    kind: Literal["canary"] = "canary"
    weight: int = Field(ge=1, le=99)  # percent of requests at each participating node's gateway
    nodes: Literal["all"] | Annotated[int, Field(ge=1)] | Zones = "all"
    mirror_percent: int = Field(default=10, ge=0, le=100)

    @model_validator(mode="after")
    def _mirrors_what_it_judges(self) -> CanaryStage:
        if self.mirror_percent == 0 and any(rule.name is MetricName.SIMILARITY for rule in self.required):
            raise ValueError("a canary that requires similarity must go on mirroring: mirror_percent is 0")
        return self

    @property
    def label(self) -> str:
        where = "" if self.nodes == "all" else " on some nodes"
        return f"canary {self.weight} %{where}"


class ApprovalStage(Strict):
    """A pause for people. What ran before it goes on running and being judged."""

    kind: Literal["approval"] = "approval"
    roles: tuple[Literal["approver", "admin"], ...] = Field(default=("approver",), min_length=1)
    approvers: int = Field(default=1, ge=1, le=10)
    expires_s: float = Field(default=APPROVAL_LIFE_MAX_S, gt=0.0, le=APPROVAL_LIFE_MAX_S)

    @property
    def label(self) -> str:
        return "approval" if self.approvers == 1 else f"approval by {self.approvers}"


class FullStage(Strict):
    """The candidate becomes the baseline of every node of the pool."""

    kind: Literal["full"] = "full"
    ready_s: float = Field(default=1800.0, gt=0.0, le=DAY_S)

    @property
    def label(self) -> str:
        return "full"


AnyStage = Annotated[ShadowStage | CanaryStage | ApprovalStage | FullStage, Field(discriminator="kind")]
AnalysingStage = ShadowStage | CanaryStage
Plan = tuple[AnyStage, ...]
_PLAN: TypeAdapter[Plan] = TypeAdapter(Annotated[Plan, Field(min_length=1, max_length=20)])


def parse_plan(stages: Any) -> Plan:
    """Return the typed stages of a plan given as JSON data. Raises DomainError(`bad_plan`) with one sentence."""
    if not isinstance(stages, (list, tuple)):
        raise DomainError("bad_plan", "A plan is a list of stages, the last one «full».")
    try:
        plan = _PLAN.validate_python(stages)
    except ValidationError as bad:
        first = bad.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DomainError("bad_plan", f"The plan is wrong at «{where}»: {first['msg']}.") from bad
    check_plan(plan)
    return plan


def check_plan(plan: Sequence[AnyStage]) -> None:
    """Check what no single stage can see. Raises DomainError: `bad_plan`, `too_few_samples`."""
    kinds = [stage.kind for stage in plan]
    if kinds.count("full") != 1 or kinds[-1] != "full":
        raise DomainError("bad_plan", "A plan ends with its one «full» stage; put it last.")
    judged = analysing_stages(plan)
    if len(plan) > 1 and not judged:
        raise DomainError("bad_plan", "A plan that asks people must show them evidence: add a shadow or canary stage.")
    if "approval" in kinds and kinds[0] == "approval":
        raise DomainError("bad_plan", "Nobody can approve without evidence: put shadow or canary before «approval».")
    weights = [stage.weight for stage in judged]
    if weights != sorted(weights):
        raise DomainError("bad_plan", "The candidate's weight may only rise from stage to stage; order the stages so.")
    _check_samples(plan)


def _check_samples(plan: Sequence[AnyStage]) -> None:
    alpha = alpha_each(plan)
    for index, stage in enumerate(plan):
        if not isinstance(stage, AnalysingStage):
            continue
        for rule in stage.required:
            fewest = rule.fewest_samples(alpha)
            if stage.needed(rule) < fewest:
                raise DomainError(
                    "too_few_samples",
                    f"Stage {index + 1} ({stage.label}) asks for {stage.needed(rule)} samples, but {rule.name} within "
                    f"{rule.margin:g} takes at least {fewest} to prove; raise min_samples or widen the margin.",
                )


def analysing_stages(plan: Iterable[AnyStage]) -> list[AnalysingStage]:
    """Return the stages that gather evidence, in order."""
    return [stage for stage in plan if isinstance(stage, AnalysingStage)]


def alpha_each(plan: Sequence[AnyStage]) -> float:
    """Return the level of each single judgement: α split over required metrics and stages (Bonferroni)."""
    judgements = sum(len(stage.required) for stage in analysing_stages(plan))
    return ALPHA / max(1, judgements)


def dump_plan(plan: Sequence[AnyStage]) -> list[dict[str, Any]]:
    """Return the plan as JSON data with every default written out: what is frozen into a rollout."""
    return [stage.model_dump(mode="json") for stage in plan]


def plan_sha256(plan: Sequence[AnyStage]) -> str:
    """Return the hash that an approval names, so that an edited plan voids it."""
    return hashlib.sha256(canonical_json(dump_plan(plan))).hexdigest()
