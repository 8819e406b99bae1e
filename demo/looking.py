"""Looking at a running installation from outside: through REST, pages and files, as whoever checks the story must."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from cli.client import ApiError, Client
from demo.browse import Browser
from demo.story import ENDS, MINILM

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "var" / "demo-story"


class Failed(Exception):
    """A point of the story does not hold."""


def check(holds: bool, what: str) -> None:
    """Raise Failed with `what` unless it holds."""
    if not holds:
        raise Failed(what)


def until(what: str, timeout_s: float, look: Callable[[], Any]) -> Any:
    """Return the first true value of `look`, asked every second; Failed when none came in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(1.0)
    raise Failed(f"{what} did not happen within {timeout_s:.0f} s")


class Installation:
    """One installation on ports of its own, and what can be seen of it."""

    api: Client
    lead: Browser
    oncall: Browser
    requester: Browser
    secrets: dict[str, Any]

    def __init__(self) -> None:
        self.port = _free_port()
        self.gateway_base = _free_gateways()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.environment = os.environ | {
            "FARRIER_HOME": str(HOME),
            "FARRIER_ORIGIN": self.origin,
            "FARRIER_GATEWAY_PORT_BASE": str(self.gateway_base),
        }
        self.product: subprocess.Popen[bytes] | None = None

    def _answers(self) -> bool:
        product = self.product
        if product is not None and product.poll() is not None:
            raise Failed(f"the start ended with {product.returncode}:\n{tail(HOME / 'up.log')}")
        try:
            ready = httpx2.get(f"{self.origin}/readyz", timeout=5.0).status_code == 200
        except httpx2.TransportError:
            return False
        return ready and "ci_token" in (HOME / "secrets.json").read_text(encoding="utf-8")

    def _nodes(self, phase: str) -> list[dict[str, Any]]:
        nodes = [row for row in self.api.all("nodes") if row["phase"] == phase]
        return nodes if len(nodes) == 3 else []

    def _version(self, model: str, number: int) -> dict[str, Any] | None:
        try:
            row = dict(self.api.get(f"models/{model}/versions/{number}"))
        except ApiError:
            return None
        return row if row["state"] == "published" else None

    def _digest(self, model: str, number: int) -> str:
        row = self._version(model, number)
        check(row is not None, f"{model} v{number} is not published")
        return str(row["artifacts"][0]["digest"]) if row else ""

    def _stored(self, number: int) -> Path:
        digest = self._digest(MINILM, number)
        return HOME / "artifacts" / "sha3" / digest[:2] / f"{digest}.aifb"

    def _running(self, model: str, number: int) -> list[str]:
        return [
            node["name"]
            for node in self.api.all("nodes")
            for row in node["deployments"]
            if (row["model"], row["version"], row["state"]) == (model, number, "running")
        ]

    def _gateway(self, number: int) -> str:
        return f"http://127.0.0.1:{self.gateway_base + number}"

    def _newest(self, model: str, version: int) -> dict[str, Any] | None:
        rows = [row for row in self.api.all("rollouts", model=model) if row["version"] == version]
        return dict(self.api.get(f"rollouts/{rows[0]['id']}")) if rows else None

    def _waiting(self, model: str) -> dict[str, Any] | None:
        row = self._newest(model, 2)
        if row and row["phase"] in ("rolled_back", "aborted", "rolling_back"):
            raise Failed(f"{model} v2 ended {row['phase']}: {row['decision']}")
        return row if row and row["phase"] == "paused" and row["pause_reason"] == "approval" else None

    def _ended(self, model: str, version: int) -> dict[str, Any]:
        row = self._newest(model, version)
        return row if row and row["phase"] in ENDS else {}

    def _phase(self, rollout: dict[str, Any]) -> str:
        return str(self.api.get(f"rollouts/{rollout['id']}")["phase"])

    def _farrier(self, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = self.environment | {
            "FARRIER_SERVER": self.origin,
            "FARRIER_TOKEN": token or self.secrets["ci_token"],
            "COLUMNS": "200",
        }
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


def tail(path: Path, lines: int = 40) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _free_gateways() -> int:
    """Return a base such that base + 1 … base + 3 are free."""
    for base in range(18_710, 28_710, 10):
        try:
            for number in (1, 2, 3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + number))
        except OSError:
            continue
        return base
    raise Failed("no three free ports in a row for the gateways")


def descendants(home: Path) -> list[int]:
    """Return the processes that work in `home`: their environment or command line names it."""
    mine = os.fsencode(str(home))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mine in (entry / "environ").read_bytes() or mine in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or not ours
    return found


def pss_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # gone meanwhile
        total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total
