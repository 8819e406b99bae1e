"""How a node gets in and stays in: enrolment by a single-use token, and a credential that is renewed by generation."""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from apps.audit.models import RestoreEpoch
from apps.audit.transitions import SYSTEM, Actor, move, record
from apps.fleet.hardware import store_gpus
from apps.fleet.models import JoinToken, Node, NodePhase
from apps.fleet.services import ring_compiler
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.models.models import TrustRoot
from protocol import signing
from protocol.messages import OLDEST_SERVED, EnrolRequest, EnrolResponse, RenewResponse

RENEWALS_LOST_MAX = 10_000  # between a backup and its restore; a node renews every sixteen hours


class Refused(Forbidden):
    """The node may not do this now; `code` tells the agent what to do about it."""


def enrol(request: EnrolRequest, *, now: datetime) -> EnrolResponse:
    """Let a host in that proves its key and holds a join token: accepted by its pool's rule, else pending.

    The same token with the same key answers the same node again, whatever became of it: a lost answer is no second
    node. Raises DomainError: protocol_too_old (426), bad_public_key, bad_signature (401), token_unknown,
    token_expired, token_used (403), wrong_name, key_known, name_taken (409).
    """
    if request.protocol < OLDEST_SERVED:
        raise protocol_too_old(request.protocol)
    key = _proven_key(request)
    with transaction.atomic():
        token = _lock_token(request.token)
        if token.used_by is not None and bytes(token.used_by.public_key) == key:
            node = token.used_by
        else:
            _check_token(token, request, now)
            node = _create_node(token, request, key, now)
    return EnrolResponse(
        node=node.pk,
        phase=node.phase,
        generation=node.credential_generation,
        expires=node.credential_expires_at,
        trust_root=root_chain(after=0),
        server_time=now.timestamp(),
    )


def protocol_too_old(spoken: int) -> DomainError:
    """The answer to an agent that we no longer serve."""
    return DomainError(
        "protocol_too_old",
        f"This agent speaks protocol {spoken}; {OLDEST_SERVED} is the oldest served here. Upgrade the agent.",
        status=426,
    )


def root_chain(*, after: int) -> list[str]:
    """Return the trust root's envelopes with versions above `after`, oldest first, in base64."""
    rows = TrustRoot.objects.filter(version__gt=after).order_by("version").values_list("envelope", flat=True)
    return [base64.b64encode(bytes(envelope)).decode() for envelope in rows]


def _proven_key(request: EnrolRequest) -> bytes:
    """Return the 32 raw bytes of the public key, once the request is signed by it."""
    try:
        key = base64.b64decode(request.public_key, validate=True)
        signature = base64.b64decode(request.signature, validate=True)
    except binascii.Error:
        key = signature = b""
    if len(key) != 32:
        raise DomainError("bad_public_key", "The public key must be the 32 raw bytes of an Ed25519 key in base64.")
    text = signing.canonical_enrol(request.token, request.public_key, request.name, request.hostname, request.zone)
    if not signing.verify(key, signature, text):
        raise DomainError("bad_signature", "The enrolment is not signed by the key that it presents.", status=401)
    return key


def _lock_token(secret: str) -> JoinToken:
    digest = hashlib.sha256(secret.encode()).digest()
    token = JoinToken.objects.select_for_update(of=("self",)).select_related("pool", "used_by")
    found = token.filter(token_sha256=digest).first()
    if found is None:
        raise Refused("token_unknown", "The join token is unknown here; make a new one on the fleet page.")
    return found


def _check_token(token: JoinToken, request: EnrolRequest, now: datetime) -> None:
    if token.used_at is not None:
        raise Refused("token_used", "The join token was used by another key; a token lets in one node. Make a new one.")
    if token.expires_at <= now:
        raise Refused("token_expired", "The join token has expired; make a new one on the fleet page.")
    if token.node_name not in ("", request.name):
        raise Refused("wrong_name", f"The join token is for the node {token.node_name}, not for {request.name}.")


def _create_node(token: JoinToken, request: EnrolRequest, key: bytes, now: datetime) -> Node:
    known = Node.objects.filter(public_key=key).first()
    if known is not None:
        raise Conflict(
            "key_known", f"This key belongs to the node {known} already; a cloned host must make a key of its own."
        )
    node = Node(
        team_id=token.team_id,
        pool=token.pool,
        name=request.name,
        zone=request.zone,
        hostname=request.hostname,
        public_key=key,
        credential_expires_at=now + timedelta(seconds=settings.FARRIER.credential_life_s),
        agent_version=request.agent_version,
        protocol=request.protocol,
        gateway_url=request.gateway_url,
        hardware=request.hardware,
    )
    try:
        with transaction.atomic():
            node.save(force_insert=True)
    except IntegrityError as taken:
        raise Conflict(
            "name_taken", f"There is a node {request.name} already; choose another name for this host."
        ) from taken
    token.used_at, token.used_by = now, node
    token.save(update_fields=["used_at", "used_by"])
    record(node, "node.enrolled", actor=Actor.node(node.name), now=now, data={"pool": token.pool.slug})
    store_gpus(node, request.hardware, now=now)
    if token.pool.auto_accept:
        reason = f"The rule of pool {token.pool} accepts every holder of a join token."
        move(node, NodePhase.ACCEPTED, actor=SYSTEM, reason=reason, now=now, changes={"desired_generation": 1})
        ring_compiler()
    return node


def renew(node_id: UUID, *, generation: int, now: datetime) -> RenewResponse:
    """Give the node its next credential generation.

    Until the new generation is first used, the previous one renews again to the same answer: a lost answer is no
    clone. A stale generation after that means that two hosts hold the key: the node is quarantined, and
    Refused(clone_suspected) tells both. An expired credential may renew, and so may one that a restore has forgotten.
    """
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
        if adopt_generation(node_id, generation, now):
            node.refresh_from_db()
        current = node.credential_generation
        repeats = generation == current - 1 and not node.credential_used
        if generation == current:
            node.credential_generation = current + 1
            node.credential_used = False
            node.credential_expires_at = now + timedelta(seconds=settings.FARRIER.credential_life_s)
            node.save(update_fields=["credential_generation", "credential_used", "credential_expires_at"])
        elif not repeats:
            _lock_clone(node, generation, now)
    if generation != current and not repeats:
        raise Refused(
            "clone_suspected",
            f"Generation {generation} of this credential was replaced by {current}: two hosts seem to hold the key of "
            f"node {node}. It is quarantined; a person must accept or ban it.",
        )
    return RenewResponse(
        generation=node.credential_generation, expires=node.credential_expires_at, server_time=now.timestamp()
    )


def _lock_clone(node: Node, generation: int, now: datetime) -> None:
    reason = (
        f"Renewal with credential generation {generation} although {node.credential_generation} is in use: "
        "two hosts seem to hold this node's key."
    )
    if node.phase in Node.MAY_TALK:
        move(node, NodePhase.QUARANTINED, actor=SYSTEM, reason=reason, now=now, verb="node.clone_suspected")


def mark_used(node_id: UUID, generation: int) -> None:
    """Note that the newest generation was used: from now on the previous one is stale."""
    Node.objects.filter(pk=node_id, credential_generation=generation, credential_used=False).update(
        credential_used=True
    )


def adopt_generation(node_id: UUID, generation: int, now: datetime) -> bool:
    """After a restore from backup, take over the generation of a node that was renewed since the backup.

    Only for a node that is as old as the backup, and once, before anything else is heard of it: whoever claims another
    generation after that is a clone, or shows that one came first. Returns whether it was done.
    """
    with transaction.atomic():
        node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
        restored_at = RestoreEpoch.objects.order_by("-epoch").values_list("at", flat=True).first()
        if restored_at is None or max(node.last_seen_at or node.created_at, node.created_at) > restored_at:
            return False
        if not 0 < generation - node.credential_generation <= RENEWALS_LOST_MAX:
            return False
        record(
            node,
            "node.generation_adopted",
            actor=SYSTEM,
            now=now,
            reason="The database was restored from a backup older than the node's credential.",
            data={"stored": node.credential_generation, "presented": generation},
        )
        node.credential_generation, node.credential_used = generation, True
        node.credential_expires_at = now + timedelta(seconds=settings.FARRIER.credential_life_s)
        node.last_seen_at = now
        node.save(update_fields=["credential_generation", "credential_used", "credential_expires_at", "last_seen_at"])
    return True
