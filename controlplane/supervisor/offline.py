"""The database for commands that run beside, or without, a running `make up`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO

from controlplane.supervisor.credentials import load_or_create
from controlplane.supervisor.launch import Options, assemble
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.postgres import APP, OWNER, Cluster, cluster_folder, find_runner
from controlplane.supervisor.statefile import Lock, StateFile


@dataclass(frozen=True)
class DatabaseUrls:
    """The roles of one database."""

    app: str
    owner: str


@contextmanager
def database(options: Options, layout: Layout) -> Iterator[DatabaseUrls]:
    """The given database; else the embedded one, which is started for the while if `make up` doesn't run it."""
    if options.database_url is not None:
        yield DatabaseUrls(options.database_url, options.owner_database_url or options.database_url)
        return
    layout.prepare()
    if Lock(layout.lock).holder() is not None:
        yield _urls_of_running(layout)
        return
    with Lock(layout.lock):
        supervisor = Supervisor(layout.logs, StateFile(layout.states), Terminal(StringIO()))
        try:
            secrets = load_or_create(layout.secrets)
            infrastructure, site = assemble(options, layout, secrets)
            supervisor.start([spec for spec in infrastructure.specs if spec.name == "postgres"])
            infrastructure.after_start(secrets)
            worker = site.environments.worker
            yield DatabaseUrls(worker["DATABASE_URL"], worker["FARRIER_OWNER_DATABASE_URL"])
        finally:
            supervisor.stop_all()
            supervisor.close()


def _urls_of_running(layout: Layout) -> DatabaseUrls:
    secrets = load_or_create(layout.secrets)
    folder = cluster_folder(layout.home)
    port = int((layout.home / "postgres.port").read_text())
    cluster = Cluster(folder, port, secrets.postgres_superuser, find_runner(folder))
    return DatabaseUrls(cluster.url(APP, secrets.postgres_app), cluster.url(OWNER, secrets.postgres_owner))
