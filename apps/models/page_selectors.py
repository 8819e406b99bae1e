"""What the console's pages read about models: lists, a version with its lineage, what changed between two versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count, Max, OuterRef, Prefetch, Q, QuerySet, Subquery

from aifb import lineage as lineages
from apps.access.models import User
from apps.access.selectors import for_user
from apps.lib.errors import NotFound
from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, VersionState

PART_FIELDS = {"model": "model_hash", "data": "data_hash", "env": "env_hash", "build": "build_hash"}
NAMED = 3  # entries that a summary names before it counts


def models(user: User, search: str = "", task: str = "") -> QuerySet[RegisteredModel]:
    """Return the user's models with `version_count`, `newest`, `published_at` and their aliases."""
    published = Q(versions__state=VersionState.PUBLISHED)
    rows = for_user(RegisteredModel.objects.all(), user)
    if search:
        rows = rows.filter(Q(slug__icontains=search) | Q(description__icontains=search))
    if task:
        rows = rows.filter(task=task)
    aliases = Prefetch("aliases", Alias.objects.select_related("version").order_by("name"), to_attr="names")
    return rows.annotate(
        version_count=Count("versions", filter=published),
        newest=Max("versions__number", filter=published),
        published_at=Max("versions__published_at"),
    ).prefetch_related(aliases)


def tasks(user: User) -> list[str]:
    """Return the kinds of task that the user's models have."""
    rows = for_user(RegisteredModel.objects.exclude(task=""), user)
    return list(rows.order_by("task").values_list("task", flat=True).distinct())


def get_model(user: User, slug: str) -> RegisteredModel:
    """Return one of the user's models. Raises NotFound."""
    found = for_user(RegisteredModel.objects.select_related("team"), user).filter(slug=slug).first()
    if found is None:
        raise NotFound("model_not_found", f"There is no model «{slug}» in your teams; the list is under Models.")
    return found


def versions(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Return a model's versions, newest first, with size in bytes (`total_bytes`), publisher and aliases."""
    size = Artifact.objects.filter(version=OuterRef("pk")).values("blob__total_bytes")[:1]
    return (
        ModelVersion.objects.filter(model=model)
        .defer("lineage_inputs")
        .annotate(total_bytes=Subquery(size))
        .select_related("created_by", "model")
        .prefetch_related("aliases")
        .order_by("-number")
    )


def alias_history(model: RegisteredModel) -> QuerySet[AliasMove]:
    """Return where the model's aliases pointed, newest first."""
    return AliasMove.objects.filter(alias__model=model).select_related("alias", "version").order_by("-at")


def get_version(model: RegisteredModel, number: int) -> ModelVersion:
    """Return a version with its publisher. Raises NotFound."""
    found = ModelVersion.objects.filter(model=model, number=number).select_related("created_by").first()
    if found is None:
        raise NotFound("version_not_found", f"Model «{model.slug}» has no version {number}; see its page for the list.")
    found.model = model
    return found


def artifacts(version: ModelVersion) -> QuerySet[Artifact]:
    """Return a version's artifacts with their sizes, without the bulky columns."""
    rows = Artifact.objects.filter(version=version).select_related("blob")
    return rows.defer("manifest", "blob__leaf_table", "blob__tensors").order_by("created_at")


def previous_version(version: ModelVersion) -> ModelVersion | None:
    """Return the published version before this one."""
    older = ModelVersion.objects.filter(
        model_id=version.model_id, number__lt=version.number, state=VersionState.PUBLISHED
    )
    return older.order_by("-number").first()


@dataclass(frozen=True)
class PartDiff:
    """One part of the lineage held against another version's: hashes, and in words what moved."""

    part: str
    before: str
    after: str
    said: str  # «same», or what changed
    names: tuple[str, ...] = ()  # the entries that moved

    @property
    def same(self) -> bool:
        return self.before == self.after


def lineage_diff(before: ModelVersion, after: ModelVersion) -> list[PartDiff]:
    """Compare two versions part by part."""
    old, new = _inputs(before), _inputs(after)
    moved = lineages.changes(old, new)
    parts = []
    for part, field in PART_FIELDS.items():
        was, now = getattr(before, field), getattr(after, field)
        change = moved.get(part)
        if was == now:
            parts.append(PartDiff(part, was, now, "same"))
        elif change is None:
            parts.append(PartDiff(part, was, now, "changed"))
        else:
            names = (*change.changed, *change.added, *change.removed)
            parts.append(PartDiff(part, was, now, _said(part, change, old[part], new[part]), names))
    return parts


def _inputs(version: ModelVersion) -> dict[str, dict[str, str]]:
    return {part: version.lineage_inputs.get(part, {}) for part in PART_FIELDS}


def _said(part: str, change: lineages.PartChange, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    if part == "model":
        return _said_tensors(change, old, new)
    if part == "env":
        moves = [f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}" for name in sorted(old.keys() | new.keys())
                 if old.get(name) != new.get(name)]  # fmt: skip
        return _first(moves)
    return _first([*change.changed, *(f"{name} added" for name in change.added), *(f"{name} gone" for name in change.removed)])


def _said_tensors(change: lineages.PartChange, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """An entry reads «float32 [384, 384] sha…»: the commonest change of type is worth saying."""
    said = []
    if change.changed:
        types = Counter((old[name].split(" ")[0], new[name].split(" ")[0]) for name in change.changed)
        (was, now), count = types.most_common(1)[0]
        said.append(f"{len(change.changed)} tensors" + (f", {count} {was}→{now}" if was != now else ""))
    if change.added:
        said.append(f"{len(change.added)} added")
    if change.removed:
        said.append(f"{len(change.removed)} gone")
    return " · ".join(said)


def _first(moves: list[str]) -> str:
    rest = len(moves) - NAMED
    return ", ".join(moves[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
