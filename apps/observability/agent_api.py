"""The agent API's side of telemetry."""

from __future__ import annotations

from django.http import HttpResponseBase
from google.protobuf.message import DecodeError

from apps.fleet.agent_auth import NodeRequest, answer, signed_by_node
from apps.lib.errors import DomainError
from apps.observability import services
from protocol.bounds import has_more_fields_than, payloads
from protocol.messages import TELEMETRY_MAX_BYTES, TELEMETRY_MAX_ROWS, TELEMETRY_MAX_SAMPLES
from protocol.telemetry_pb2 import TelemetryBatch

HEAD_FIELDS = 20  # beside the rows; a newer agent may send some that we don't know
PACKED = (TelemetryBatch.GPU_FIELD_NUMBER, TelemetryBatch.ENGINE_FIELD_NUMBER)
PACKED_FIELDS = 200  # sources and columns of a block of packed samples


@signed_by_node("POST", max_body_bytes=TELEMETRY_MAX_BYTES)
def telemetry(request: NodeRequest) -> HttpResponseBase:
    """`POST /agent/v1/telemetry`: one batch in, acknowledged after its commit."""
    batch = TelemetryBatch()
    try:
        # before the parser: millions of empty rows are small on the wire and gigabytes once they are objects
        if has_more_fields_than(request.raw, TELEMETRY_MAX_ROWS + HEAD_FIELDS):
            raise DomainError(
                "too_many_rows", f"A batch has at most {TELEMETRY_MAX_ROWS} rows; send several.", status=413
            )
        if any(has_more_fields_than(block, PACKED_FIELDS) for n in PACKED for block in payloads(request.raw, n)):
            raise DomainError(
                "too_many_columns", f"A block of samples has at most {PACKED_FIELDS} sources and columns.", status=413
            )
        batch.ParseFromString(request.raw)
    except (DecodeError, ValueError):
        raise DomainError("bad_batch", "The body is no TelemetryBatch; see protocol/telemetry.proto.") from None
    samples = sum(len(block.gpu) for block in batch.gpu) + sum(len(block.deployment) for block in batch.engine)
    if samples > TELEMETRY_MAX_SAMPLES:
        raise DomainError(
            "too_many_samples", f"A batch has at most {TELEMETRY_MAX_SAMPLES} samples; send several.", status=413
        )
    return answer(services.store_batch(request.node, batch, now=request.now))
