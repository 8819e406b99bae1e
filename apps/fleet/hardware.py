"""What a host says of its own hardware: kept as it came, and its GPUs as rows.

A GPU's row outlives its place in the list, because its history hangs on it: one that its host no longer lists is lost
until it is listed again, there or elsewhere, or until somebody removes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from apps.access.actors import Actor, ActorKind
from apps.access.models import Role
from apps.access.services import require_role
from apps.audit.transitions import record
from apps.fleet.models import Gpu, GpuHealth, Node
from apps.lib.errors import Conflict, DomainError

MARKED_AT_ONCE = 5_000


class GpuFacts(BaseModel):
    """One entry of `hardware.gpus`."""

    model_config = ConfigDict(extra="ignore")

    uuid: str = Field(min_length=1, max_length=96)
    index: int = Field(ge=0, le=255)
    name: str = Field(max_length=120)
    memory_bytes: int = Field(ge=0, le=(1 << 63) - 1)
    simulated: bool = False


_GPUS = TypeAdapter(Annotated[list[GpuFacts], Field(max_length=64)])
NOT_LISTED = "Its host no longer lists it."


def store_gpus(node: Node, hardware: dict[str, Any], *, now: datetime) -> None:
    """Make the node's GPU rows say what `hardware["gpus"]` lists (nothing listed: no GPU).

    A UUID that another node lists stays with that node: none can be taken away by claiming it. Raises
    DomainError(bad_hardware).
    """
    listed = _listed(hardware)
    uuids = [gpu.uuid for gpu in listed]
    is_missing = Q(health=GpuHealth.LOST, health_reason=NOT_LISTED)
    node.gpus.exclude(uuid__in=uuids).exclude(is_missing).update(
        health=GpuHealth.LOST, health_reason=NOT_LISTED, health_since=now
    )
    # a board may move to another host of its team, with its history; whoever names another team's gets nothing
    elsewhere = Gpu.objects.exclude(node=node).exclude(is_missing, node__team=node.team_id).filter(uuid__in=uuids)
    taken = set(elsewhere.values_list("uuid", flat=True))
    Gpu.objects.bulk_create(
        [Gpu(node=node, **gpu.model_dump()) for gpu in listed if gpu.uuid not in taken],
        update_conflicts=True,
        unique_fields=["uuid"],
        update_fields=["node", "index", "name", "memory_bytes", "simulated"],
    )
    Gpu.objects.filter(is_missing, node=node, uuid__in=uuids).update(
        health=GpuHealth.UNKNOWN, health_reason="", health_since=now
    )


def _listed(hardware: dict[str, Any]) -> list[GpuFacts]:
    try:
        listed = _GPUS.validate_python(hardware.get("gpus", []))
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DomainError("bad_hardware", f"hardware.gpus.{where} is malformed: {first['msg']}.") from None
    if len({gpu.uuid for gpu in listed}) < len(listed):
        raise DomainError("bad_hardware", "hardware.gpus lists a UUID twice.")
    return listed


def remove_gpu(gpu: Gpu, *, actor: Actor, reason: str, now: datetime) -> None:
    """Forget a GPU that its host no longer lists; its history can't be found any more.

    Raises Forbidden, Conflict(gpu_listed): while its host lists it, it would be back with the next boot.
    """
    node = gpu.node
    if actor.kind != ActorKind.SYSTEM:
        require_role(actor.user, node.team_id, Role.OPERATOR)
    if not reason.strip():
        raise DomainError("reason_missing", "Say why the GPU is removed; it stays in the audit log.")
    with transaction.atomic():
        gone = Gpu.objects.filter(pk=gpu.pk, health=GpuHealth.LOST, health_reason=NOT_LISTED).delete()[0]
        if not gone:
            raise Conflict("gpu_listed", f"GPU {gpu.index} of {node} is listed by its host; take it out there first.")
        data = {"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name}
        record(node, "node.gpu_removed", actor=actor, reason=reason, now=now, data=data)


def mark_gpus(health: Mapping[str, tuple[GpuHealth, str]], *, now: datetime) -> int:
    """Write what is known of GPUs' health, `{uuid: (health, reason)}`; returns how many changed.

    Whoever knows (alerts, reports) hands it down; a GPU of the same health and reason isn't touched, and neither is one
    that its host no longer lists.
    """
    same: dict[tuple[GpuHealth, str], list[str]] = defaultdict(list)
    for uuid, verdict in health.items():
        same[verdict].append(uuid)
    listed = Gpu.objects.exclude(health=GpuHealth.LOST, health_reason=NOT_LISTED)
    changed = 0
    for (state, reason), uuids in same.items():
        since = Case(When(health=state, then=F("health_since")), default=Value(now))
        # a fleet that is heard again is one statement a few thousand GPUs, not a CASE of eighty thousand
        for begin in range(0, len(uuids), MARKED_AT_ONCE):
            rows = listed.filter(uuid__in=uuids[begin : begin + MARKED_AT_ONCE])
            others = rows.exclude(health=state, health_reason=reason)
            changed += others.update(health=state, health_reason=reason, health_since=since)
    return changed
