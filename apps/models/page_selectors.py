"""What only the console's pages read of the registry: searched lists, what changed between two versions in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Max, Prefetch, Q, QuerySet

from apps.access.models import User
from apps.models import selectors
from apps.models.models import Alias, AliasMove, Artifact, ModelVersion, RegisteredModel, VersionState

PART_FIELDS = {"model": "model_hash", "data": "data_hash", "env": "env_hash", "build": "build_hash"}
NAMED = 3  # entries that a summary names before it counts


def models(user: User, search: str = "", task: str = "") -> QuerySet[RegisteredModel]:
    """Return the user's models, narrowed, with `published_at` of the newest version and aliases as `names`."""
    rows = selectors.models_for(user)
    if search:
        rows = rows.filter(Q(slug__icontains=search) | Q(description__icontains=search))
    if task:
        rows = rows.filter(task=task)
    aliases = Prefetch("aliases", Alias.objects.select_related("version").order_by("name"), to_attr="names")
    return rows.annotate(published_at=Max("versions__published_at")).prefetch_related(None).prefetch_related(aliases)


def tasks(user: User) -> list[str]:
    """Return the kinds of task that the user's models have."""
    rows = selectors.models_for(user).exclude(task="").order_by("task")
    return list(rows.values_list("task", flat=True).distinct())


def versions(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Return a model's versions for a list: without what went into their lineage, which may be large."""
    return selectors.versions_of(model).defer("lineage_inputs")


def alias_moves(model: RegisteredModel) -> QuerySet[AliasMove]:
    """Return where all of the model's aliases pointed, newest first."""
    return AliasMove.objects.filter(alias__model=model).select_related("alias", "version").order_by("-at", "-id")


def artifacts(version: ModelVersion) -> QuerySet[Artifact]:
    """Return a version's artifacts with their sizes, without the bulky columns."""
    rows = Artifact.objects.filter(version=version).select_related("blob")
    return rows.defer("manifest", "blob__leaf_table", "blob__tensors").order_by("created_at")


def previous_version(version: ModelVersion) -> ModelVersion | None:
    """Return the published version before this one."""
    older = ModelVersion.objects.filter(
        model_id=version.model_id, number__lt=version.number, state=VersionState.PUBLISHED
    )
    return older.select_related("model").order_by("-number").first()


@dataclass(frozen=True)
class PartDiff:
    """One part of the lineage held against another version's: hashes, and in words what moved."""

    part: str
    before: str
    after: str
    said: str

    @property
    def same(self) -> bool:
        return self.before == self.after


def lineage_diff(before: ModelVersion, after: ModelVersion) -> list[PartDiff]:
    """Compare two versions part by part, for people."""
    parts = selectors.lineage_diff(before, after).parts
    return [PartDiff(part.part, part.before, part.after, _said(part, before, after)) for part in parts]


def _said(part: selectors.LineagePart, before: ModelVersion, after: ModelVersion) -> str:
    if part.same:
        return "same"
    old = before.lineage_inputs.get(part.part, {})
    new = after.lineage_inputs.get(part.part, {})
    if part.part == "model":
        return _said_tensors(part, old, new)
    if part.part == "env":
        moved = sorted((*part.changed, *part.added, *part.removed))
        return _first([f"{name} {old.get(name, 'absent')} → {new.get(name, 'absent')}" for name in moved])
    gone = [f"{name} gone" for name in part.removed]
    return _first([*part.changed, *(f"{name} added" for name in part.added), *gone]) or "changed"


def _said_tensors(part: selectors.LineagePart, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """An entry reads «float32 [384, 384] sha…»: the commonest change of type is worth saying."""
    said = []
    if part.changed:
        types = Counter((old[name].split(" ")[0], new[name].split(" ")[0]) for name in part.changed)
        (was, now), count = types.most_common(1)[0]
        plural = "" if len(part.changed) == 1 else "s"
        said.append(f"{len(part.changed)} tensor{plural}" + (f", {count} {was}→{now}" if was != now else ""))
    if part.added:
        said.append(f"{len(part.added)} added")
    if part.removed:
        said.append(f"{len(part.removed)} gone")
    return " · ".join(said) or "changed"


def _first(moves: list[str]) -> str:
    rest = len(moves) - NAMED
    return ", ".join(moves[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
