"""Has anybody changed the past? Walks the whole chain and holds it against every signed checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db.models.expressions import RawSQL

from apps.audit.keys import is_genuine
from apps.audit.models import Checkpoint, Event, Seal
from apps.audit.sealer import GENESIS, event_line, link_hash, owner_db

MAX_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """One thing that can't be as it is. `code` is stable."""

    code: str
    position: int
    sentence: str


@dataclass(frozen=True)
class Report:
    """What a walk over the chain found."""

    links: int
    checkpoints: int
    findings: tuple[Finding, ...]

    @property
    def intact(self) -> bool:
        return not self.findings


def verify_chain(key: Ed25519PublicKey, *, shipped: Iterable[Checkpoint] = ()) -> Report:
    """Recompute every link, then hold the chain against its checkpoints, those shipped off the machine included.

    Finds edited, deleted, inserted and reordered events, and an end that was cut off, back to the newest checkpoint
    that whoever did it could not remove. Constant memory but for the checkpoints. Ends after 100 findings.
    """
    stored = Checkpoint.objects.using(owner_db()).order_by("position", "id")
    walk = _Walk(key, [*stored, *shipped])
    links = walk.run()
    if len(walk.findings) < MAX_FINDINGS:
        walk.check_end(links)
        walk.check_stragglers()
    return Report(links, walk.checkpoints, tuple(walk.findings[:MAX_FINDINGS]))


class _Walk:
    def __init__(self, key: Ed25519PublicKey, checkpoints: list[Checkpoint]) -> None:
        self.findings: list[Finding] = []
        # shipped ones are mostly those that are stored too
        distinct = {(point.position, bytes(point.signature)): point for point in checkpoints}.values()
        self.checkpoints = len(distinct)
        self.signed: dict[int, list[bytes]] = {}  # position → hashes that the key vouches for
        for checkpoint in distinct:
            if is_genuine(checkpoint, key):
                self.signed.setdefault(checkpoint.position, []).append(bytes(checkpoint.hash))
            else:
                at = checkpoint.position
                self.find("bad_checkpoint", at, f"The checkpoint at link {at} is not signed by this key.")

    def find(self, code: str, position: int, sentence: str) -> None:
        self.findings.append(Finding(code, position, sentence))

    def run(self) -> int:
        """Walk the links in order; return the last position."""
        position, previous, order = 0, GENESIS, (0, 0, 0)
        seals = Seal.objects.using(owner_db()).select_related("event").order_by("position")
        for seal in seals.iterator(chunk_size=2_000):
            place = (seal.restore_epoch, seal.event.xid, seal.event.pk)
            if seal.position != position + 1:
                self.find("missing_link", position + 1, f"Links {position + 1} to {seal.position - 1} are missing.")
            elif link_hash(previous, event_line(seal.event, seal.position, seal.restore_epoch)) != bytes(seal.hash):
                at = f"{seal.event.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
                self.find("changed_event", seal.position, f"Event {seal.event.pk} of {at} is not what was sealed.")
            if place <= order:
                self.find("out_of_order", seal.position, f"Event {seal.event.pk} lies before the one that it follows.")
            # go on from what is stored: one edit is one finding
            position, previous, order = seal.position, bytes(seal.hash), place
            if any(link != previous for link in self.signed.get(position, ())):
                self.find("rewritten", position, f"Link {position} is not the one that was signed in its checkpoint.")
            if len(self.findings) >= MAX_FINDINGS:
                break
        return position

    def check_end(self, last: int) -> None:
        """Find an end that was cut off: checkpoints beyond the last link."""
        newest = max(self.signed, default=0)
        if newest > last:
            self.find(
                "truncated", last, f"The chain ends at link {last}, but link {newest} was signed: it was cut off."
            )

    def check_stragglers(self) -> None:
        """Find events slipped in before the end of the chain, which the sealer will never reach."""
        tail = Seal.objects.using(owner_db()).select_related("event").order_by("-position").first()
        if tail is None:
            return
        finished = RawSQL("pg_snapshot_xmin(pg_current_snapshot())::text::bigint", [])
        events = Event.objects.using(owner_db()).filter(seal__isnull=True, xid__lt=tail.event.xid)
        for event in events.filter(xid__lt=finished).order_by("id")[:MAX_FINDINGS]:
            self.find("unsealed_event", tail.position, f"Event {event.pk} lies before the chain's end but not in it.")
