"""What a host says of its own hardware: kept as it came, and its GPUs as rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Value, When
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from apps.fleet.models import Gpu, GpuHealth, Node
from apps.lib.errors import DomainError

MARKED_AT_ONCE = 5_000


class GpuFacts(BaseModel):
    """One entry of `hardware.gpus`."""

    model_config = ConfigDict(extra="ignore")

    uuid: str = Field(min_length=1, max_length=96)
    index: int = Field(ge=0, le=255)
    name: str = Field(max_length=120)
    memory_bytes: int = Field(ge=0, le=(1 << 63) - 1)
    simulated: bool = False


_GPUS = TypeAdapter(list[GpuFacts])


def store_gpus(node: Node, hardware: dict[str, Any]) -> None:
    """Make the node's GPU rows say what `hardware["gpus"]` lists (nothing listed: no GPU).

    A UUID that another node lists stays with that node. Raises DomainError(bad_hardware).
    """
    try:
        listed = _GPUS.validate_python(hardware.get("gpus", []))
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DomainError("bad_hardware", f"hardware.gpus.{where} is malformed: {first['msg']}.") from None
    node.gpus.exclude(uuid__in=[gpu.uuid for gpu in listed]).delete()
    # a node can't take a GPU away from another by claiming its UUID
    elsewhere = set(
        Gpu.objects.exclude(node=node).filter(uuid__in=[gpu.uuid for gpu in listed]).values_list("uuid", flat=True)
    )
    Gpu.objects.bulk_create(
        [Gpu(node=node, **gpu.model_dump()) for gpu in listed if gpu.uuid not in elsewhere],
        update_conflicts=True,
        unique_fields=["uuid"],
        update_fields=["index", "name", "memory_bytes", "simulated"],
    )


def mark_gpus(health: Mapping[str, tuple[GpuHealth, str]], *, now: datetime) -> int:
    """Write what is known of GPUs' health, `{uuid: (health, reason)}`; returns how many changed.

    Whoever knows (alerts, reports) hands it down; a GPU of the same health and reason isn't touched.
    """
    same: dict[tuple[GpuHealth, str], list[str]] = defaultdict(list)
    for uuid, verdict in health.items():
        same[verdict].append(uuid)
    changed = 0
    for (state, reason), uuids in same.items():
        since = Case(When(health=state, then=F("health_since")), default=Value(now))
        # a fleet that is heard again is one statement a few thousand GPUs, not a CASE of eighty thousand
        for begin in range(0, len(uuids), MARKED_AT_ONCE):
            rows = Gpu.objects.filter(uuid__in=uuids[begin : begin + MARKED_AT_ONCE])
            others = rows.exclude(health=state, health_reason=reason)
            changed += others.update(health=state, health_reason=reason, health_since=since)
    return changed
