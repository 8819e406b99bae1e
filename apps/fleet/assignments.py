"""Turns desired deployments into signed assignments: one Merkle root and one signature a tick, whatever the fleet."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from aifb.errors import AifbError
from aifb.trust import (
    ASSIGNMENTS_TYPE,
    Deployment,
    Statement,
    bundle_statements,
    make_statement,
    next_sequence,
    parse_statement,
)
from apps.fleet.director import Director, load_director
from apps.fleet.models import Assignment, DesiredDeployment, Node, NodePhase
from protocol import failpoints

log = logging.getLogger(__name__)
CHANNEL = "farrier_assignments"  # one NOTIFY a tick; listeners re-read the rows they wait for
NODES_A_TICK = 5_000


@dataclass(frozen=True)
class Compiled:
    """What a tick did: assignments signed, nodes that another transaction held (try again), nodes refused."""

    signed: int
    busy: int
    refused: int


@dataclass(frozen=True)
class _Draft:
    node: Node
    sequence: int
    raw: bytes
    parsed: Statement


def compile_assignments(now: datetime) -> Compiled:
    """Sign anew what is due: changed content, half of its life over, a node that is ahead of us, a new director epoch.

    Content that did not change keeps its sequence and gets a later `issued`. All nodes of a tick share one signature.
    Raises Conflict as load_director does.
    """
    director = load_director()
    due = list(_due(now, director.epoch).order_by("pk").values_list("pk", flat=True)[:NODES_A_TICK])
    if not due:
        return Compiled(0, 0, 0)
    with transaction.atomic():
        # no key lock: a poll's inserts that refer to the node go on meanwhile
        locked = Node.objects.select_for_update(skip_locked=True, no_key=True).filter(
            pk__in=due, phase__in=Node.MAY_TALK
        )
        nodes = list(locked.order_by("pk"))
        signed = _sign(nodes, director, now) if nodes else 0
    return Compiled(signed, len(due) - len(nodes), len(nodes) - signed)


def _due(now: datetime, epoch: int) -> QuerySet[Node]:
    half_life = timedelta(seconds=settings.FARRIER.assignment_life_s / 2)
    return Node.objects.filter(phase__in=Node.MAY_TALK).filter(
        ~Q(desired_generation=F("compiled_generation"))
        | Q(assignment__issued__lte=now - half_life)
        | Q(observed_epoch=epoch, observed_sequence__gt=F("assignment__sequence"))
        | (Q(assignment__isnull=False) & ~Q(assignment__director_epoch=epoch))
    )


def _sign(nodes: Sequence[Node], director: Director, now: datetime) -> int:
    """Draft, bundle, sign and store, under the locks of `nodes`; return how many were signed."""
    stored = Assignment.objects.in_bulk([node.pk for node in nodes])
    desired = _desired_by_node(nodes)
    # a renewal must be later than what it renews, even when the clock was set back
    issued = max([now, *(row.issued + timedelta(microseconds=1) for row in stored.values())])
    drafts = [
        draft
        for node in nodes
        if (draft := _draft(node, stored.get(node.pk), desired[node.pk], director.epoch, issued)) is not None
    ]
    if not drafts:
        return 0
    payload, paths = bundle_statements([draft.raw for draft in drafts], issued=issued)
    envelope = director.sign(payload, ASSIGNMENTS_TYPE)
    failpoints.pass_by("assignments.signed")
    Assignment.objects.bulk_create(
        [_row(draft, index, path, envelope) for index, (draft, path) in enumerate(zip(drafts, paths, strict=True))],
        update_conflicts=True,
        unique_fields=["node"],
        update_fields=[field.name for field in Assignment._meta.concrete_fields if not field.primary_key],
    )
    done = [draft.node.pk for draft in drafts]
    Node.objects.filter(pk__in=done).update(compiled_generation=F("desired_generation"))
    with connection.cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")
    return len(drafts)


def _desired_by_node(nodes: Iterable[Node]) -> Mapping[UUID, list[Deployment]]:
    """What each node is to serve, as its statement says it; nothing while it drains."""
    serving = [node.pk for node in nodes if node.phase != NodePhase.DRAINING]
    rows = DesiredDeployment.objects.filter(node__in=serving).select_related("model", "version", "artifact__blob")
    rows = rows.defer("artifact__manifest", "artifact__blob__leaf_table", "artifact__blob__tensors")
    by_node: dict[UUID, list[Deployment]] = defaultdict(list)
    for row in rows.order_by("node_id", "model__slug", "role"):
        by_node[row.node_id].append(_deployment(row))
    return by_node


def _deployment(row: DesiredDeployment) -> Deployment:
    return Deployment(
        id=str(row.pk),
        model=row.model.slug,
        version=row.version.number,
        digest=row.artifact.digest,
        length=row.artifact.blob.total_bytes,
        role=row.role,
        weight=row.weight,
        mirror_percent=row.mirror_percent,
        rollout=str(row.rollout_id) if row.rollout_id else None,
        stage=row.stage,
        attempt=row.attempt,
    )


def _draft(
    node: Node, stored: Assignment | None, deployments: Sequence[Deployment], epoch: int, issued: datetime
) -> _Draft | None:
    """Return the node's next statement; None, with a word in the log, when what it reports can't be honest."""
    # a rotated director starts a new count, so that a stolen key's huge sequence is left behind
    last = stored.sequence if stored is not None and stored.director_epoch == epoch else 0
    reported = (node.observed_epoch, node.observed_sequence) if node.observed_sequence else None
    expires = issued + timedelta(seconds=settings.FARRIER.assignment_life_s)

    def statement(sequence: int) -> bytes:
        return make_statement(
            node=str(node.pk),
            director_epoch=epoch,
            sequence=sequence,
            issued=issued,
            expires=expires,
            deployments=deployments,
        )

    content = parse_statement(statement(max(last, 1))).content
    changed = stored is None or bytes(stored.content_sha256).hex() != content
    try:
        sequence = next_sequence(stored=last, reported=reported, director_epoch=epoch, changed=changed)
    except AifbError as refused:
        log.warning("node %s gets no assignment: %s", node.name, refused)
        return None
    raw = statement(sequence)
    return _Draft(node, sequence, raw, parse_statement(raw))


def _row(draft: _Draft, index: int, path: list[bytes], envelope: bytes) -> Assignment:
    parsed = draft.parsed
    return Assignment(
        node=draft.node,
        director_epoch=parsed.director_epoch,
        sequence=draft.sequence,
        content_sha256=bytes.fromhex(parsed.content),
        statement=draft.raw,
        index=index,
        path=path,
        envelope=envelope,
        issued=parsed.issued,
        expires=parsed.expires,
        digests=sorted({deployment.digest for deployment in parsed.deployments}),
    )
