"""What this node trusts and has accepted, kept on disk: verified first, stored second, used third."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from aifb import signing
from aifb.errors import AifbError
from aifb.trust import (
    ROOT_TYPE,
    Accepted,
    Deployment,
    Manifest,
    Root,
    Statement,
    accepted,
    open_bundle,
    open_pinned_root,
    root_digest,
    verify_manifest,
    verify_root_chain,
    verify_statement,
)
from node.agent.errors import Permanent
from node.agent.files import read_json, write_json
from protocol.failpoints import pass_by
from protocol.messages import AssignmentBundle

ROOT_FILE = "root.json"
ASSIGNMENT_FILE = "assignment.json"
FLOORS_FILE = "floors.json"
MANIFESTS = "manifests"


@dataclass(frozen=True)
class Assignment:
    """The assignment that is in force on this node, and what later ones are measured against."""

    statement: Statement
    accepted: Accepted


class TrustStore:
    """Root chain, accepted assignment, accepted manifests and security floors of one node.

    Documents accepted under an older root stay accepted: revocation gates acceptance, it never unloads what serves.
    Each stored document therefore names the root version under which it was accepted, and is verified against that
    version again when it is read back.
    """

    def __init__(self, folder: Path, root_sha256: str) -> None:
        """`root_sha256` pins the first root envelope. Raises Permanent(bad_trust_store): the files contradict it."""
        self._folder = folder
        self._pin = root_sha256
        self._lock = threading.Lock()
        self._roots: dict[int, Root] = {}
        self._floors: dict[str, int] = {}
        self.assignment: Assignment | None = None
        self._statement_b64 = ""
        (folder / MANIFESTS).mkdir(parents=True, exist_ok=True)
        try:
            self._load()
        except (AifbError, KeyError, TypeError, ValueError) as bad:
            raise Permanent(
                "bad_trust_store", f"{folder} holds documents that don't verify ({bad}); enrol anew in an empty home."
            ) from bad

    @property
    def root(self) -> Root | None:
        """The newest trusted root; None before enrolment."""
        with self._lock:
            return self._roots[max(self._roots)] if self._roots else None

    @property
    def last(self) -> Accepted | None:
        """Epoch, sequence, content and issue time of the last accepted assignment."""
        return self.assignment.accepted if self.assignment else None

    def accept_root_chain(self, envelopes: Sequence[bytes]) -> Root:
        """Trust a chain that begins with the pinned envelope (at enrolment). Raises AifbError."""
        roots = _walk(envelopes, self._pin)
        known = self.root
        if known is not None and max(roots) < known.version:
            raise AifbError("bad_root_chain", f"The chain ends at root {max(roots)}, this node knows {known.version}.")
        write_json(self._folder / ROOT_FILE, {"envelopes": [base64.b64encode(raw).decode() for raw in envelopes]})
        with self._lock:
            self._roots = roots
            return roots[max(roots)]

    def accept_successors(self, envelopes: Sequence[bytes]) -> Root:
        """Trust the roots that follow the newest known one. Raises AifbError; nothing is changed then."""
        stored = read_json(self._folder / ROOT_FILE)
        chain = [base64.b64decode(text) for text in stored["envelopes"]] if stored else []
        return self.accept_root_chain([*chain, *envelopes])

    def accept_assignment(self, bundle: AssignmentBundle, *, node_id: str, now: datetime) -> bool:
        """Verify a bundle, store it durably, and put it in force. False for the very one that is in force already.

        Raises AifbError with the reason; the assignment in force stays.
        """
        root = self.root
        if root is None:
            raise AifbError("bad_root_chain", "This node has no trust root yet: it must enrol first.")
        if self.assignment is not None and bundle.statement == self._statement_b64:
            return False
        statement = verify_statement(bundle.model_dump(), root=root, node_id=node_id, now=now, last=self.last)
        mark = accepted(statement, self.last)
        stored = {
            "bundle": bundle.model_dump(),
            "node": node_id,
            "root_version": root.version,
            "latest_issued": mark.issued.isoformat(),
        }
        write_json(self._folder / ASSIGNMENT_FILE, stored)
        pass_by("after_assignment_persisted")
        self.assignment, self._statement_b64 = Assignment(statement, mark), bundle.statement
        return True

    def accept_manifest(self, envelope: bytes, deployment: Deployment) -> Manifest:
        """Verify the manifest of an assigned artifact, store it, and raise the model's floor. Raises AifbError."""
        root = self.root
        if root is None:
            raise AifbError("bad_root_chain", "This node has no trust root yet: it must enrol first.")
        floor = self._floors.get(deployment.model, 0)
        manifest = verify_manifest(envelope, root=root, deployment=deployment, floor=floor)
        if manifest.security_floor > floor:
            self._floors[deployment.model] = manifest.security_floor
            write_json(self._folder / FLOORS_FILE, self._floors)
        stored = {"envelope": base64.b64encode(envelope).decode(), "root_version": root.version}
        write_json(self._manifest_path(deployment), stored)
        return manifest

    def has_manifest(self, deployment: Deployment) -> bool:
        """Whether this deployment's manifest has been accepted."""
        return self._manifest_path(deployment).exists()

    def manifest(self, deployment: Deployment) -> Manifest | None:
        """The manifest once accepted for this deployment's artifact; None if there is none.

        Raises AifbError when the stored file no longer verifies.
        """
        stored = read_json(self._manifest_path(deployment))
        if stored is None:
            return None
        with self._lock:
            root = self._roots[int(stored["root_version"])]
        return verify_manifest(base64.b64decode(stored["envelope"]), root=root, deployment=deployment)

    def forget_manifests(self, keep: frozenset[str]) -> None:
        """Delete the manifests of artifacts that are no longer cached; `keep` holds digests."""
        for path in (self._folder / MANIFESTS).glob("*.json"):
            if path.stem.rpartition("_")[2] not in keep:
                path.unlink(missing_ok=True)

    def _manifest_path(self, deployment: Deployment) -> Path:
        return self._folder / MANIFESTS / f"{deployment.model}_{deployment.version}_{deployment.digest}.json"

    def _load(self) -> None:
        stored = read_json(self._folder / ROOT_FILE)
        if stored is None:
            return
        self._roots = _walk([base64.b64decode(text) for text in stored["envelopes"]], self._pin)
        self._floors = {model: int(floor) for model, floor in (read_json(self._folder / FLOORS_FILE) or {}).items()}
        kept: dict[str, Any] | None = read_json(self._folder / ASSIGNMENT_FILE)
        if kept is None:
            return
        # signature, path and addressee again, but neither time nor order: those were judged when it was accepted
        statement = open_bundle(kept["bundle"], root=self._roots[int(kept["root_version"])], node_id=kept["node"])
        issued = datetime.fromisoformat(kept["latest_issued"])
        mark = Accepted(statement.director_epoch, statement.sequence, statement.content, issued)
        self.assignment, self._statement_b64 = Assignment(statement, mark), kept["bundle"]["statement"]


def _walk(envelopes: Sequence[bytes], pin_sha256: str) -> dict[int, Root]:
    """Verify a whole chain from the pinned first envelope on; every version by its number."""
    if not envelopes or hashlib.sha256(envelopes[0]).hexdigest() != pin_sha256:
        raise AifbError("bad_root_chain", "The trust root is not the one that the join token names: get a new token.")
    payload, _ = signing.unpack(envelopes[0], ROOT_TYPE)
    root = open_pinned_root(envelopes[0], root_digest(payload))  # the envelope's own pin is checked above
    roots = {root.version: root}
    for envelope in envelopes[1:]:
        root = verify_root_chain(root, [envelope])
        roots[root.version] = root
    return roots
