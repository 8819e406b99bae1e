"""Embedded PostgreSQL and Redis: first start, second start with the data kept, kill -9, root without namespaces."""

import os
import signal
from pathlib import Path

import psycopg
import pytest
import redis

from controlplane.supervisor import postgres, procfs
from controlplane.supervisor.credentials import Secrets, load_or_create
from controlplane.supervisor.launch import Options, assemble
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.postgres import APP, DATABASE, OWNER, Cluster
from controlplane.supervisor.statefile import StateFile
from tests.supervisor.conftest import Home, eventually
from tests.supervisor.harness import ROOT


def urls(home: Home) -> tuple[Secrets, str, str]:
    """(secrets, superuser's database URL, broker URL) of a running home."""
    secrets = load_or_create(home.layout.secrets)
    ports = {name: int((home.layout.home / f"{name}.port").read_text()) for name in ("postgres", "redis")}
    database = f"postgresql://postgres:{secrets.postgres_superuser}@127.0.0.1:{ports['postgres']}/postgres"
    return secrets, database, f"redis://:{secrets.redis}@127.0.0.1:{ports['redis']}/0"


def test_data_is_kept_over_a_stop_and_over_kill_9(home: Home) -> None:
    running = home.start("services")
    running.wait_ready()
    _, database, broker = urls(home)
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('orderly')")
    redis.Redis.from_url(broker).rpush("kept", "orderly")
    idle = psycopg.connect(database)  # a client that stays: shutdown must not wait for it
    running.process.terminate()
    assert running.finish() == 0
    idle.close()
    assert not any("killed" in line for line in running.lines)

    running = home.start("services")
    running.wait_ready()
    _, database, broker = urls(home)
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO kept VALUES ('crashed')")
    for name in ("postgres", "redis"):
        identity = home.row(name).identity
        assert identity is not None
        os.kill(identity.pid, signal.SIGKILL)
    eventually(lambda: all(row.restarts and row.state == "ready" for row in home.rows().values()), "both restarted")
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT word FROM kept").fetchall() == [("orderly",), ("crashed",)]
    assert redis.Redis.from_url(broker).lrange("kept", 0, -1) == [b"orderly"]


def test_killed_supervisor_leaves_no_server_behind(home: Home) -> None:
    running = home.start("services")
    running.wait_ready()
    identities = [row.identity for row in home.rows().values() if row.identity]
    assert len(identities) == 2
    running.process.kill()
    running.finish()
    eventually(lambda: not any(map(procfs.is_alive, identities)), "the end of PostgreSQL and Redis")

    running = home.start("services")  # the same data, the same ports, at once
    running.wait_ready()


def start_and_ask(cluster: Cluster, folder: Path) -> None:
    """Start a cluster, make roles twice, connect as each, stop."""
    cluster.create()
    supervisor = Supervisor(folder / "logs", StateFile(folder / "states.json"), Terminal())
    try:
        supervisor.start([cluster.spec(folder, dict(os.environ))])
        for owner_password in ("one", "two"):
            cluster.create_roles(owner_password, "app")
        for role, password in ((OWNER, "two"), (APP, "app")):
            with psycopg.connect(cluster.url(role, password)) as connection:
                found = connection.execute("SELECT current_user, current_database()").fetchone()
                assert found == (role, DATABASE)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(cluster.url(OWNER, "one"))
    finally:
        supervisor.stop_all()
        supervisor.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs PostgreSQL directly")
def test_root_without_user_namespaces_runs_it_as_nobody(tmp_path: Path, home: Home) -> None:
    folder = home.layout.home.parent
    folder.chmod(0o755)
    runner = postgres.runner_as_nobody(postgres.wheel_binaries(), folder / "pg")
    cluster = Cluster(folder / "pg", procfs.free_port(), "super", runner, durable=False)
    start_and_ask(cluster, folder)
    assert (folder / "pg").owner() == "nobody"


def test_roles_as_this_user(home: Home) -> None:
    folder = home.layout.home.parent
    runner = postgres.find_runner(folder / "pg")
    start_and_ask(Cluster(folder / "pg", procfs.free_port(), "super", runner, durable=False), folder)


def test_cluster_of_another_major_version_is_refused(home: Home) -> None:
    folder = home.layout.home.parent / "pg"
    folder.mkdir()
    (folder / "PG_VERSION").write_text("15\n")
    with pytest.raises(postgres.SupervisorError, match="was made by PostgreSQL 15 but 18 is installed"):
        Cluster(folder, 1, "x", postgres.find_runner(folder)).create()


def test_given_services_are_not_embedded(home: Home) -> None:
    home.layout.prepare()
    secrets = load_or_create(home.layout.secrets)
    options = Options(ROOT, home.layout.home, "postgresql://a:b@127.0.0.1:1/c", None, "redis://127.0.0.1:2/0")
    infrastructure, site = assemble(options, home.layout, secrets)
    assert infrastructure.specs == []
    assert site.environments.web["DATABASE_URL"] == "postgresql://a:b@127.0.0.1:1/c"
    assert "DATABASE_URL" not in site.environments.plain
    with pytest.raises(postgres.SupervisorError, match="The database of DATABASE_URL can't be used"):
        infrastructure.after_start(secrets)
