"""The artifact manifest: the publisher's signed word on which bytes a model version is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from aifb import documents
from aifb.assignment import Deployment
from aifb.errors import AifbError
from aifb.root_chain import Root

MANIFEST_TYPE = "application/vnd.farrier.manifest+json"
LINEAGE_PARTS = ("model", "data", "env", "build")


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest. `security_floor` is the lowest version of the model that may still be deployed."""

    model: str
    version: int
    digest: str
    length: int
    flat_sha3_512: str
    lineage: Mapping[str, str]
    security_floor: int
    created: datetime


def make_manifest(
    *,
    model: str,
    version: int,
    digest: str,
    length: int,
    flat_sha3_512: str,
    lineage: Mapping[str, str],
    security_floor: int = 0,
    created: datetime,
) -> bytes:
    """The payload of a manifest, to be signed with a release key as MANIFEST_TYPE. Raises AifbError(bad_document)."""
    payload = documents.canonical(
        {
            "type": "manifest",
            "model": model,
            "version": version,
            "digest": digest,
            "length": length,
            "flat_sha3_512": flat_sha3_512,
            "lineage": dict(lineage),
            "security_floor": security_floor,
            "created": documents.format_time(created),
        }
    )
    parse_manifest(payload)
    return payload


def parse_manifest(payload: bytes) -> Manifest:
    """Parse a manifest's payload, whose signature the caller has checked. Raises AifbError(bad_document)."""
    where = "The manifest"
    names = "type model version digest length flat_sha3_512 lineage security_floor created"
    fields = documents.Fields(documents.parse(payload, where), where, names)
    fields.literal("type", "manifest")
    parts = documents.Fields(fields.raw("lineage"), "The manifest's lineage", " ".join(LINEAGE_PARTS))
    version = fields.integer("version", 1)
    return Manifest(
        model=fields.text("model", documents.SLUG, "a model's slug"),
        version=version,
        digest=fields.text("digest", documents.HEX_128, "128 hexadecimal characters"),
        length=fields.integer("length", 1),
        flat_sha3_512=fields.text("flat_sha3_512", documents.HEX_128, "128 hexadecimal characters"),
        lineage={part: parts.text(part, documents.HEX_64, "64 hexadecimal characters") for part in LINEAGE_PARTS},
        security_floor=fields.integer("security_floor", 0, version),
        created=fields.time("created"),
    )


def verify_manifest(envelope: bytes, *, root: Root, deployment: Deployment, floor: int = 0) -> Manifest:
    """The manifest of an assigned deployment: signed by the release role, of this very artifact, not below the floor.

    `floor` is the highest security floor that this node has ever accepted for the model; the caller keeps
    max(floor, manifest.security_floor). Raises AifbError: wrong_artifact, below_floor, bad_document, and the codes of
    signing.verify.
    """
    manifest = parse_manifest(root.verify(envelope, MANIFEST_TYPE, "release"))
    said = (manifest.model, manifest.version, manifest.digest, manifest.length)
    if said != (deployment.model, deployment.version, deployment.digest, deployment.length):
        raise AifbError(
            "wrong_artifact",
            f"The manifest is of {manifest.model} {manifest.version}, or of other bytes, not what was assigned.",
        )
    if manifest.version < floor:
        raise AifbError(
            "below_floor",
            f"{manifest.model} {manifest.version} is below the security floor {floor}: deploy a newer version.",
        )
    return manifest
