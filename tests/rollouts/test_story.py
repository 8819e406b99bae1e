"""The whole way of a rollout, on simulated nodes and in simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apps.access.actors import Actor
from apps.audit.models import Event, Outbox, Webhook
from apps.fleet.models import DesiredDeployment
from apps.lib.errors import Conflict, Forbidden
from apps.models.models import Alias, AliasMove
from apps.rollouts import services
from apps.rollouts.models import Evidence, EvidenceSnapshot, Hold, Rollout, StageState
from tests.rollouts.lab import Lab

pytestmark = pytest.mark.django_db


def served(lab: Lab) -> list[tuple[str, int, str, int]]:
    rows = DesiredDeployment.objects.filter(model=lab.model).order_by("node__name", "role")
    return list(rows.values_list("node__name", "version__number", "role", "weight"))


def test_the_first_version_goes_to_every_node_without_gates(lab: Lab) -> None:
    assert served(lab) == [(f"node-{n}", 1, "baseline", 100) for n in (1, 2, 3)]
    assert Alias.objects.get(name="champion").version.number == 1
    rollout = Rollout.objects.get()
    assert rollout.decision == "v1 serves on 3 nodes of pool default."


def test_a_good_version_passes_is_approved_and_serves_everywhere(
    lab: Lab, start: Callable[..., Rollout], requester: Actor, lead: Actor
) -> None:
    Webhook.objects.create(team=lab.world.team, url="https://example.org/hook", secret="whsec_x", topics=[])
    rollout = start(lab.version(2))
    lab.until(rollout, "paused", within_s=900)
    assert rollout.pause_reason == "approval"
    assert [stage.state for stage in rollout.stages.order_by("index")] == [
        StageState.PASSED, StageState.PASSED, StageState.PASSED, StageState.RUNNING, StageState.WAITING,
    ]  # fmt: skip
    required = Evidence.objects.filter(stage__rollout=rollout, required=True)
    assert required.count() == 3 * 4  # similarity, errors, slo_share, slo_red_line
    assert set(required.values_list("verdict", flat=True)) == {"successful"}
    snapshot = EvidenceSnapshot.objects.get(rollout=rollout)
    assert {row["metric"] for row in snapshot.content["findings"]} >= {"similarity", "errors", "slo_share"}

    with pytest.raises(Forbidden) as refused:
        services.approve_rollout(rollout, actor=requester, reason="mine", now=lab.now)
    assert refused.value.code in ("four_eyes", "role_missing")
    services.approve_rollout(rollout, actor=lead, reason="clean", now=lab.now, expected_revision=rollout.revision)
    lab.until(rollout, "completed", within_s=60)
    assert served(lab) == [(f"node-{n}", 2, "baseline", 100) for n in (1, 2, 3)]
    assert Alias.objects.get(name="champion").version.number == 2
    assert AliasMove.objects.filter(rollout_id=rollout.pk).count() == 1
    topics = list(Outbox.objects.order_by("created_at").values_list("topic", flat=True))
    assert topics == ["rollout.started", "rollout.waiting_for_approval", "rollout.completed"]
    verbs = list(Event.objects.filter(object_id=str(rollout.pk)).order_by("id").values_list("verb", flat=True))
    assert verbs.count("rollout.stage_started") == 5
    assert verbs.index("rollout.approved") < len(verbs) - 2


def test_a_bad_version_is_caught_in_shadow_and_held(
    lab: Lab, start: Callable[..., Rollout], requester: Actor, lead: Actor
) -> None:
    bad = lab.version(3, similarity=0.965, scatter=0.01)
    rollout = start(bad)
    lab.until(rollout, "rolled_back", within_s=120)
    assert rollout.stage_index == 0
    assert rollout.decision.startswith("Output similarity is 0.96")
    assert rollout.decision.endswith("below the required 0.98: v2 was rolled back in shadow 10 %.")
    assert served(lab) == [(f"node-{n}", 1, "baseline", 100) for n in (1, 2, 3)]
    assert Alias.objects.get(name="champion").version.number == 1

    with pytest.raises(Conflict) as held:
        start(bad)
    assert held.value.code == "held"
    assert "approver" in held.value.sentence
    hold = Hold.objects.get()
    with pytest.raises(Forbidden):
        services.lift_hold(hold, actor=requester, reason="please", now=lab.now)
    services.lift_hold(hold, actor=lead, reason="measured again by hand", now=lab.now)
    again = start(bad)
    lab.until(again, "rolled_back", within_s=120)
    assert Hold.objects.filter(lifted_at=None).count() == 1
