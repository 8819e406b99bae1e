"""What people, rollouts and rules do to the fleet. What nodes cause themselves is in credentials.py (enrol, renew)
and reports.py (poll); what the director signs is in assignments.py.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from apps.access.actors import Actor, ActorKind
from apps.access.models import Role, Team
from apps.access.services import require_role
from apps.audit.transitions import Stale, move, record
from apps.fleet.models import DesiredDeployment, JoinToken, Node, NodePhase, Nonce, Pool
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.lib.ids import uuid7
from apps.lib.wake import wake
from apps.models.models import Artifact, RegisteredModel, TrustRoot
from protocol.messages import Role as DeploymentRole
from protocol.signing import NONCE_LIFE_S

JOIN_TOKEN_LIFE = timedelta(minutes=15)
COMPILE_TASK = "fleet.compile_assignments"


@dataclass(frozen=True)
class DesiredSpec:
    """One artifact that a node should serve, in a role, with percents of its gateway's requests.

    `artifact` must come with its version loaded (`select_related("version")` spares a query).
    """

    artifact: Artifact
    role: DeploymentRole
    weight: int
    mirror_percent: int = 0


def _require(actor: Actor, team_id: UUID, role: Role) -> None:
    """Raise Forbidden unless the actor is the system or has at least `role` in the team."""
    if actor.kind != ActorKind.SYSTEM:
        require_role(actor.user, team_id, role)


def create_pool(
    *,
    team: Team,
    slug: str,
    actor: Actor,
    now: datetime,
    auto_accept: bool = False,
    poll_interval_s: float = 30.0,
    requires_approval: bool = True,
) -> Pool:
    """Create a pool. With `auto_accept` a valid join token is enough; else a person accepts every node.

    With `requires_approval` no version replaces what the pool serves unless its plan asks a person behind the gates.
    """
    _require(actor, team.pk, Role.ADMIN)
    with transaction.atomic():
        pool = Pool(
            team=team,
            slug=slug,
            auto_accept=auto_accept,
            poll_interval_s=poll_interval_s,
            requires_approval=requires_approval,
        )
        pool.full_clean()
        pool.save(force_insert=True)
        data = {"auto_accept": auto_accept, "requires_approval": requires_approval}
        record(pool, "pool.created", actor=actor, now=now, data=data)
    return pool


def set_pool_approval(pool: Pool, *, requires_approval: bool, actor: Actor, reason: str, now: datetime) -> None:
    """Say whether the pool's versions are replaced only with a person's approval; an admin's decision.

    Rollouts that have begun keep the plan that they began with. Raises Forbidden, DomainError(reason_missing).
    """
    _require(actor, pool.team_id, Role.ADMIN)
    if not reason.strip():
        raise DomainError("reason_missing", "Say why: the audit log keeps it.")
    with transaction.atomic():
        Pool.objects.filter(pk=pool.pk).update(requires_approval=requires_approval)
        data = {"requires_approval": requires_approval}
        record(pool, "pool.approval_set", actor=actor, reason=reason, now=now, data=data)
    pool.requires_approval = requires_approval


def create_join_token(
    *, pool: Pool, actor: Actor, now: datetime, node_name: str = "", life: timedelta = JOIN_TOKEN_LIFE
) -> str:
    """Make a single-use right to enrol one node and return it: `<secret>.<hex SHA-256 of the first root envelope>`.

    Only the secret's SHA-256 is kept. The part behind the dot is what the node pins its trust to; it is not secret.
    Raises Conflict(no_trust_root) before the trust root is published, Forbidden.
    """
    _require(actor, pool.team_id, Role.OPERATOR)
    if actor.user is None:
        raise Forbidden("person_needed", "A join token is made by a person or a person's API token.")
    first_root = TrustRoot.objects.order_by("version").values_list("envelope", flat=True).first()
    if first_root is None:
        raise Conflict("no_trust_root", "Publish the trust root first: a join token pins it.")
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        token = JoinToken.objects.create(
            team_id=pool.team_id,
            pool=pool,
            token_sha256=hashlib.sha256(secret.encode()).digest(),
            node_name=node_name,
            created_by=actor.user,
            expires_at=now + life,
        )
        record(token, "join_token.created", actor=actor, now=now, data={"pool": pool.slug, "node_name": node_name})
    return f"{secret}.{hashlib.sha256(bytes(first_root)).hexdigest()}"


def accept_node(node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None) -> None:
    """Let a pending, rejected or quarantined node in; its credential lives anew from now on."""
    expires = now + timedelta(seconds=settings.FARRIER.credential_life_s)
    changes = {"credential_expires_at": expires}
    _move_node(node, NodePhase.ACCEPTED, actor, reason, now, expected_revision, changes)


def reject_node(node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None) -> None:
    """Turn a node away; it may be accepted later."""
    _move_node(node, NodePhase.REJECTED, actor, reason, now, expected_revision)


def cordon_node(node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None) -> None:
    """Give the node nothing new; it goes on serving what it has."""
    _move_node(node, NodePhase.CORDONED, actor, reason, now, expected_revision)


def uncordon_node(
    node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> None:
    """Return a cordoned or draining node to service."""
    _move_node(node, NodePhase.ACTIVE, actor, reason, now, expected_revision)


def drain_node(node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None) -> None:
    """Take everything off the node: its next assignment is empty, its desired rows stay for its return."""
    _move_node(node, NodePhase.DRAINING, actor, reason, now, expected_revision)


def quarantine_node(
    node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None
) -> None:
    """Lock the node out until a person accepts or bans it; its engines go on serving."""
    _move_node(node, NodePhase.QUARANTINED, actor, reason, now, expected_revision)


def ban_node(node: Node, *, actor: Actor, reason: str, now: datetime, expected_revision: int | None = None) -> None:
    """Lock the node out for good; its key can never enrol again."""
    _require(actor, node.team_id, Role.ADMIN)
    _move_node(node, NodePhase.BANNED, actor, reason, now, expected_revision)


def _move_node(
    node: Node,
    to: NodePhase,
    actor: Actor,
    reason: str,
    now: datetime,
    expected_revision: int | None,
    changes: dict[str, Any] | None = None,
) -> None:
    _require(actor, node.team_id, Role.OPERATOR)
    if not reason.strip():
        raise DomainError("reason_missing", f"Say why node {node} is to become {to}.")
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        if expected_revision is not None and locked.revision != expected_revision:
            raise Stale(locked)
        # what the assignment says depends on the phase (a draining node gets an empty one)
        desired = {"desired_generation": locked.desired_generation + 1}
        move(locked, to, actor=actor, reason=reason, now=now, changes={**(changes or {}), **desired})
        ring_compiler()
    node.refresh_from_db()


def set_desired(
    *,
    node: Node,
    model: RegisteredModel,
    specs: Sequence[DesiredSpec],
    rollout_id: UUID | None = None,
    stage: int | None = None,
    attempt: int | None = None,
    ring: bool = True,
) -> bool:
    """Make `specs` all that the node should serve of `model`; return whether that changed anything.

    An artifact that stays keeps its deployment id, whatever its role and weight become. In a loop over nodes pass
    `ring=False` and call `ring_compiler()` once. The caller decides which nodes may get something new
    (Node.TAKES_WORK); going back to an older artifact is right on any node.
    Raises DomainError: bad_weights, duplicate_role, duplicate_artifact, wrong_model, wrong_team.
    """
    _check_specs(node, model, specs)
    with transaction.atomic():
        locked = Node.objects.select_for_update(no_key=True).only("id", "desired_generation").get(pk=node.pk)
        present = list(DesiredDeployment.objects.filter(node=locked, model=model))
        ids = {row.artifact_id: row.pk for row in present}
        wanted = [
            DesiredDeployment(
                id=ids.get(spec.artifact.pk) or uuid7(),
                team_id=node.team_id,
                node=locked,
                model=model,
                version_id=spec.artifact.version_id,
                artifact=spec.artifact,
                role=spec.role.value,
                weight=spec.weight,
                mirror_percent=spec.mirror_percent,
                rollout_id=rollout_id,
                stage=stage,
                attempt=attempt,
            )
            for spec in specs
        ]
        if {_content(row) for row in present} == {_content(row) for row in wanted}:
            return False
        created = {row.pk: row.created_at for row in present}
        DesiredDeployment.objects.filter(pk__in=list(created)).delete()
        for row in wanted:
            if row.pk in created:
                row.created_at = created[row.pk]
        DesiredDeployment.objects.bulk_create(wanted)
        locked.desired_generation += 1
        locked.save(update_fields=["desired_generation"])
        if ring:
            ring_compiler()
    return True


def ring_compiler() -> None:
    """Have assignments compiled as soon as the transaction has committed; the tick would do it anyway."""
    wake(COMPILE_TASK)


def forget_nonces(*, now: datetime) -> int:
    """Delete nonces whose requests are refused for their age by now; return how many went."""
    gone, _ = Nonce.objects.filter(at__lt=now - timedelta(seconds=NONCE_LIFE_S)).delete()
    return gone


def _content(row: DesiredDeployment) -> tuple[Any, ...]:
    return (row.artifact_id, row.role, row.weight, row.mirror_percent, row.rollout_id, row.stage, row.attempt)


def _check_specs(node: Node, model: RegisteredModel, specs: Sequence[DesiredSpec]) -> None:
    where = f"The plan for {model} on node {node}"
    if specs and sum(spec.weight for spec in specs) != 100:
        raise DomainError("bad_weights", f"{where} must share out exactly 100 % of the requests.")
    if len({spec.role for spec in specs}) != len(specs):
        raise DomainError("duplicate_role", f"{where} fills a role twice.")
    if len({spec.artifact.pk for spec in specs}) != len(specs):
        raise DomainError("duplicate_artifact", f"{where} names an artifact twice; one engine serves it once.")
    if any(spec.mirror_percent and spec.role is not DeploymentRole.CANDIDATE for spec in specs):
        raise DomainError("bad_mirror", f"{where} mirrors to something else than the candidate.")
    if any(spec.artifact.version.model_id != model.pk for spec in specs):
        raise DomainError("wrong_model", f"{where} names an artifact of another model.")
    if node.team_id != model.team_id:
        raise Forbidden("wrong_team", f"{where} crosses teams; a node serves its own team's models.")
