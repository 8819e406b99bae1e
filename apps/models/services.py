"""Every write to the registry: numbers are reserved, files stored, versions published, aliases moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Max, Sum

from aifb import lineage
from aifb.errors import AifbError
from aifb.manifest import MANIFEST_TYPE, Manifest, parse_manifest
from aifb.signing import unpack
from apps.access.models import Role, Team, slug_validator
from apps.access.services import require_actor
from apps.audit.transitions import SYSTEM, Actor, Stale, move, record
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.models import store
from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, StoredBlob, VersionState
from apps.models.trust import add_root, current_root

__all__ = [
    "Publication",
    "abandon_stale",
    "add_root",
    "check_upload",
    "move_alias",
    "publish_version",
    "reserve_version",
    "store_blob",
    "update_model",
]

RESERVATION_LIFE = timedelta(hours=24)
CHAMPION = "champion"


def reserve_version(
    *,
    slug: str,
    team: Team,
    actor: Actor,
    now: datetime,
    source_commit: str = "",
    notes: str = "",
    task: str = "",
) -> ModelVersion:
    """Give out the next number of a model, so that its publisher can sign it; the first one creates the model.

    Raises Forbidden (operators register), DomainError for a malformed slug, Conflict for another team's slug.
    """
    require_actor(actor, team, Role.OPERATOR)
    if actor.user is None:
        raise Forbidden("person_needed", "Versions are registered by people and their tokens.")
    with transaction.atomic():
        model = _locked_model(slug, team, task, actor, now)
        newest = model.versions.aggregate(newest=Max("number"))["newest"] or 0
        version = ModelVersion.objects.create(
            team=team,
            model=model,
            number=newest + 1,
            source_commit=source_commit,
            notes=notes,
            created_by=actor.user,
            created_at=now,
        )
        record(version, "version.reserved", actor=actor, now=now, to_state=version.state)
    return version


def _locked_model(slug: str, team: Team, task: str, actor: Actor, now: datetime) -> RegisteredModel:
    """Find or create the model and lock its row: numbers are given out one at a time."""
    try:
        slug_validator(slug)
    except ValidationError as bad:
        raise DomainError("bad_slug", f"«{slug}» can't name a model: {bad.messages[0]}") from bad
    model, created = RegisteredModel.objects.get_or_create(slug=slug, defaults={"team": team, "task": task})
    if model.team_id != team.pk:
        raise Conflict("model_taken", f"Another team has a model «{slug}»; choose another slug.")
    if created:
        record(model, "model.created", actor=actor, now=now, data={"task": task})
    return RegisteredModel.objects.select_for_update().get(pk=model.pk)


def update_model(
    *,
    model: RegisteredModel,
    actor: Actor,
    now: datetime,
    description: str | None = None,
    task: str | None = None,
    slo_latency_ms: int | None = None,
) -> RegisteredModel:
    """Change what a model's page says and what its service promises; None leaves a field as it is."""
    require_actor(actor, model.team_id, Role.OPERATOR)
    wanted = {"description": description, "task": task, "slo_latency_ms": slo_latency_ms}
    changes = {name: value for name, value in wanted.items() if value is not None}
    if changes:
        with transaction.atomic():
            RegisteredModel.objects.filter(pk=model.pk).update(**changes)
            record(model, "model.changed", actor=actor, now=now, data=changes)
        for name, value in changes.items():
            setattr(model, name, value)
    return model


def check_upload(*, digest: str, length: int, team: Team, actor: Actor) -> StoredBlob | None:
    """Judge an upload before a byte of it is read; return the row when the store has that artifact already.

    Raises Forbidden, DomainError 413 (`too_large`, `quota_exceeded`), Conflict when another team stored it.
    """
    require_actor(actor, team, Role.OPERATOR)
    limit = settings.FARRIER.max_artifact_bytes
    if length > limit:
        raise DomainError("too_large", f"The artifact has {length} bytes, at most {limit} are stored.", status=413)
    known = StoredBlob.objects.defer("leaf_table", "tensors").filter(digest=digest).first()
    if known is not None and known.team_id != team.pk:
        raise Conflict("artifact_taken", f"Another team has stored the artifact {digest[:12]}….")
    if known is not None and store.path_of(digest).is_file():
        return known
    held = StoredBlob.objects.filter(team=team).aggregate(held=Sum("total_bytes"))["held"] or 0
    quota = settings.FARRIER.team_artifact_bytes
    if held + length > quota:
        raise DomainError(
            "quota_exceeded", f"The team's artifacts take {held} of {quota} bytes; this one has {length}.", status=413
        )
    return None


def store_blob(
    *, read: store.Read, digest: str, length: int, team: Team, actor: Actor, now: datetime
) -> tuple[StoredBlob, bool]:
    """Stream an artifact into the store; return its row and whether it is new.

    `read(n)` gives up to n bytes of the body. Memory stays constant; nothing is kept of what is refused. Raises
    DomainError: those of check_upload, and of store.receive (wrong digest, truncated, not an artifact, …).
    """
    known = check_upload(digest=digest, length=length, team=team, actor=actor)
    if known is not None:
        return known, False
    if actor.user is None:
        raise Forbidden("person_needed", "Artifacts are uploaded by people and their tokens.")
    checked = store.receive(read, digest=digest, length=length)
    with transaction.atomic():
        blob, created = StoredBlob.objects.get_or_create(
            digest=digest,
            defaults={
                "total_bytes": checked.total_bytes,
                "flat_sha3_512": checked.flat_sha3_512,
                "leaf_table": checked.leaf_table,
                "model_hash": checked.model_hash,
                "graph_hash": checked.graph_hash,
                "tensors": checked.tensors,
                "team": team,
                "uploaded_by": actor.user,
                "uploaded_at": now,
            },
        )
        if created:
            record(blob, "artifact.stored", actor=actor, now=now, data={"bytes": length})
    return blob, created


@dataclass(frozen=True)
class Publication:
    """What a publisher says about a version beside the signed manifest."""

    lineage_inputs: Mapping[str, Mapping[str, str]]
    baseline_metrics: Mapping[str, float] = field(default_factory=dict)
    precision: str = ""
    graph_hash: str = ""
    device: str = "any"


def publish_version(
    *, version: ModelVersion, envelope: bytes, publication: Publication, actor: Actor, now: datetime
) -> Artifact:
    """Verify a signed manifest against the trust root, the stored file and the reserved number, then publish.

    Raises DomainError (422) for a signature, digest, length, number or lineage that does not fit, Conflict when the
    version is not reserved any more or the digest is published already.
    """
    require_actor(actor, version.team_id, Role.OPERATOR)
    manifest, signer = _verified_manifest(envelope, now)
    blob = _fitting_blob(version, manifest)
    _check_lineage(manifest, blob, publication)
    changes = {f"{part}_hash": manifest.lineage[part] for part in lineage.PARTS} | {
        "graph_hash": blob.graph_hash,
        "lineage_inputs": {part: dict(publication.lineage_inputs[part]) for part in lineage.PARTS},
        "baseline_metrics": dict(publication.baseline_metrics),
        "precision": publication.precision,
        "published_at": now,
    }
    artifact = Artifact(
        team_id=version.team_id,
        version=version,
        blob=blob,
        digest=blob.digest,
        manifest=envelope,
        signed_by=signer,
        security_floor=manifest.security_floor,
        device=publication.device,
    )
    try:
        with transaction.atomic():
            move(
                version,
                VersionState.PUBLISHED,
                actor=actor,
                reason="verified",
                now=now,
                changes=changes,
                data={"digest": blob.digest, "signed_by": signer},
            )
            artifact.save(force_insert=True)
    except IntegrityError as taken:
        raise Conflict(
            "digest_published", f"The artifact {blob.digest[:12]}… is published already, as another version."
        ) from taken
    return artifact


def _verified_manifest(envelope: bytes, now: datetime) -> tuple[Manifest, str]:
    """Return the manifest and the id of a release key that signed it."""
    root = current_root()
    if root.expires <= now:
        raise Conflict("root_expired", f"The trust root expired at {root.expires.isoformat()}; add its successor.")
    try:
        manifest = parse_manifest(root.verify(envelope, MANIFEST_TYPE, "release"))
        _, signatures = unpack(envelope, MANIFEST_TYPE)
    except AifbError as refused:
        raise store.refusal(refused) from refused
    return manifest, min(signatures.keys() & root.roles["release"].keyids)


def _fitting_blob(version: ModelVersion, manifest: Manifest) -> StoredBlob:
    """Return the stored file that the manifest names, once both speak of this version and these bytes."""
    said = f"{manifest.model} v{manifest.version}"
    if (manifest.model, manifest.version) != (version.model.slug, version.number):
        raise DomainError("wrong_version", f"The manifest is signed for {said}, not for {version}.", status=422)
    blob = StoredBlob.objects.defer("leaf_table").filter(digest=manifest.digest, team=version.team_id).first()
    if blob is None:
        raise DomainError(
            "artifact_missing", f"The artifact {manifest.digest[:12]}… is not stored; upload it first.", status=422
        )
    if manifest.length != blob.total_bytes:
        raise DomainError(
            "length_mismatch",
            f"The manifest says {manifest.length} bytes, the file has {blob.total_bytes}.",
            status=422,
        )
    if manifest.flat_sha3_512 != blob.flat_sha3_512:
        raise DomainError("flat_mismatch", "The manifest's flat SHA3-512 is not the stored file's.", status=422)
    return blob


def _check_lineage(manifest: Manifest, blob: StoredBlob, publication: Publication) -> None:
    """Hold the signed hashes against the stored tensors and against the entries that are said to lead to them."""
    if manifest.lineage["model"] != blob.model_hash:
        raise DomainError(
            "model_hash_mismatch",
            "The manifest's model hash is not that of the stored tensors; pack and sign the same artifact.",
            status=422,
        )
    if publication.graph_hash and publication.graph_hash != blob.graph_hash:
        raise DomainError("graph_hash_mismatch", "The graph hash is not that of the stored graph.", status=422)
    for part in lineage.PARTS:
        entries = publication.lineage_inputs.get(part)
        if entries is None or lineage.hash_entries(part, entries) != manifest.lineage[part]:
            raise DomainError(
                "lineage_mismatch",
                f"The lineage inputs of «{part}» do not lead to the hash in the manifest; send those it was made from.",
                status=422,
            )


def move_alias(
    *,
    model: RegisteredModel,
    name: str,
    version: ModelVersion,
    actor: Actor,
    reason: str,
    now: datetime,
    rollout_id: UUID | None = None,
    expected_revision: int | None = None,
) -> Alias:
    """Point an alias at a published version, creating it at first use; the history only grows.

    Approvers move `champion`, operators the others. Raises Forbidden, DomainError for a bad name or version, Stale
    when `expected_revision` is not the alias's.
    """
    require_actor(actor, model.team_id, Role.APPROVER if name == CHAMPION else Role.OPERATOR)
    _check_alias(model, name, version, reason)
    with transaction.atomic():
        alias, created = Alias.objects.select_for_update().get_or_create(
            model=model, name=name, defaults={"team_id": model.team_id, "version": version}
        )
        if expected_revision is not None and expected_revision != (0 if created else alias.revision):
            raise Stale(alias)
        if not created and alias.version_id == version.pk:
            return alias
        before = "" if created else f"v{alias.version.number}"
        alias.version, alias.revision = version, alias.revision + 1
        alias.save(update_fields=["version", "revision"])
        AliasMove.objects.create(
            alias=alias, version=version, at=now, actor_label=actor.label, reason=reason, rollout_id=rollout_id
        )
        to = f"v{version.number}"
        data = {"rollout": str(rollout_id) if rollout_id else None}
        record(alias, "alias.moved", actor=actor, reason=reason, now=now, from_state=before, to_state=to, data=data)
    return alias


def _check_alias(model: RegisteredModel, name: str, version: ModelVersion, reason: str) -> None:
    try:
        slug_validator(name)
    except ValidationError as bad:
        raise DomainError("bad_slug", f"«{name}» can't name an alias: {bad.messages[0]}") from bad
    if version.model_id != model.pk or version.state != VersionState.PUBLISHED:
        raise DomainError("version_not_published", f"{version} is no published version of «{model.slug}».", status=422)
    if not reason.strip():
        raise DomainError("reason_needed", "Say why the alias moves; its history is read later.")


def abandon_stale(*, now: datetime) -> int:
    """Give up numbers that were reserved a day ago and never published; return how many."""
    stale = ModelVersion.objects.filter(state=VersionState.RESERVED, created_at__lt=now - RESERVATION_LIFE)
    given_up = 0
    for version in stale.select_related("model")[:500]:
        try:
            move(version, VersionState.ABANDONED, actor=SYSTEM, reason="never published", now=now)
        except Stale:
            continue  # published this moment
        given_up += 1
    return given_up
