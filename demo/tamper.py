"""What an attacker, or a bad disk, could put before a node; each time the node must refuse, say why, and serve on.

The attacker here is as strong as can be: it writes to the artifact store, to a node's own folder and to the database
of a running installation. What it does not have is a node's trust: for the one case that takes it (an assignment that
has expired), the director's own key signs, as it would have an hour ago.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import psycopg
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from aifb import signing
from aifb.trust import ASSIGNMENTS_TYPE, bundle_statements, make_statement, parse_statement
from controlplane.supervisor.postgres import DATABASE, SUPERUSER

LIFE = timedelta(hours=24)


class Order(NamedTuple):
    """A node's row of fleet_assignment, as far as a node gets to see it."""

    sequence: int
    statement: bytes
    place: int  # among the statements that were signed together
    path: list[bytes]
    envelope: bytes
    issued: datetime
    expires: datetime


class Attacker:
    """Writes where it should not. Everything is put back when a `with` block ends."""

    def __init__(self, home: Path) -> None:
        self.home = home
        secrets = json.loads((home / "secrets.json").read_text(encoding="utf-8"))
        port = (home / "postgres.port").read_text().strip()
        self._url = f"postgresql://{SUPERUSER}:{secrets['postgres_superuser']}@127.0.0.1:{port}/{DATABASE}"

    def stored(self, digest: str) -> Path:
        """Where the control plane keeps an artifact."""
        return self.home / "artifacts" / "sha3" / digest[:2] / f"{digest}.aifb"

    def cached(self, node: str, digest: str) -> Path:
        """Where a node keeps an artifact."""
        return self.home / "nodes" / node / "artifacts" / f"{digest}.aifb"

    @contextmanager
    def flipped_bit(self, digest: str) -> Iterator[None]:
        """One bit of a stored artifact's last byte is another."""
        with self._spoilt(digest, lambda sound: sound[:-1] + bytes([sound[-1] ^ 1])):
            yield

    @contextmanager
    def truncated(self, digest: str) -> Iterator[None]:
        """A stored artifact ends four kilobytes early."""
        with self._spoilt(digest, lambda sound: sound[:-4096]):
            yield

    @contextmanager
    def _spoilt(self, digest: str, spoil: Callable[[bytes], bytes]) -> Iterator[None]:
        path = self.stored(digest)
        sound, mode = path.read_bytes(), path.stat().st_mode
        path.chmod(0o600)
        path.write_bytes(spoil(sound))
        try:
            yield
        finally:
            path.write_bytes(sound)
            path.chmod(mode)

    def swap(self, node: str, wanted: str, other: str) -> None:
        """A node finds another artifact's bytes under the name of the one it wants."""
        path = self.cached(node, wanted)
        path.unlink()  # it is read-only; its folder is not
        path.write_bytes(self.stored(other).read_bytes())

    def kill_engine(self, node: str, digest: str) -> None:
        """Kill the engine that serves an artifact on a node, so that the node must open its file again."""
        command = [sys.executable, "-m", "node.agent", "status", "--home", str(self.home / "nodes" / node)]
        status = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        for engine in status["engines"]:
            if engine["digest"] == digest and engine["is_alive"]:
                os.kill(engine["pid"], signal.SIGKILL)

    def order_of(self, node: str) -> Order:
        """Return a node's newest assignment as the control plane would send it."""
        with psycopg.connect(self._url) as database:
            row = database.execute(
                "SELECT sequence, statement, index, path, envelope, issued, expires FROM fleet_assignment"
                " WHERE node_id = (SELECT id FROM fleet_node WHERE name = %s)",
                [node],
            ).fetchone()
        if row is None:
            raise AssertionError(f"{node} has no assignment")
        return Order(*row)

    def send(self, node: str, order: Order) -> None:
        """Make the control plane send a node this, until it signs a newer one."""
        with psycopg.connect(self._url) as database:
            database.execute(
                "UPDATE fleet_assignment SET sequence = %s, statement = %s, index = %s, path = %s::bytea[],"
                " envelope = %s, issued = %s, expires = %s"
                " WHERE node_id = (SELECT id FROM fleet_node WHERE name = %s)",
                [*order, node],
            )

    def by_a_stranger(self, order: Order) -> Order:
        """The next assignment, signed with a key of the attacker's own."""
        now = datetime.now(UTC)
        return _signed(order, signing.generate_key(), order.sequence + 1, now, now + LIFE)

    def expired(self, order: Order) -> Order:
        """The next assignment, rightly signed, whose time has passed; young enough that nobody renews it by itself."""
        director = signing.load_private_key((self.home / "keys" / "director" / "director.pem").read_bytes())
        issued = datetime.now(UTC) - timedelta(hours=1)
        return _signed(order, director, order.sequence + 1, issued, issued + timedelta(minutes=30))


def _signed(order: Order, key: RSAPrivateKey, sequence: int, issued: datetime, expires: datetime) -> Order:
    said = parse_statement(order.statement)
    raw = make_statement(
        node=said.node,
        director_epoch=said.director_epoch,
        sequence=sequence,
        issued=issued,
        expires=expires,
        deployments=said.deployments,
    )
    payload, paths = bundle_statements([raw], issued=issued)
    return Order(sequence, raw, 0, list(paths[0]), signing.sign(payload, ASSIGNMENTS_TYPE, [key]), issued, expires)
