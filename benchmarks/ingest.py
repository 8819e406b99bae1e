"""How many points a second the telemetry endpoint stores, and what share that is of PostgreSQL's own COPY.

Ours: nodes that pack, sign and POST batches to gunicorn as `make up` runs it; an answer counts when it comes, which is
after the commit. The peer: the same rows, encoded beforehand, into the same tables by bare binary COPY, a transaction a
batch, over as many connections. Both durable (fsync, synchronous_commit on), all of it on two cores: senders, web and
database. A point is one value of one metric of one GPU. Batches are full ones, as after an outage; the line on live
batches (what 8 GPUs at 10 Hz give in 5 s) shows what a request costs by itself.
"""

from __future__ import annotations

import http.client
import os
import platform
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.supervisor.postgres import SUPERUSER, Cluster, cluster_folder, find_runner
from controlplane.supervisor.procfs import free_port
from controlplane.supervisor.testing import PASSWORD, temporary_home
from protocol.messages import TELEMETRY_MAX_SAMPLES
from protocol.metrics import GPU, Kind
from protocol.signing import SignedFields, sign_headers
from protocol.telemetry_pb2 import Column, GpuSamples, TelemetryBatch

NAME = "ingest"
TARGET, LEAST_SHARE = 1_000_000, 0.30
CORES = 2
GPUS, SENDERS = 8, 4
FULL, LIVE = TELEMETRY_MAX_SAMPLES, 400  # rows a batch
RUNS, RUN_S = 5, 4.0
ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Sender:
    """One node: its key, its GPUs, where its numbering stands."""

    node: UUID
    numbers: dict[str, int]
    key: Ed25519PrivateKey
    boot_id: UUID = field(default_factory=uuid4)
    seq: int = 0
    values: dict[int, dict[str, bytes]] = field(default_factory=dict)  # columns by rows a batch

    def batch(self, rows: int) -> bytes:
        """Pack the newest `rows` samples, one every 100 ms of each GPU up to now."""
        self.seq += 1
        block = GpuSamples(
            gpus=list(self.numbers),
            simulated=True,
            time_unix_us=times_us(rows).tobytes(),
            gpu=(np.arange(rows) % GPUS).astype(np.uint8).tobytes(),
            columns=[Column(name=name, values=raw) for name, raw in self.values[rows].items()],
        )
        message = TelemetryBatch(node=str(self.node), boot_id=str(self.boot_id), seq=self.seq, gpu=[block])
        return message.SerializeToString()

    def post(self, link: http.client.HTTPConnection, rows: int) -> None:
        """Send one batch and wait for its acknowledgement."""
        body = self.batch(rows)
        fields = SignedFields(
            node=str(self.node),
            generation=1,
            protocol=1,
            time=f"{time.time():.3f}",
            nonce=secrets.token_hex(16),
            challenge="",
        )
        headers = sign_headers(self.key, "POST", "/agent/v1/telemetry", body, fields)
        link.request("POST", "/agent/v1/telemetry", body, headers | {"Content-Type": "application/x-protobuf"})
        answer = link.getresponse()
        told = answer.read()
        assert answer.status == 200, told
        assert b'"dropped_rows":0' in told, told


def times_us(rows: int) -> Any:
    """Moments of `rows` samples of GPUs in turn, 100 ms apart, up to now."""
    steps = np.arange(rows) // GPUS
    return (int(time.time() * 1e6) - (steps[-1] - steps) * 100_000).astype("<i8")


def columns_of(rows: int, chance: np.random.Generator) -> dict[str, Any]:
    """Plausible values: what matters is that every column is there."""
    return {
        metric.name: (
            np.zeros(rows) if metric.kind in {Kind.CODE, Kind.FLAGS} else chance.uniform(0, 100, rows)
        ).astype("<f4")
        for metric in GPU
    }


def main() -> int:
    """Run both in turns, print the medians and the verdict."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with temporary_home() as home, services(home) as (url, port):
        senders = register(SENDERS)
        print(f"{platform.processor() or platform.machine()}, {CORES} cores, load {os.getloadavg()[0]:.1f}")
        ways: dict[str, Callable[[], float]] = {
            "endpoint, full batches": lambda: through_endpoint(senders, port, FULL),
            "bare COPY, full batches": lambda: by_copy(senders, url, FULL),
            "endpoint, live batches": lambda: through_endpoint(senders, port, LIVE),
            "bare COPY, live batches": lambda: by_copy(senders, url, LIVE),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(RUNS):
            for way, measure in ways.items():
                empty(url)
                found[way].append(measure())
    middle = {way: statistics.median(rates) for way, rates in found.items()}
    for way, rate in middle.items():
        rows = FULL if "full" in way else LIVE
        print(f"  {way:24} {rate / 1e6:6.2f} M points/s, {rate / rows / len(GPU):6.0f} batches/s of {rows} rows")
    full, bare, live, bare_live = middle.values()
    print(
        f"share of bare COPY: {full / bare:.0%} (full batches), {live / bare_live:.0%} (live); wanted {LEAST_SHARE:.0%}"
    )
    good = full >= TARGET and full / bare >= LEAST_SHARE
    print(f"{NAME}: {full / 1e6:.2f} M points/s, target >= {TARGET / 1e6:.0f}: {'ok' if good else 'short'}")
    return 0 if good else 1


@contextmanager
def services(home: Path) -> Iterator[tuple[str, int]]:
    """A durable database, migrated, and the web; yields the database's address and the web's port."""
    folder = cluster_folder(home)
    cluster = Cluster(folder, free_port(), PASSWORD, find_runner(folder))
    cluster.create()
    spec = cluster.spec(home, dict(os.environ))
    url, port = cluster.url(SUPERUSER, PASSWORD, "postgres"), free_port()
    os.environ |= {
        "DATABASE_URL": url,
        "FARRIER_HOME": str(home / "var"),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "FARRIER_ALLOWED_HOSTS": "127.0.0.1",
    }
    with child(list(spec.command), signal.SIGINT, user=spec.uid, group=spec.gid):
        until(lambda: spec.ready.check is None or spec.ready.check() is None)
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=ROOT, check=True)
        web = ["-m", "gunicorn", "controlplane.wsgi:application", "--bind", f"127.0.0.1:{port}", "--worker-class"]
        web += ["gthread", "--workers", "2", "--threads", "8", "--keep-alive", "30", "--no-control-socket"]
        with child([sys.executable, *web, "--log-level", "error"], signal.SIGTERM):
            until(lambda: answers(port))
            yield url, port


@contextmanager
def child(command: list[str], stop: signal.Signals, **who: Any) -> Iterator[None]:
    """A process that ends with the block."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **who)
    try:
        yield
    finally:
        process.send_signal(stop)
        process.wait(timeout=60)


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it does not start"
        time.sleep(0.1)


def answers(port: int) -> bool:
    """Tell whether the web takes requests."""
    try:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        link.request("GET", "/healthz")
        link.getresponse().read()
    except OSError:
        return False
    return True


def register(count: int) -> list[Sender]:
    """Make nodes with GPUs, and the days that their samples fall into."""
    import django

    django.setup()
    from django.utils import timezone

    from apps.access.models import Team
    from apps.fleet.hardware import store_gpus
    from apps.fleet.models import Node, NodePhase, Pool
    from apps.observability import store

    now = timezone.now()
    store.keep_ahead(now)
    team = Team.objects.create(slug="bench", name="Bench")
    pool = Pool.objects.create(team=team, slug="bench")
    senders = []
    chance = np.random.default_rng(1)
    values = {rows: {n: v.tobytes() for n, v in columns_of(rows, chance).items()} for rows in (FULL, LIVE)}
    for number in range(count):
        key = Ed25519PrivateKey.generate()
        node = Node.objects.create(
            team=team,
            pool=pool,
            name=f"bench-{number}",
            zone="z",
            phase=NodePhase.ACTIVE,
            public_key=key.public_key().public_bytes_raw(),
            credential_expires_at=now + timedelta(hours=1),
        )
        listed = [
            {"uuid": f"GPU-{number}-{index}", "index": index, "name": "H100", "memory_bytes": 80 << 30}
            for index in range(GPUS)
        ]
        store_gpus(node, {"gpus": listed}, now=now)
        numbers = dict(node.gpus.order_by("index").values_list("uuid", "number"))
        senders.append(Sender(node.pk, numbers, key, values=values))
    return senders


def empty(url: str) -> None:
    """Every run starts with an empty table and a fresh checkpoint."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE gpu_sample, observability_dirtyminute")
        connection.execute("CHECKPOINT")


def through_endpoint(senders: list[Sender], port: int, rows: int) -> float:
    """Points a second that the endpoint acknowledges."""

    def send(sender: Sender, deadline: float) -> int:
        link = http.client.HTTPConnection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < deadline:
            sender.post(link, rows)
            count += 1
        return count

    return in_parallel(senders, rows, send)


def by_copy(senders: list[Sender], url: str, rows: int) -> float:
    """Points a second that COPY takes, of rows that are encoded already."""
    from apps.observability import packed

    chance = np.random.default_rng(1)
    encoded = {}
    for sender in senders:
        numbers = np.array(list(sender.numbers.values()), ">i4")
        fields = {
            "time": (times_us(rows) - packed.POSTGRES_EPOCH_US).astype(">i8"),
            "gpu": numbers[np.arange(rows) % GPUS],
            "simulated": np.ones(rows, np.uint8),
        }
        for metric in GPU:
            given = columns_of(rows, chance)[metric.name]
            whole = metric.kind in {Kind.FLAGS, Kind.CODE}
            fields[metric.name] = given.astype(">i4") if whole else given
        encoded[sender.node] = packed.encode(fields)
    statement = f"COPY gpu_sample ({', '.join(fields)}) FROM STDIN (FORMAT BINARY)"

    def copy(sender: Sender, deadline: float) -> int:
        count = 0
        with psycopg.connect(url) as connection:
            while time.perf_counter() < deadline:
                with connection.cursor() as cursor, cursor.copy(statement) as stream:
                    stream.write(encoded[sender.node])
                connection.commit()
                count += 1
        return count

    return in_parallel(senders, rows, copy)


def in_parallel(senders: list[Sender], rows: int, work: Callable[[Sender, float], int]) -> float:
    """Let every sender work for RUN_S; points a second of all together."""
    counts: list[int] = []
    start = time.perf_counter()
    threads = [threading.Thread(target=lambda s=s: counts.append(work(s, start + RUN_S))) for s in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == len(senders), "a sender has failed"
    return sum(counts) * rows * len(GPU) / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
