"""The agent API of the fleet: enrol, renew, poll, trust root, and the artifacts that a node is assigned.

Plain views without session or cookie. docs/protocol.md tells the other side.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone

from apps.fleet import credentials, files, reports, selectors
from apps.fleet.agent_auth import NodeRequest, agent_view, answer, parse_message, read_body, signed_by_node
from apps.lib.errors import DomainError
from protocol.messages import EnrolRequest, PollRequest, RootResponse

MAX_ENROL_BYTES = 256 << 10
MAX_POLL_BYTES = 2 << 20


@agent_view("POST")
def enrol(request: HttpRequest) -> HttpResponseBase:
    """`POST /agent/v1/enrol`: a host with a join token becomes a node."""
    message = parse_message(EnrolRequest, read_body(request, MAX_ENROL_BYTES))
    return answer(credentials.enrol(message, now=timezone.now()))


@signed_by_node("POST", max_body_bytes=1 << 10, renewing=True)
def renew(request: NodeRequest) -> HttpResponseBase:
    """`POST /agent/v1/renew`: the next credential generation."""
    generation = int(request.headers["X-Farrier-Generation"])
    return answer(credentials.renew(request.node.pk, generation=generation, now=request.now))


@signed_by_node("POST", max_body_bytes=MAX_POLL_BYTES)
def poll(request: NodeRequest) -> HttpResponseBase:
    """`POST /agent/v1/poll`: the node's report in, its orders out."""
    report = parse_message(PollRequest, request.raw)
    return answer(reports.record_poll(request.node.pk, report, now=request.now))


@signed_by_node("GET")
def root(request: NodeRequest) -> HttpResponseBase:
    """`GET /agent/v1/root?after=N`: the versions of the trust root above N, oldest first."""
    after = request.GET.get("after", "0")
    if not after.isdigit() or len(after) > 9:
        raise DomainError("bad_after", "«after» must be the number of the newest root version that the node holds.")
    return answer(RootResponse(trust_root=credentials.root_chain(after=int(after))))


@signed_by_node("GET")
def manifest(request: NodeRequest, digest: str) -> HttpResponseBase:
    """`GET …/artifacts/{digest}/manifest`: the publisher's DSSE envelope, byte for byte."""
    artifact = selectors.assigned_artifact(request.node, digest)
    return HttpResponse(bytes(artifact.manifest), content_type="application/json")


@signed_by_node("GET")
def leaves(request: NodeRequest, digest: str) -> HttpResponseBase:
    """`GET …/artifacts/{digest}/leaves`: the 128-byte header and the leaf table."""
    artifact = selectors.assigned_artifact(request.node, digest)
    return HttpResponse(bytes(artifact.blob.leaf_table), content_type="application/octet-stream")


@signed_by_node("GET")
def data(request: NodeRequest, digest: str) -> HttpResponseBase:
    """`GET …/artifacts/{digest}/data`: the file, or the one range of it that is asked for."""
    selectors.assigned_artifact(request.node, digest)
    return files.serve(files.artifact_path(digest), request.headers.get("Range", ""))
