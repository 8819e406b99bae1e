"""The agent's side of the agent protocol: signs every request, measures the clock, types every error."""

from __future__ import annotations

import base64
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from node.agent import AGENT_VERSION
from node.agent.errors import AgentError, CredentialStale, NodePending, Permanent, Temporary
from protocol.messages import (
    PROTOCOL_VERSION,
    EnrolRequest,
    EnrolResponse,
    Message,
    PollRequest,
    PollResponse,
    Problem,
    RenewResponse,
    RootResponse,
    TelemetryAck,
    WaitResponse,
)
from protocol.signing import SignedFields, sign_headers

M = TypeVar("M", bound=Message)
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
WAIT_TIMEOUT_S = 40.0  # the server holds a wait for at most 25 s
MAX_DOCUMENT_BYTES = 64 << 20  # a leaf table of a terabyte; nothing else is near
MAX_PROBLEM_BYTES = 64 << 10
STALE_CODES = frozenset({"generation_stale", "credential_expired"})
_BUSY = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Credential:
    """Who the agent is to the control plane; the generation rises with every renewal."""

    node: str
    generation: int


class ControlPlane:
    """One control plane as an agent sees it. Safe to use from several threads.

    `transport` replaces the network (the simulator passes one that calls the web app in-process), `now` the clock in
    Unix seconds; `ca_file` holds the only authorities to believe, instead of the system's. Every method raises
    Temporary or Permanent, with the server's own code where it gave one.
    """

    def __init__(
        self,
        server: str,
        key: Ed25519PrivateKey,
        *,
        transport: httpx2.BaseTransport | None = None,
        now: Callable[[], float] = time.time,
        ca_file: Path | None = None,
    ) -> None:
        self.key = key
        self._now = now
        self._lock = threading.Lock()
        self._offset_s = 0.0
        self.credential: Credential | None = None
        self._http = httpx2.Client(
            base_url=server,
            transport=transport,
            verify=ssl.create_default_context(cafile=ca_file),
            timeout=httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=16, keepalive_expiry=60.0),
            headers={"user-agent": f"farrier-agent/{AGENT_VERSION}"},
            trust_env=False,  # a proxy variable of the shell must not reroute signed traffic
        )

    @property
    def clock_offset_s(self) -> float:
        """Server clock minus ours, as last measured."""
        with self._lock:
            return self._offset_s

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def enrol(self, request: EnrolRequest) -> EnrolResponse:
        """Ask to join; asking twice with the same token and key gives the same answer."""
        body = request.model_dump_json().encode()
        headers = {"content-type": "application/json"}
        with self._sending(
            self._http.build_request("POST", "/agent/v1/enrol", content=body, headers=headers)
        ) as answer:
            return _parse(EnrolResponse, _checked(answer))

    def renew(self) -> RenewResponse:
        """Ask for the next credential generation. The caller stores the answer before it uses it."""
        return self._timed(RenewResponse, "POST", "/agent/v1/renew", b"{}")

    def poll(self, report: PollRequest) -> PollResponse:
        """Report what this node runs, and hear what it should run."""
        return self._timed(PollResponse, "POST", "/agent/v1/poll", report.model_dump_json().encode())

    def wait(self, after: int) -> WaitResponse:
        """Block until the assignment's sequence or issue time moves, or the server lets go (≤ 25 s)."""
        with self._signed("GET", f"/agent/v1/wait?after={after}", read_timeout_s=WAIT_TIMEOUT_S) as answer:
            return _parse(WaitResponse, _checked(answer))

    def root_envelopes(self, after: int) -> list[bytes]:
        """Return the trust root's envelopes with versions above `after`, oldest first, unverified."""
        with self._signed("GET", f"/agent/v1/root?after={after}") as answer:
            message = _parse(RootResponse, _checked(answer))
        try:
            return [base64.b64decode(envelope, validate=True) for envelope in message.trust_root]
        except ValueError as bad:
            raise Temporary("bad_answer", f"The root chain is malformed: {bad}.") from None

    def manifest(self, digest: str) -> bytes:
        """Return the DSSE envelope of an assigned artifact's manifest, unverified."""
        with self._signed("GET", f"/agent/v1/artifacts/{digest}/manifest") as answer:
            return _checked(answer)

    def leaves(self, digest: str) -> bytes:
        """Return the 128-byte header and the leaf table of an assigned artifact, unverified."""
        with self._signed("GET", f"/agent/v1/artifacts/{digest}/leaves") as answer:
            return _checked(answer)

    @contextmanager
    def data(self, digest: str, start: int, end: int, *, stall_s: float) -> Iterator[Iterator[bytes]]:
        """Stream bytes [start, end) of an assigned artifact, unverified; `stall_s` without a byte is Temporary."""
        target = f"/agent/v1/artifacts/{digest}/data"
        headers = {"range": f"bytes={start}-{end - 1}", "accept-encoding": "identity"}
        with self._signed("GET", target, headers=headers, read_timeout_s=stall_s) as answer:
            if answer.status_code != httpx2.codes.PARTIAL_CONTENT:
                _checked(answer)
                raise Temporary("no_ranges", f"{target} answered the whole file to a range request.")
            yield answer.iter_raw()  # as it arrives: a chunk size would hide a trickle until that many bytes came

    def telemetry(self, batch: bytes) -> TelemetryAck:
        """Deliver one serialised TelemetryBatch; the answer says what is stored for good."""
        headers = {"content-type": "application/x-protobuf"}
        with self._signed("POST", "/agent/v1/telemetry", batch, headers=headers) as answer:
            return _parse(TelemetryAck, _checked(answer))

    def _timed(self, kind: type[M], method: str, target: str, body: bytes) -> M:
        """Send JSON, parse the answer, and measure the clock by its `server_time`."""
        sent = self._now()
        with self._signed(method, target, body, headers={"content-type": "application/json"}) as answer:
            message = _parse(kind, _checked(answer))
        server_time = getattr(message, "server_time", None)
        if server_time is not None:
            self._set_offset(server_time - (sent + self._now()) / 2)
        return message

    def _set_offset(self, offset_s: float) -> None:
        with self._lock:
            self._offset_s = offset_s

    @contextmanager
    def _signed(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: dict[str, str] | None = None,
        read_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Iterator[httpx2.Response]:
        """Send signed; when the server finds our clock skewed, answer its challenge once."""
        challenge = ""
        with self._sending(self._request(method, target, body, headers or {}, challenge, read_timeout_s)) as answer:
            if answer.status_code != httpx2.codes.UNAUTHORIZED:
                yield answer
                return
            problem = _problem(answer)
            if problem is None or problem.code != "clock_skew" or not problem.challenge:
                raise _error_of(answer, problem)
            challenge = problem.challenge
            if problem.server_time is not None:
                self._set_offset(problem.server_time - self._now())
        with self._sending(self._request(method, target, body, headers or {}, challenge, read_timeout_s)) as answer:
            yield answer

    def _request(
        self, method: str, target: str, body: bytes, headers: dict[str, str], challenge: str, read_timeout_s: float
    ) -> httpx2.Request:
        credential = self.credential
        if credential is None:
            raise Temporary("not_enrolled", "This node has not enrolled yet; it does so before anything else.")
        timeout = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        request = self._http.build_request(method, target, content=body, headers=headers, timeout=timeout)
        fields = SignedFields(
            node=credential.node,
            generation=credential.generation,
            protocol=PROTOCOL_VERSION,
            time=f"{self._now() + self.clock_offset_s:.3f}",
            nonce=secrets.token_hex(16),
            challenge=challenge,
        )
        # sign what is sent, a path prefix of the server's address included
        request.headers.update(sign_headers(self.key, method, request.url.raw_path.decode(), body, fields))
        return request

    @contextmanager
    def _sending(self, request: httpx2.Request) -> Iterator[httpx2.Response]:
        """Send, type the network's errors (while the body is read too), and close the answer."""
        try:
            answer = self._http.send(request, stream=True)
            try:
                yield answer
            finally:
                answer.close()
        except httpx2.TimeoutException:
            raise Temporary("timeout", f"{request.url.path} did not answer in time.") from None
        except httpx2.RequestError as away:
            raise Temporary("unreachable", f"{request.url.path}: {away or type(away).__name__}.") from None


def _body(answer: httpx2.Response, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    body = bytearray()
    for part in answer.iter_bytes():
        body += part
        if len(body) > limit_bytes:
            raise Temporary("answer_too_long", f"{answer.url.path} sent more than {limit_bytes} bytes.")
    return bytes(body)


def _checked(answer: httpx2.Response) -> bytes:
    """Return the body of a successful answer, bounded in size; raise what a refusal means."""
    if not answer.is_success:
        raise _error_of(answer, _problem(answer))
    return _body(answer)


def _parse(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "its start"
        raise Temporary("bad_answer", f"{kind.__name__} is malformed at {where}: {first['msg']}.") from None


def _problem(answer: httpx2.Response) -> Problem | None:
    """Return the problem document of a refusal, None if the body is something else (a proxy's page)."""
    try:
        return Problem.model_validate_json(_body(answer, MAX_PROBLEM_BYTES))
    except ValidationError:
        return None


def _error_of(answer: httpx2.Response, problem: Problem | None) -> AgentError:
    status = answer.status_code
    code = problem.code if problem else f"http_{status}"
    sentence = problem.detail if problem else f"{answer.url.path} answered {status}."
    if code == "node_pending":
        return NodePending(code, sentence)
    if code in STALE_CODES:
        return CredentialStale(code, sentence)
    if status in _BUSY or status >= 500:
        return Temporary(code, sentence, retry_after_s=_retry_after_s(answer))
    return Permanent(code, sentence, status=status)


def _retry_after_s(answer: httpx2.Response) -> float | None:
    """Seconds that the server asks us to wait; its date form is not used by ours and ignored."""
    value: Any = answer.headers.get("retry-after", "")
    return float(value) if value.isdigit() else None
