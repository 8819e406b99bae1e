"""`python -m controlplane.supervisor.testing [pytest arguments]`: pytest with a private database and broker.

Both live in a temporary folder on free ports and end with the run, however it ends. Services that DATABASE_URL and
REDIS_URL name are used instead.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from controlplane.supervisor.errors import StopRequested, SupervisorError
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.manager import Supervisor
from controlplane.supervisor.postgres import SUPERUSER, Cluster, cluster_folder, find_runner
from controlplane.supervisor.procfs import free_port
from controlplane.supervisor.redis import Broker
from controlplane.supervisor.spec import ProcessSpec
from controlplane.supervisor.statefile import StateFile

PASSWORD = "only-for-this-run"  # noqa: S105 services on loopback, gone with the run


def services(home: Path, environment: dict[str, str]) -> tuple[list[ProcessSpec], dict[str, str]]:
    """What has to be started, and the variables that tell pytest of it."""
    specs: list[ProcessSpec] = []
    variables = {"FARRIER_HOME": str(home / "var")}
    if "DATABASE_URL" not in environment:
        folder = cluster_folder(home)
        cluster = Cluster(folder, free_port(), PASSWORD, find_runner(folder), durable=False)
        cluster.create()
        specs.append(cluster.spec(home, environment))
        variables["DATABASE_URL"] = cluster.url(SUPERUSER, PASSWORD, "postgres")
    if "REDIS_URL" not in environment:
        broker = Broker(home / "redis", free_port(), PASSWORD, durable=False)
        specs.append(broker.spec(home, environment))
        variables["REDIS_URL"] = broker.url
    return specs, variables


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A folder that is gone afterwards, with whatever cluster had to lie outside of it."""
    home = Path(tempfile.mkdtemp(prefix="farrier-test-"))
    home.chmod(0o755)  # PostgreSQL may have to run as nobody
    cluster = cluster_folder(home)
    try:
        yield home
    finally:
        if cluster.parent != home:
            shutil.rmtree(cluster.parent, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)


def run(arguments: Sequence[str]) -> int:
    """Start the services, run pytest, stop them; return pytest's exit status."""
    environment = dict(os.environ)
    with temporary_home() as home:
        specs, variables = services(home, environment)
        supervisor = Supervisor(home / "logs", StateFile(home / "processes.json"), Terminal(StringIO()))
        supervisor.install_signal_handlers()
        try:
            supervisor.start(specs)
            tests = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], env=environment | variables)
            supervisor.run(until=lambda: tests.poll() is not None)
            return wait(tests)
        except StopRequested:
            return 128 + signal.SIGINT
        finally:
            supervisor.stop_all()
            supervisor.close()


def wait(tests: "subprocess.Popen[bytes]") -> int:
    """pytest's exit status. After Ctrl-C it has had the same signal; a SIGTERM to us alone is handed on."""
    try:
        return tests.wait(timeout=10)
    except subprocess.TimeoutExpired:
        tests.terminate()
        return tests.wait()


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except SupervisorError as error:
        sys.exit(str(error))
