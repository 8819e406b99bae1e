"""A node's side of the protocol, as small as can be: signs with protocol.signing and calls the real web app."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from django.test import Client

from protocol.signing import SignedFields, sign_headers
from tests.fleet.builders import Host


@dataclass
class Agent:
    """An enrolled host. `skew_s` is how far its clock is ahead; every request may be bent by keyword."""

    host: Host
    node: UUID
    generation: int = 1
    skew_s: float = 0.0
    boot_id: UUID = field(default_factory=uuid4)
    report_seq: int = 0
    client: Client = field(default_factory=Client)

    def headers(self, method: str, target: str, body: bytes, **bent: Any) -> dict[str, str]:
        fields = {
            "node": str(self.node),
            "generation": self.generation,
            "protocol": 1,
            "time": f"{time.time() + self.skew_s:.3f}",
            "nonce": secrets.token_hex(16),
            "challenge": "",
        }
        return sign_headers(self.host.key, method, target, body, SignedFields(**(fields | bent)))

    def send(self, method: str, target: str, body: bytes = b"", kind: str = "application/json", **bent: Any) -> Any:
        extra = bent.pop("extra_headers", {})
        headers = self.headers(method, target, body, **bent) | extra
        return self.client.generic(method, target, body, content_type=kind, headers=headers)

    def get(self, target: str, **bent: Any) -> Any:
        return self.send("GET", target, **bent)

    def poll(self, **report: Any) -> Any:
        """Poll with a report of nothing but what is given."""
        self.report_seq += 1
        body = {"boot_id": str(self.boot_id), "report_seq": self.report_seq, "agent_version": "1.0"} | report
        return self.send("POST", "/agent/v1/poll", json.dumps(body).encode())

    def renew(self, **bent: Any) -> Any:
        return self.send("POST", "/agent/v1/renew", b"{}", **bent)
