"""Assignments: which artifacts a node is to serve. The director signs one Merkle root over a tick's statements."""

import base64
import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import NamedTuple

from aifb import documents, tree
from aifb.errors import AifbError
from aifb.root_chain import Root

ASSIGNMENTS_TYPE = "application/vnd.farrier.assignments+json"
MAX_LIFETIME = timedelta(hours=24)
MAX_SEQUENCE_JUMP = 1 << 32
MAX_DEPLOYMENTS = 1024
MAX_COUNT = 1 << 32

_LEAF_PREFIX = struct.Struct("<BQ")
_NODE_PREFIX = b"\x04"


@dataclass(frozen=True)
class Deployment:
    """One artifact that a node is to serve; `weight` and `mirror_percent` are shares of requests in percent."""

    id: str
    model: str
    version: int
    digest: str
    length: int
    role: str
    weight: int
    mirror_percent: int = 0
    rollout: str | None = None
    stage: int | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class Statement:
    """One node's parsed assignment. `content` is the digest of what it says, apart from sequence and times."""

    node: str
    director_epoch: int
    sequence: int
    issued: datetime
    expires: datetime
    deployments: tuple[Deployment, ...]
    content: str


class Accepted(NamedTuple):
    """What a node keeps of the last assignment that it accepted. `issued` is the latest that it ever verified."""

    director_epoch: int
    sequence: int
    content: str
    issued: datetime


def make_statement(
    *,
    node: str,
    director_epoch: int,
    sequence: int,
    issued: datetime,
    expires: datetime,
    deployments: Iterable[Deployment],
) -> bytes:
    """The bytes of one node's statement. Raises AifbError(bad_document) for one that no node would accept."""
    raw = documents.canonical(
        {
            "type": "assignment",
            "node": node,
            "director_epoch": director_epoch,
            "sequence": sequence,
            "issued": documents.format_time(issued),
            "expires": documents.format_time(expires),
            "deployments": [asdict(deployment) for deployment in deployments],
        }
    )
    parse_statement(raw)
    return raw


def content_digest(statement: Mapping[str, object]) -> str:
    """SHA-256 (hex) over a statement without issued, expires and sequence, as canonical JSON."""
    kept = {name: value for name, value in statement.items() if name not in ("issued", "expires", "sequence")}
    return hashlib.sha256(documents.canonical(kept)).hexdigest()


def parse_statement(raw: bytes) -> Statement:
    """Parse a statement whose place under a signed root the caller has checked. Raises AifbError(bad_document)."""
    where = "The assignment"
    value = documents.parse(raw, where)
    fields = documents.Fields(value, where, "type node director_epoch sequence issued expires deployments")
    fields.literal("type", "assignment")
    issued, expires = fields.time("issued"), fields.time("expires")
    if not issued < expires <= issued + MAX_LIFETIME:
        fields.refuse("expires", "after issued by at most 24 hours")
    deployments = tuple(_parse_deployment(item) for item in fields.items("deployments", MAX_DEPLOYMENTS))
    _check_together(deployments, fields)
    return Statement(
        node=fields.text("node", documents.UUID, "a UUID"),
        director_epoch=fields.integer("director_epoch"),
        sequence=fields.integer("sequence", 1),
        issued=issued,
        expires=expires,
        deployments=deployments,
        content=content_digest({name: fields.raw(name) for name in ("type", "node", "director_epoch", "deployments")}),
    )


def _parse_deployment(item: object) -> Deployment:
    names = "id model version digest length role weight mirror_percent rollout stage attempt"
    fields = documents.Fields(item, "A deployment", names)
    role = fields.literal("role", "baseline", "candidate")
    return Deployment(
        id=fields.text("id", documents.UUID, "a UUID"),
        model=fields.text("model", documents.SLUG, "a model's slug"),
        version=fields.integer("version", 1),
        digest=fields.text("digest", documents.HEX_128, "128 hexadecimal characters"),
        length=fields.integer("length", 1),
        role=role,
        weight=fields.integer("weight", 0, 100),
        mirror_percent=fields.integer("mirror_percent", 0, 100 if role == "candidate" else 0),
        rollout=None if fields.is_null("rollout") else fields.text("rollout", documents.UUID, "a UUID or null"),
        stage=None if fields.is_null("stage") else fields.integer("stage"),
        attempt=None if fields.is_null("attempt") else fields.integer("attempt"),
    )


def _check_together(deployments: Sequence[Deployment], fields: documents.Fields) -> None:
    if len({deployment.id for deployment in deployments}) != len(deployments):
        fields.refuse("deployments", "a list in which every id is given once")
    weights: dict[str, int] = defaultdict(int)
    for deployment in deployments:
        weights[deployment.model] += deployment.weight
    if any(total != 100 for total in weights.values()):
        fields.refuse("deployments", "a list in which the weights of each model sum to 100")


def bundle_statements(statements: Sequence[bytes], *, issued: datetime) -> tuple[bytes, list[list[bytes]]]:
    """Put a tick's statements under one Merkle root: (payload to sign as ASSIGNMENTS_TYPE, path of each statement).

    Every statement must have been made with this very `issued`. Raises AifbError(bad_document).
    """
    if not statements:
        raise ValueError("there is nothing to sign")
    if any(parse_statement(raw).issued != issued for raw in statements):
        raise AifbError("bad_document", "Statements signed together must all be issued at the time of their signing.")
    levels = [[_leaf(index, raw) for index, raw in enumerate(statements)]]
    while len(levels[-1]) > 1:
        level = levels[-1]
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        levels.append([tree.top(pair, node_prefix=_NODE_PREFIX) for pair in pairs])
    paths = [
        [level[at] for depth, level in enumerate(levels[:-1]) if (at := (index >> depth) ^ 1) < len(level)]
        for index in range(len(statements))
    ]
    signed = {
        "type": "assignments",
        "root": levels[-1][0].hex(),
        "count": len(statements),
        "issued": documents.format_time(issued),
    }
    return documents.canonical(signed), paths


def make_bundle(statement: bytes, index: int, path: Sequence[bytes], envelope: bytes) -> dict[str, object]:
    """What one node is sent: its statement, its place in the tree, and the signed root; ready for JSON."""
    return {
        "statement": base64.b64encode(statement).decode(),
        "index": index,
        "path": [base64.b64encode(sibling).decode() for sibling in path],
        "envelope": base64.b64encode(envelope).decode(),
    }


def open_bundle(bundle: Mapping[str, object], *, root: Root, node_id: str) -> Statement:
    """The statement in a bundle, once signature, path and addressee are right; says nothing about time or sequence.

    Raises AifbError: bad_document, bad_path, wrong_node, and the codes of signing.verify.
    """
    where = "The assignment bundle"
    fields = documents.Fields(dict(bundle), where, "statement index path envelope")
    signed_raw = root.verify(documents.decode_base64(fields.raw("envelope"), where), ASSIGNMENTS_TYPE, "director")
    signed = documents.Fields(
        documents.parse(signed_raw, "The signed root"), "The signed root", "type root count issued"
    )
    signed.literal("type", "assignments")
    expected = bytes.fromhex(signed.text("root", documents.HEX_128, "128 hexadecimal characters"))
    raw = documents.decode_base64(fields.raw("statement"), where)
    path = [documents.decode_base64(item, where) for item in fields.items("path", MAX_COUNT.bit_length())]
    if not compare_digest(_climb(raw, fields.integer("index"), signed.integer("count", 1, MAX_COUNT), path), expected):
        raise AifbError("bad_path", "The assignment is not among the statements that the director signed.")
    statement = parse_statement(raw)
    if statement.node != node_id:
        raise AifbError("wrong_node", f"The assignment is of node {statement.node}, not of this one.")
    if statement.issued != signed.time("issued"):
        signed.refuse("issued", "the time at which its statements were issued")
    return statement


def verify_statement(
    bundle: Mapping[str, object], *, root: Root, node_id: str, now: datetime, last: Accepted | None
) -> Statement:
    """Open a bundle and decide whether this node accepts it now, having last accepted `last` (None: never one).

    Raises AifbError: the codes of open_bundle and of check_acceptance.
    """
    statement = open_bundle(bundle, root=root, node_id=node_id)
    check_acceptance(statement, root=root, now=now, last=last)
    return statement


def check_acceptance(statement: Statement, *, root: Root, now: datetime, last: Accepted | None) -> None:
    """The rules of order and time; raises AifbError: wrong_epoch, sequence_too_low, sequence_too_far, content_changed,
    replayed, expired.

    Time is the later of this node's clock and the latest `issued` it has verified, so that a clock that was set back
    revives nothing, and a server's say about the time counts for nothing.
    """
    if statement.director_epoch != root.director_epoch:
        raise AifbError(
            "wrong_epoch",
            f"The assignment is of director epoch {statement.director_epoch}, the root's is {root.director_epoch}.",
        )
    if last is not None:
        _check_order(statement, Accepted(*last))
    clock = max(now, statement.issued, *([last.issued] if last else []))
    if clock >= statement.expires:
        raise AifbError(
            "expired", f"The assignment expired at {documents.format_time(statement.expires)}: a newer one is due."
        )
    if clock >= root.expires:
        raise AifbError(
            "expired", f"The trust root expired at {documents.format_time(root.expires)}: publish its successor."
        )


def _check_order(statement: Statement, last: Accepted) -> None:
    pair, last_pair = (statement.director_epoch, statement.sequence), (last.director_epoch, last.sequence)
    if pair < last_pair:
        raise AifbError(
            "sequence_too_low", f"The assignment {pair} is older than {last_pair}, which this node accepted."
        )
    if pair == last_pair:
        if statement.content != last.content:
            raise AifbError("content_changed", f"The assignment {pair} says something else than when it was accepted.")
        if statement.issued <= last.issued:
            raise AifbError("replayed", f"The assignment {pair} was accepted already and this is no renewal of it.")
    elif pair[0] == last_pair[0] and statement.sequence > last.sequence + MAX_SEQUENCE_JUMP:
        raise AifbError(
            "sequence_too_far", f"The assignment {pair} is too far ahead of {last_pair}: rotate the director key."
        )


def accepted(statement: Statement, last: Accepted | None) -> Accepted:
    """What a node keeps once it has accepted a statement."""
    issued = max(statement.issued, last.issued) if last else statement.issued
    return Accepted(statement.director_epoch, statement.sequence, statement.content, issued)


def next_sequence(*, stored: int, reported: tuple[int, int] | None, director_epoch: int, changed: bool) -> int:
    """The sequence to sign for a node that has `stored` and reports (epoch, sequence), if anything.

    One more than both on a change, or when the node is ahead (the database was restored); a report from an older epoch
    counts for nothing. Raises AifbError(sequence_too_far) for a report that no honest history explains.
    """
    ahead = reported[1] if reported is not None and reported[0] == director_epoch else 0
    if ahead > stored + MAX_SEQUENCE_JUMP or (reported is not None and reported[0] > director_epoch):
        raise AifbError(
            "sequence_too_far",
            f"The node reports assignment {reported}, far ahead of ({director_epoch}, {stored}): if nobody restored an "
            "old database, the director key may be stolen; rotate it.",
        )
    return max(stored, ahead) + 1 if changed or ahead > stored else stored


def _leaf(index: int, statement: bytes) -> bytes:
    """SHA3-512(0x03 ‖ index u64 ‖ statement)."""
    return hashlib.sha3_512(_LEAF_PREFIX.pack(0x03, index) + statement).digest()


def _climb(statement: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes:
    """The root that a path leads to; its length must be exactly what `index` of `count` takes."""
    if index >= count:
        raise AifbError("bad_path", f"Statement {index} does not exist, {count} were signed.")
    node, at, width, used = _leaf(index, statement), index, count, 0
    while width > 1:
        if at ^ 1 < width:  # else this node is odd and promoted unchanged
            if used == len(path) or len(path[used]) != tree.LEAF_BYTES:
                raise AifbError("bad_path", f"The path of statement {index} of {count} is too short.")
            pair = (path[used], node) if at & 1 else (node, path[used])
            node, used = tree.top(pair, node_prefix=_NODE_PREFIX), used + 1
        at, width = at >> 1, (width + 1) >> 1
    if used != len(path):
        raise AifbError("bad_path", f"The path of statement {index} of {count} is too long.")
    return node
