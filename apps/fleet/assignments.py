"""Turns desired deployments into signed assignments: one Merkle root and one signature a tick, whatever the fleet."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet

from aifb.errors import AifbError
from aifb.trust import (
    ASSIGNMENTS_TYPE,
    Deployment,
    bundle_statements,
    content_digest,
    make_statement,
    next_sequence,
)
from apps.fleet.director import Director, load_director
from apps.fleet.models import Assignment, DesiredDeployment, Node, NodePhase
from protocol import failpoints

log = logging.getLogger(__name__)
CHANNEL = "farrier_assignments"  # one NOTIFY a tick; listeners re-read the rows they wait for
NODES_A_TICK = 5_000


_NODE_COLUMNS = ("id", "name", "phase", "observed_epoch", "observed_sequence")
_STORED_COLUMNS = ("director_epoch", "sequence", "content_sha256", "issued")
_UPSERT = """
INSERT INTO fleet_assignment (
    node_id, director_epoch, sequence, content_sha256, statement, index, path, envelope, issued, expires, digests
) VALUES (%s, %s, %s, %s, %s, %s, %s::bytea[], %s, %s, %s, %s::varchar[])
ON CONFLICT (node_id) DO UPDATE SET
    director_epoch = EXCLUDED.director_epoch, sequence = EXCLUDED.sequence, content_sha256 = EXCLUDED.content_sha256,
    statement = EXCLUDED.statement, index = EXCLUDED.index, path = EXCLUDED.path, envelope = EXCLUDED.envelope,
    issued = EXCLUDED.issued, expires = EXCLUDED.expires, digests = EXCLUDED.digests
"""


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
    content: str  # digest of what it says, apart from sequence and times
    digests: list[str]  # what the node may download
    raw: bytes


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
        nodes = list(locked.order_by("pk").only(*_NODE_COLUMNS))
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
    stored = Assignment.objects.only(*_STORED_COLUMNS).in_bulk([node.pk for node in nodes])
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
    expires = issued + timedelta(seconds=settings.FARRIER.assignment_life_s)
    rows = [
        (
            draft.node.pk,
            director.epoch,
            draft.sequence,
            bytes.fromhex(draft.content),
            draft.raw,
            index,
            path,
            envelope,
            issued,
            expires,
            draft.digests,
        )
        for index, (draft, path) in enumerate(zip(drafts, paths, strict=True))
    ]
    done = [draft.node.pk for draft in drafts]
    Node.objects.filter(pk__in=done).update(compiled_generation=F("desired_generation"))
    with connection.cursor() as cursor:
        cursor.executemany(_UPSERT, rows)  # pipelined; one statement of thousands of rows takes far longer to build
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
    said = {
        "type": "assignment",
        "node": str(node.pk),
        "director_epoch": epoch,
        "deployments": [asdict(deployment) for deployment in deployments],
    }
    content = content_digest(said)
    changed = stored is None or bytes(stored.content_sha256).hex() != content
    try:
        sequence = next_sequence(stored=last, reported=reported, director_epoch=epoch, changed=changed)
    except AifbError as refused:
        log.warning("node %s gets no assignment: %s", node.name, refused)
        return None
    raw = make_statement(
        node=str(node.pk),
        director_epoch=epoch,
        sequence=sequence,
        issued=issued,
        expires=issued + timedelta(seconds=settings.FARRIER.assignment_life_s),
        deployments=deployments,
    )
    return _Draft(node, sequence, content, sorted({deployment.digest for deployment in deployments}), raw)
