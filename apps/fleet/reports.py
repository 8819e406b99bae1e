"""What a poll brings home: the node's own account of itself, stored as it comes, newest wins; and the node's orders."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import OuterRef, Subquery
from django.db.models.functions import Coalesce

from aifb.trust import MAX_SEQUENCE_JUMP
from apps.audit.transitions import SYSTEM, Actor, move, record
from apps.fleet.hardware import store_gpus
from apps.fleet.models import Assignment, Condition, Node, NodeBoot, NodePhase, Refusal, ReportedDeployment
from apps.lib.errors import DomainError
from apps.models.models import TrustRoot
from protocol import failpoints
from protocol.messages import (
    AssignmentBundle,
    ConditionReport,
    DeploymentReport,
    PollRequest,
    PollResponse,
)
from protocol.messages import Refusal as RefusalReport

JITTER = 0.1  # of the poll interval: a restarted control plane must not meet the whole fleet at once


def record_poll(node_id: UUID, report: PollRequest, *, now: datetime) -> PollResponse:
    """Store what the node reports and return its orders.

    Reports are ordered by (boot number, report_seq): the server numbers a boot id when it first sees it. An older one
    changes nothing but is answered all the same. Times are the server's; a node's clock orders nothing.
    """
    with transaction.atomic():
        node = _lock(node_id, report.boot_id)
        boot_number = node.known_boot or _number_boot(node, report.boot_id, now)  # type: ignore[attr-defined]
        if (boot_number, report.report_seq) > (node.boot_number, node.report_seq):
            _store(node, boot_number, report, now)
        if node.phase == NodePhase.ACCEPTED:
            move(node, NodePhase.ACTIVE, actor=Actor.node(node.name), reason="First poll.", now=now)
        failpoints.pass_by("poll.stored")
    failpoints.pass_by("poll.before_answer")
    return PollResponse(
        server_time=now.timestamp(),
        interval_s=node.pool.poll_interval_s,
        jitter_s=node.pool.poll_interval_s * JITTER,
        phase=node.phase,
        root_version=node.root_version,  # type: ignore[attr-defined]
        assignment=_bundle_if_newer(node_id, report),
    )


def _lock(node_id: UUID, boot_id: UUID) -> Node:
    """Lock the node's row, and read with it the boot's number (None: never seen) and the newest root's version."""
    boot = NodeBoot.objects.filter(node=OuterRef("pk"), boot_id=boot_id).values("number")[:1]
    root = TrustRoot.objects.order_by("-version").values("version")[:1]
    rows = Node.objects.select_for_update(of=("self",), no_key=True).select_related("pool")
    return rows.annotate(known_boot=Subquery(boot), root_version=Coalesce(Subquery(root), 0)).get(pk=node_id)


def _number_boot(node: Node, boot_id: UUID, now: datetime) -> int:
    number = node.boot_number + 1
    NodeBoot.objects.create(node=node, boot_id=boot_id, number=number, first_seen_at=now)
    return number


def _store(node: Node, boot_number: int, report: PollRequest, now: datetime) -> None:
    _store_deployments(node, report.deployments, now)
    _store_conditions(node, report.conditions, now)
    _store_refusals(node, report.refusals)
    _note_far_sequence(node, report, now)
    if report.hardware is not None:
        _store_hardware(node, report.hardware, now)
    node.boot_number, node.report_seq, node.last_seen_at = boot_number, report.report_seq, now
    node.observed_epoch, node.observed_sequence = report.observed_epoch, report.observed_sequence
    node.agent_version, node.clock_offset_s = report.agent_version, report.clock_offset_s
    node.gateway_url = report.gateway_url or node.gateway_url
    node.save(
        update_fields=[
            "boot_number",
            "report_seq",
            "last_seen_at",
            "observed_epoch",
            "observed_sequence",
            "agent_version",
            "clock_offset_s",
            "gateway_url",
            "hardware",
        ]
    )


def _store_deployments(node: Node, reports: Iterable[DeploymentReport], now: datetime) -> None:
    """Any state may follow any. What is no longer reported is gone from the node."""
    before = {row.deployment_id: row for row in ReportedDeployment.objects.filter(node=node)}
    told = {report.id: report for report in reports}
    gone = before.keys() - told.keys()
    if gone:
        ReportedDeployment.objects.filter(node=node, deployment_id__in=gone).delete()
    rows = [
        ReportedDeployment(node=node, deployment_id=report.id, reported_at=now, **_reported_values(report))
        for report in told.values()
        if report.id not in before or _differs(before[report.id], report)
    ]
    if rows:
        ReportedDeployment.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["node", "deployment_id"],
            update_fields=["reported_at", *_REPORTED_FIELDS],
        )


_REPORTED_FIELDS = ("digest", "state", "reason_code", "reason", "warmup_ms", "weight_in_force", "since")


def _reported_values(report: DeploymentReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in _REPORTED_FIELDS} | {"state": report.state.value}


def _differs(row: ReportedDeployment, report: DeploymentReport) -> bool:
    return any(getattr(row, name) != value for name, value in _reported_values(report).items())


def _store_conditions(node: Node, reports: Iterable[ConditionReport], now: datetime) -> None:
    """`since` is when we first heard of the present status."""
    before = {row.type: row for row in Condition.objects.filter(node=node)}
    told = {report.type: report for report in reports}
    gone = before.keys() - told.keys()
    if gone:
        Condition.objects.filter(node=node, type__in=gone).delete()
    rows = []
    for kind, report in told.items():
        old = before.get(kind)
        if old is None or (old.status, old.reason, old.message) != (report.status, report.reason, report.message):
            since = old.since if old is not None and old.status == report.status else now
            rows.append(Condition(node=node, since=since, **report.model_dump()))
    if rows:
        Condition.objects.bulk_create(
            rows,
            update_conflicts=True,
            unique_fields=["node", "type"],
            update_fields=["status", "reason", "message", "since"],
        )


def _store_refusals(node: Node, reports: Iterable[RefusalReport]) -> None:
    """Agents tell a refusal until they have an answer, so the same one may come again."""
    rows = [
        Refusal(
            node=node,
            code=report.code,
            reason=report.reason,
            sequence=report.sequence,
            digest=report.digest or "",
            at=report.at,
        )
        for report in reports
    ]
    if rows:
        Refusal.objects.bulk_create(rows, ignore_conflicts=True)


def _store_hardware(node: Node, hardware: dict[str, Any], now: datetime) -> None:
    """Take over what the node has found at its start. A list that makes no sense must not silence the node."""
    try:
        store_gpus(node, hardware, now=now)
    except DomainError as refused:
        Refusal.objects.create(node=node, code=refused.code, reason=refused.sentence, at=now)
        return
    node.hardware = hardware


def _note_far_sequence(node: Node, report: PollRequest, now: datetime) -> None:
    """Tell a person when a node claims an assignment that we can't have signed; no assignment is compiled for it."""
    claimed = (report.observed_epoch, report.observed_sequence)
    if claimed == (node.observed_epoch, node.observed_sequence):
        return
    stored = Assignment.objects.filter(node=node).values_list("director_epoch", "sequence").first() or (0, 0)
    ahead = claimed[1] - (stored[1] if claimed[0] == stored[0] else 0)
    if (claimed[0] > stored[0] and stored[0] > 0) or ahead > MAX_SEQUENCE_JUMP:
        record(
            node,
            "node.sequence_refused",
            actor=SYSTEM,
            now=now,
            reason=(
                f"Node {node} reports assignment {claimed}, we signed {stored}. If nobody restored an old database, "
                "the director's key may be stolen: rotate it."
            ),
            data={"reported": list(claimed), "stored": list(stored)},
        )


def _bundle_if_newer(node_id: UUID, report: PollRequest) -> AssignmentBundle | None:
    """The signed assignment, unless the node reports that very one with that very `issued`."""
    row = Assignment.objects.filter(pk=node_id).first()
    if row is None:
        return None
    known = (report.observed_epoch, report.observed_sequence, report.observed_issued)
    if known == (row.director_epoch, row.sequence, row.issued):
        return None
    return AssignmentBundle(
        statement=_b64(row.statement),
        index=row.index,
        path=[_b64(sibling) for sibling in row.path],
        envelope=_b64(row.envelope),
    )


def _b64(raw: bytes | memoryview) -> str:
    return base64.b64encode(bytes(raw)).decode()
