"""The agent API's side of telemetry."""

from __future__ import annotations

from django.http import HttpResponseBase
from google.protobuf.message import DecodeError

from apps.fleet.agent_auth import NodeRequest, answer, signed_by_node
from apps.lib.errors import DomainError
from apps.observability import services
from protocol.messages import TELEMETRY_MAX_BYTES
from protocol.telemetry_pb2 import TelemetryBatch


@signed_by_node("POST", max_body_bytes=TELEMETRY_MAX_BYTES)
def telemetry(request: NodeRequest) -> HttpResponseBase:
    """`POST /agent/v1/telemetry`: one batch in, acknowledged after its commit."""
    batch = TelemetryBatch()
    try:
        batch.ParseFromString(request.raw)
    except DecodeError:
        raise DomainError("bad_batch", "The body is no TelemetryBatch; see protocol/telemetry.proto.") from None
    return answer(services.store_batch(request.node, batch, now=request.now))
