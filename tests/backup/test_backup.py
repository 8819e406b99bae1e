"""Backup and restore by the commands a person types, between two installations on one real server."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from psycopg import sql

from controlplane.backup import archive

ROOT = Path(__file__).resolve().parents[2]
RELEASE_KEY = "-----BEGIN PRIVATE KEY-----\nthe publisher's\n"


@dataclass
class Installation:
    """A home with a database of its own, owner and web role apart."""

    home: Path
    owner_url: str
    app_url: str

    def manage(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run manage.py on this installation."""
        environment = os.environ | {
            "FARRIER_HOME": str(self.home),
            "DATABASE_URL": self.app_url,
            "FARRIER_OWNER_DATABASE_URL": self.owner_url,
        }
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def migrate(self) -> None:
        """Tables, rights, users."""
        done = self.manage("prepare")
        assert done.returncode == 0, done.stderr

    def fill(self) -> None:
        """A user, an event, an artifact, keys, secrets."""
        with psycopg.connect(self.app_url) as connection:
            connection.execute(
                "INSERT INTO audit_event (actor_kind, actor_label, verb, object_type, object_id, object_label,"
                " from_state, to_state, reason, data)"
                " VALUES ('system', 'test', 'kept', 'x', '1', 'x', '', '', '', '{}')"
            )
        for name, text in {
            "artifacts/sha3/ab/abcd.aifb": "weights",
            "artifacts/sha3/ab/upload.tmp": "half",
            "keys/release/release.pem": RELEASE_KEY,
            "keys/release/release.pub.pem": "-----BEGIN PUBLIC KEY-----\n",
            "keys/director/director.pem": "-----BEGIN PRIVATE KEY-----\nthe director's\n",
        }.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
        stored = json.loads((self.home / "secrets.json").read_text())
        stored |= {"users": {"lead": "word"}, "postgres_app": "theirs", "ci_token": "secret"}
        (self.home / "secrets.json").write_text(json.dumps(stored))

    def events(self) -> list[str]:
        """Verbs in the audit log."""
        with psycopg.connect(self.app_url) as connection:
            return [str(row[0]) for row in connection.execute("SELECT verb FROM audit_event ORDER BY id")]


@pytest.fixture
def homes() -> Iterator[Path]:
    """A folder with a path short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="farrier-") as folder:
        yield Path(folder)


@pytest.fixture
def installations(homes: Path) -> Iterator[tuple[Installation, Installation]]:
    """Two installations with empty databases."""
    server = settings.DATABASES["default"]
    suffix = secrets.token_hex(4)
    made = []
    with psycopg.connect(
        host=server["HOST"], port=server["PORT"], user=server["USER"], password=server["PASSWORD"], dbname="postgres",
        autocommit=True,
    ) as connection:  # fmt: skip
        roles = [f"t_{kind}_{suffix}" for kind in ("owner", "app")]
        for role in roles:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(sql.Identifier(role)))
        for side in ("source", "target"):
            name = f"t_{side}_{suffix}"
            statement = sql.SQL("CREATE DATABASE {} OWNER {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(roles[0])))
            urls = [f"postgresql://{role}:x@{server['HOST']}:{server['PORT']}/{name}" for role in roles]
            made.append(Installation(homes / side, *urls))
            made[-1].home.mkdir()
        try:
            yield made[0], made[1]
        finally:
            for side in ("source", "target"):
                name = sql.Identifier(f"t_{side}_{suffix}")
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            for role in roles:
                connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_backup_brings_everything_back(installations: tuple[Installation, Installation], tmp_path: Path) -> None:
    source, target = installations
    source.migrate()
    source.fill()
    folder = tmp_path / "monday"
    done = source.manage("backup", str(folder))
    assert done.returncode == 0, done.stderr
    assert "Not in it: keys/release/release.pem" in done.stdout
    assert folder.stat().st_mode & 0o077 == 0
    assert not list(folder.rglob("release.pem"))
    assert "theirs" not in (folder / "secrets.json").read_text()
    assert source.manage("backup", str(folder)).returncode == 1  # never over another one

    (target.home / "secrets.json").write_text(json.dumps({"postgres_app": "ours", "users": {"lead": "other"}}))
    done = target.manage("restore", str(folder))
    assert done.returncode == 0, done.stderr
    assert target.events() == [*source.events(), "audit.restored"]
    assert (target.home / "artifacts/sha3/ab/abcd.aifb").read_text() == "weights"
    assert not (target.home / "artifacts/sha3/ab/upload.tmp").exists()
    assert (target.home / "keys/director/director.pem").stat().st_mode & 0o077 == 0
    merged = json.loads((target.home / "secrets.json").read_text())
    assert (merged["postgres_app"], merged["users"], merged["ci_token"]) == ("ours", {"lead": "word"}, "secret")
    with psycopg.connect(target.owner_url) as connection:
        assert connection.execute("SELECT max(epoch) FROM audit_restoreepoch").fetchone() == (1,)
    assert_web_role_cannot_rewrite_the_audit(target)

    again = target.manage("restore", str(folder))
    assert again.returncode == 1
    assert "holds data" in again.stderr
    assert target.manage("restore", str(folder), "--force").returncode == 0
    assert target.events() == [*source.events(), "audit.restored"]


def assert_web_role_cannot_rewrite_the_audit(installation: Installation) -> None:
    forbidden = (
        "UPDATE audit_event SET verb = 'changed'",
        "DELETE FROM audit_event",
        "TRUNCATE audit_event CASCADE",
        "DELETE FROM audit_seal",
        "INSERT INTO audit_restoreepoch (epoch, reason) VALUES (99, 'forged')",
        "ALTER TABLE audit_event DISABLE TRIGGER ALL",
    )
    with psycopg.connect(installation.app_url, autocommit=True) as connection:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
        connection.execute("UPDATE access_team SET name = name")  # what it may


def test_nothing_is_touched_by_a_damaged_backup_or_under_a_client(
    installations: tuple[Installation, Installation], tmp_path: Path
) -> None:
    source, _ = installations
    source.migrate()
    source.fill()
    folder = tmp_path / "backup"
    assert source.manage("backup", str(folder)).returncode == 0
    events = source.events()
    with psycopg.connect(source.app_url):
        done = source.manage("restore", str(folder), "--force")
    assert done.returncode == 1
    assert "1 connections use the database" in done.stderr

    artifact = folder / "artifacts/sha3/ab/abcd.aifb"
    artifact.write_text("weightz")
    done = source.manage("restore", str(folder), "--force")
    assert done.returncode == 1
    assert "not what was backed up: nothing was restored" in done.stderr
    assert (source.home / "artifacts/sha3/ab/abcd.aifb").read_text() == "weights"

    # A dump that the manifest vouches for and pg_restore can't read: the data from before is back.
    artifact.write_text("weights")
    dump = folder / archive.DUMP
    dump.write_bytes(dump.read_bytes()[:20_000])
    (folder / archive.MANIFEST).unlink()
    archive.seal(folder, {})
    (source.home / "keys/director/director.pem").write_text("newer than the backup")
    done = source.manage("restore", str(folder), "--force")
    assert done.returncode == 1
    assert "The database could not be restored" in done.stderr
    assert source.events() == events
    assert (source.home / "keys/director/director.pem").read_text() == "newer than the backup"


def test_manifest_may_not_lead_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    folder = tmp_path / "backup"
    folder.mkdir()
    row = {"bytes": 1, "sha256": archive.sha256_of(tmp_path / "outside")}
    (folder / archive.MANIFEST).write_text(json.dumps({"format": 1, "files": {"../outside": row}}))
    with pytest.raises(archive.DomainError, match="names a file outside of it"):
        archive.check(folder)
