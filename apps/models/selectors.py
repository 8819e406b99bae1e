"""Every read of the registry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Max, Prefetch, Q, QuerySet

from apps.access.models import User
from apps.access.selectors import for_user
from apps.lib.errors import NotFound
from apps.models import store
from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, StoredBlob, VersionState

Anyone = User | AnonymousUser


def models_for(user: Anyone) -> QuerySet[RegisteredModel]:
    """Return the models that `user` may see, by slug, with `newest` (number) and `published` (count)."""
    published = Q(versions__state=VersionState.PUBLISHED)
    return (
        for_user(RegisteredModel.objects.all(), user)
        .annotate(
            newest=Max("versions__number", filter=published),
            published=Count("versions", filter=published),
        )
        .prefetch_related(Prefetch("aliases", Alias.objects.select_related("version").order_by("name")))
        .order_by("slug")
    )


def get_model(user: Anyone, slug: str) -> RegisteredModel:
    """Return one model. Raises NotFound."""
    model = models_for(user).filter(slug=slug).first()
    if model is None:
        raise NotFound("model_not_found", f"There is no model «{slug}» in your teams; see /api/v1/models.")
    return model


def versions_of(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Return a model's versions, newest first, with aliases and artifacts at hand."""
    return (
        ModelVersion.objects.filter(model=model)
        .select_related("model", "created_by")
        .prefetch_related(
            Prefetch("aliases", Alias.objects.order_by("name")),
            Prefetch("artifacts", Artifact.objects.select_related("blob").defer("blob__leaf_table", "blob__tensors")),
        )
        .order_by("-number")
    )


def get_version(user: Anyone, slug: str, number: int) -> ModelVersion:
    """Return one version. Raises NotFound."""
    version = versions_of(get_model(user, slug)).filter(number=number).first()
    if version is None:
        raise NotFound("version_not_found", f"«{slug}» has no version {number}; see /api/v1/models/{slug}/versions.")
    return version


def get_artifact(version: ModelVersion) -> Artifact:
    """Return the artifact that nodes get of a version. Raises NotFound while it is not published."""
    artifact = version.artifacts.select_related("blob").order_by("created_at").first()
    if artifact is None:
        raise NotFound("not_published", f"{version} is not published; it has no artifact yet.")
    return artifact


def get_blob(user: Anyone, digest: str) -> StoredBlob:
    """Return a stored file's row, without its big columns. Raises NotFound."""
    blob = for_user(StoredBlob.objects.defer("leaf_table", "tensors"), user).filter(digest=digest).first()
    if blob is None:
        raise NotFound("artifact_not_found", f"No artifact {digest[:12]}… is stored in your teams; upload it first.")
    return blob


def artifact_file(digest: str) -> Path:
    """Return the stored file of a digest, read-only. Raises NotFound when it is not in the store."""
    path = store.path_of(digest)
    if not path.is_file():
        raise NotFound("artifact_not_found", f"The store holds no artifact {digest[:12]}…; it was lost or never sent.")
    return path


def aliases_of(model: RegisteredModel) -> QuerySet[Alias]:
    """Return a model's aliases by name."""
    return Alias.objects.filter(model=model).select_related("version", "model").order_by("name")


def get_alias(model: RegisteredModel, name: str) -> Alias:
    """Return one alias. Raises NotFound."""
    alias = aliases_of(model).filter(name=name).first()
    if alias is None:
        raise NotFound("alias_not_found", f"«{model.slug}» has no alias «{name}».")
    return alias


def alias_history(alias: Alias) -> QuerySet[AliasMove]:
    """Return every move of an alias, newest first."""
    return AliasMove.objects.filter(alias=alias).select_related("version", "version__model").order_by("-at", "-id")


def alias_at(model: RegisteredModel, name: str, at: datetime) -> AliasMove:
    """Return the move that was in force at `at`: which version the alias meant then, and why.

    Raises NotFound when the alias did not exist yet.
    """
    move = alias_history(get_alias(model, name)).filter(at__lte=at).first()
    if move is None:
        raise NotFound("alias_not_set", f"«{model.slug}@{name}» pointed nowhere at {at.isoformat()}.")
    return move


@dataclass(frozen=True)
class LineagePart:
    """One of the four parts, compared between two versions; names are entries of `lineage_inputs`."""

    part: str
    before: str
    after: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    look_at: str

    @property
    def same(self) -> bool:
        return self.before == self.after


LOOK_AT = {
    "model": "the weights: only the numbers of the model moved",
    "data": "the feature pipeline: sources, schema, seeds or assets moved",
    "env": "the packages: a version that changes numbers moved",
    "build": "the image or source tree that packed it",
}


@dataclass(frozen=True)
class LineageDiff:
    """Two versions side by side: which part moved, hence where to look."""

    before: ModelVersion
    after: ModelVersion
    parts: tuple[LineagePart, ...]

    @property
    def graph_changed(self) -> bool:
        return self.before.graph_hash != self.after.graph_hash

    @property
    def sentence(self) -> str:
        moved = [f"{part.part} ({part.look_at})" for part in self.parts if not part.same]
        if not moved:
            return f"{self.after} has the lineage of {self.before}."
        return f"From {self.before} to {self.after} moved: {'; '.join(moved)}."


def lineage_diff(before: ModelVersion, after: ModelVersion) -> LineageDiff:
    """Compare the lineages of two published versions, entry by entry."""
    return LineageDiff(before, after, tuple(_part(name, before, after) for name in LOOK_AT))


def _part(name: str, before: ModelVersion, after: ModelVersion) -> LineagePart:
    old: dict[str, str] = before.lineage_inputs.get(name, {})
    new: dict[str, str] = after.lineage_inputs.get(name, {})
    return LineagePart(
        part=name,
        before=getattr(before, f"{name}_hash"),
        after=getattr(after, f"{name}_hash"),
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(sorted(key for key in old.keys() & new.keys() if old[key] != new[key])),
        look_at=LOOK_AT[name],
    )
