"""Where an agent keeps things: one folder, private to its user."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# sockaddr_un holds 107 bytes; the longest name below `run` has 27
_LONGEST_RUN_PATH = 78


@dataclass(frozen=True)
class Home:
    """Paths below an agent's home folder."""

    path: Path

    @property
    def run(self) -> Path:
        """Folder of the unix sockets; elsewhere when the home's own path is too long for a socket address."""
        inside = self.path / "run"
        if len(os.fsencode(inside)) <= _LONGEST_RUN_PATH:
            return inside
        name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"farrier-{os.getuid()}-{name}"

    @property
    def artifacts(self) -> Path:
        """Verified artifacts, and parts of those that are being fetched."""
        return self.path / "artifacts"

    @property
    def trust(self) -> Path:
        """Root chain, last accepted assignment, manifests, security floors."""
        return self.path / "trust"

    @property
    def spool(self) -> Path:
        """Rows that engines and comparator have written and nobody has shipped yet."""
        return self.path / "spool"

    @property
    def outbox(self) -> Path:
        """Telemetry batches that the control plane has not acknowledged yet."""
        return self.path / "outbox"

    @property
    def gateway(self) -> Path:
        """The gateway's bootstrap and its route and cluster files."""
        return self.path / "gateway"

    @property
    def logs(self) -> Path:
        """What the detached processes print."""
        return self.path / "logs"

    def socket(self, name: str) -> Path:
        """The unix socket of that name."""
        return self.run / name

    def engine_sockets(self, model: str, digest: str) -> tuple[Path, Path]:
        """Serving and health socket of the engine of a model's artifact: always the same, so it can be found again."""
        name = hashlib.sha256(f"{model}\n{digest}".encode()).hexdigest()[:16]
        return self.run / f"e-{name}.sock", self.run / f"e-{name}.health"

    def prepare(self) -> None:
        """Make all folders, for this user alone. Raises OSError, also when the socket folder is someone else's."""
        for folder in (self.path, self.artifacts, self.trust, self.spool, self.outbox, self.gateway, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run.mkdir(mode=0o700, exist_ok=True)
        if self.run.stat().st_uid != os.getuid():
            raise OSError(f"{self.run} belongs to another user; remove it or choose a shorter home than {self.path}")
