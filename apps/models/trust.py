"""The trust roots that this control plane serves: which keys may sign what, version by version."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from django.db import IntegrityError, transaction

from aifb import signing
from aifb.errors import AifbError
from aifb.trust import ROOT_TYPE, Root, parse_root, verify_root_chain
from apps.audit.transitions import Actor, record
from apps.lib.errors import Conflict
from apps.models.models import TrustRoot
from apps.models.store import refusal


def root_envelopes(*, after: int = 0) -> list[bytes]:
    """Return the envelopes of every root newer than version `after`, oldest first: what a node walks."""
    rows = TrustRoot.objects.filter(version__gt=after).order_by("version").values_list("envelope", flat=True)
    return [bytes(envelope) for envelope in rows]


def current_root() -> Root:
    """Return the newest trust root. Raises Conflict while there is none."""
    row = TrustRoot.objects.order_by("-version").first()
    if row is None:
        raise Conflict("no_trust_root", "This control plane has no trust root yet; run `manage.py bootstrap`.")
    return _parsed(bytes(row.envelope))


@lru_cache(maxsize=4)
def _parsed(envelope: bytes) -> Root:
    # verified when it was added; the table is ours
    payload, _ = signing.unpack(envelope, ROOT_TYPE)
    return parse_root(payload)


def add_root(*, envelope: bytes, actor: Actor, now: datetime) -> Root:
    """Add the next trust root: signed by enough root keys of the current one and of itself.

    The first one is trusted on sight (whoever may write it sets the control plane up). Raises DomainError (422) with
    the codes of aifb.root_chain, Conflict when another one came first.
    """
    newest = TrustRoot.objects.order_by("-version").first()
    try:
        root = _first(envelope) if newest is None else verify_root_chain(_parsed(bytes(newest.envelope)), [envelope])
    except AifbError as refused:
        raise refusal(refused) from refused
    row = TrustRoot(version=root.version, envelope=envelope)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            data = {role: sorted(listed.keyids) for role, listed in root.roles.items()}
            record(row, "trust.root_added", actor=actor, now=now, data=data)
    except IntegrityError as taken:
        raise Conflict(
            "root_exists", f"Root {root.version} has been added meanwhile; sign the next version."
        ) from taken
    return root


def _first(envelope: bytes) -> Root:
    payload, _ = signing.unpack(envelope, ROOT_TYPE)
    root = parse_root(payload)
    root.verify(envelope, ROOT_TYPE, "root")
    if root.version != 1:
        raise AifbError("bad_root_chain", f"The first root must be version 1, not {root.version}.")
    return root
