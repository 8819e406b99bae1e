"""Server time of the console's pages at 10,000 nodes (80,000 GPUs), 1,000 models and 100 rollouts.

Each page is asked for by a signed-in person through the whole of Django (middleware, view, template), without the
network. The peer is the list of the same 10,000 nodes in Django's own admin, in the same process, alternating.

Uses the database server that DATABASE_URL names, else starts one of its own; a database is made in it and dropped.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from io import StringIO

NODES, GPUS_A_NODE, MODELS, ROLLOUTS, OPEN_ROLLOUTS, EVENTS = 10_000, 8, 1_000, 100, 30, 20_000
ROUNDS = 40
TARGET_MS = 200.0
CHILD = "FARRIER_BENCH_CHILD"
PEER = "/admin/fleet/node/"
PAGES = (
    "/",
    "/models/",
    "/models/?q=model-07",
    "/models/model-0001/",
    "/rollouts/",
    "/fleet/",
    "/fleet/?view=list",
    "/fleet/?view=list&q=node-077&sort=-seen",
    "/fleet/nodes/node-00001/",
    "/explore/?node=node-00001",
    "/series.json?node=node-00001&range=6h",
    "/audit/",
    "/holds/",
)


def main() -> int:
    """Start what is needed, measure in a child that has it in its environment."""
    if os.environ.get(CHILD):
        return measure()
    from controlplane.supervisor.logs import Terminal
    from controlplane.supervisor.manager import Supervisor
    from controlplane.supervisor.statefile import StateFile
    from controlplane.supervisor.testing import services, temporary_home

    with temporary_home() as home:
        specs, variables = services(home, dict(os.environ))
        supervisor = Supervisor(home / "logs", StateFile(home / "processes.json"), Terminal(StringIO()))
        try:
            supervisor.start(specs)
            child = [sys.executable, "-m", "benchmarks.console_pages"]
            return subprocess.run(child, env=os.environ | variables | {CHILD: "1"}, check=False).returncode
        finally:
            supervisor.stop_all()
            supervisor.close()


def measure() -> int:
    """Seed a database, ask for every page in turns with the peer, print medians and p95; 0 if all are in time."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()
    from django.conf import settings
    from django.contrib import admin
    from django.db import connection
    from django.test import Client
    from django.test.utils import setup_test_environment

    from apps.fleet.models import Node

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    setup_test_environment(debug=False)
    admin.site.register(Node, type("Nodes", (admin.ModelAdmin,), {"list_display": ("name", "zone", "phase")}))
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        person = seed(datetime.now(UTC))
        client = Client()
        client.force_login(person)
        return report(client, connection)
    finally:
        connection.close()
        connection.creation.destroy_test_db(name, verbosity=0)


def report(client: object, connection: object) -> int:
    """Measure and print; see `measure`."""
    print(
        f"{os.cpu_count()} cores; {NODES:,} nodes, {NODES * GPUS_A_NODE:,} GPUs, {MODELS:,} models, {ROLLOUTS} rollouts"
    )
    worst = 0.0
    for path in PAGES:
        mine, peer, queries, size = alternate(client, connection, path)
        p95 = sorted(mine)[max(0, -(-len(mine) * 95 // 100) - 1)]
        worst = max(worst, p95)
        ratio = statistics.median(mine) / statistics.median(peer)
        print(
            f"{path:42} median {statistics.median(mine):6.1f} ms  p95 {p95:6.1f} ms  {queries:3} queries "
            f"{size / 1e3:7.0f} kB  {ratio:5.2f} × the admin's list ({statistics.median(peer):.1f} ms)"
        )
    good = worst <= TARGET_MS
    print(f"console_pages: {worst:.0f} ms, target <= {TARGET_MS:.0f} ms: {'ok' if good else 'short'}")
    return 0 if good else 1


def alternate(client: object, connection: object, path: str) -> tuple[list[float], list[float], int, int]:
    """Return the milliseconds of the page and of the peer, the page's count of queries and its bytes."""
    from django.test.utils import CaptureQueriesContext

    for warm in (path, PEER):
        answer = client.get(warm)
        assert answer.status_code == 200, (warm, answer.status_code)
    mine, peer = [], []
    for _ in range(ROUNDS):
        for address, times in ((path, mine), (PEER, peer)):
            begun = time.perf_counter()
            answer = client.get(address)
            times.append(1e3 * (time.perf_counter() - begun))
    with CaptureQueriesContext(connection) as caught:
        answer = client.get(path)
    return mine, peer, len(caught), len(answer.content)


def seed(now: datetime) -> object:
    """Fill the database by bulk inserts; returns an admin of everything."""
    from apps.access import services as access
    from apps.access.actors import SYSTEM
    from apps.access.models import Role

    team = access.create_team(slug="default", name="Default", actor=SYSTEM, now=now)
    person = access.create_user(username="lead", password="x" * 16, superuser=True, actor=SYSTEM, now=now)
    access.set_membership(user=person, team=team, role=Role.ADMIN, actor=SYSTEM, now=now)
    nodes, pool = seed_fleet(team, now)
    seed_rollouts(team, person, pool, nodes, seed_models(team, person, nodes, now), now)
    seed_events(team, nodes, now)
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return person


def seed_fleet(team: object, now: datetime) -> tuple[list[object], object]:
    """Nodes in ten zones, each with its GPUs and two conditions; one in a hundred is not well."""
    from apps.fleet.models import Condition, Gpu, GpuHealth, Node, NodePhase, Pool

    pool = Pool.objects.create(team=team, slug="default")
    nodes = Node.objects.bulk_create(
        Node(
            team=team, pool=pool, name=f"node-{number:05}", zone=f"zone-{number % 10}", hostname=f"host-{number}",
            phase=NodePhase.CORDONED if number % 211 == 0 else NodePhase.ACTIVE, public_key=number.to_bytes(32, "big"),
            credential_expires_at=now + timedelta(hours=20), agent_version="1.0",
            # ahead of the clock, so that nodes don't fall silent while they are measured
            last_seen_at=now + timedelta(hours=-1 if number % 307 == 0 else 1),
        )
        for number in range(NODES)
    )  # fmt: skip
    Gpu.objects.bulk_create(
        (
            Gpu(
                uuid=f"GPU-{number:05}-{index}", node=node, index=index, name="NVIDIA H100 80GB HBM3",
                memory_bytes=85_520_809_984, simulated=True,
                health=GpuHealth.HOT if number % 101 == 0 else GpuHealth.OK,
            )
            for number, node in enumerate(nodes)
            for index in range(GPUS_A_NODE)
        ),
        batch_size=5_000,
    )  # fmt: skip
    Condition.objects.bulk_create(
        (
            Condition(node=node, type=kind, status="false", since=now)
            for node in nodes
            for kind in ("GpuHot", "GpuThrottled")
        ),
        batch_size=5_000,
    )
    return nodes, pool


def seed_models(team: object, person: object, nodes: list[object], now: datetime) -> list[object]:
    """Models with two published versions each; every node serves two of the models. Returns the artifacts."""
    from apps.fleet.models import DesiredDeployment, ReportedDeployment
    from apps.models.models import Artifact, ModelVersion, RegisteredModel, StoredBlob, VersionState

    models = RegisteredModel.objects.bulk_create(
        RegisteredModel(team=team, slug=f"model-{number:04}", task="embedding") for number in range(MODELS)
    )
    versions = ModelVersion.objects.bulk_create(
        ModelVersion(
            team=team, model=model, number=number, state=VersionState.PUBLISHED, created_by=person, published_at=now
        )
        for model in models
        for number in (1, 2)
    )
    digests = [f"{number:0128x}" for number in range(len(versions))]
    StoredBlob.objects.bulk_create(
        StoredBlob(
            digest=digest, total_bytes=90_900_000, flat_sha3_512=digest, leaf_table=b"x" * 5_700,
            model_hash=digest[:64], team=team, uploaded_by=person,
        )
        for digest in digests
    )  # fmt: skip
    artifacts = Artifact.objects.bulk_create(
        Artifact(team=team, version=version, blob_id=digest, digest=digest, manifest=b"x" * 2_000, signed_by="release")
        for version, digest in zip(versions, digests, strict=True)
    )
    desired = DesiredDeployment.objects.bulk_create(
        (
            DesiredDeployment(
                team=team, node=node, model_id=artifact.version.model_id, version=artifact.version, artifact=artifact,
                role="baseline", weight=100,
            )
            for number, node in enumerate(nodes)
            for artifact in (artifacts[2 * (number % MODELS)], artifacts[2 * ((number + 1) % MODELS)])
        ),
        batch_size=5_000,
    )  # fmt: skip
    ReportedDeployment.objects.bulk_create(
        (
            ReportedDeployment(
                node_id=each.node_id, deployment_id=each.pk, digest=each.artifact.digest, weight_in_force=100,
                state="failed" if number % 401 == 0 else "running", since=now, reported_at=now,
            )
            for number, each in enumerate(desired)
        ),
        batch_size=5_000,
    )  # fmt: skip
    return artifacts


def seed_rollouts(
    team: object, person: object, pool: object, nodes: list[object], artifacts: list[object], now: datetime
) -> None:
    """Rollouts of as many models, some of them open, with their stages and a hundred nodes each."""
    from apps.rollouts.models import Participant, Phase, Rollout, Stage, StageState

    phases = (Phase.PROGRESSING, Phase.PAUSED)
    rollouts = Rollout.objects.bulk_create(
        Rollout(
            team=team, model_id=artifact.version.model_id, version=artifact.version, artifact=artifact, pool=pool,
            plan=[{"kind": "canary", "weight": 10}, {"kind": "approval"}, {"kind": "full"}], plan_sha256="0" * 64,
            phase=phases[number % 2] if number < OPEN_ROLLOUTS else Phase.COMPLETED,
            pause_reason="approval" if number < OPEN_ROLLOUTS and number % 2 else "",
            stage_index=number % 2, reason="A better one.", requested_by=person, phase_deadline=now + timedelta(days=1),
            created_at=now - timedelta(minutes=number),
        )
        for number, artifact in enumerate(artifacts[1 : 2 * ROLLOUTS : 2])
    )  # fmt: skip
    Stage.objects.bulk_create(
        Stage(
            team=team, rollout=rollout, index=index, kind=stage["kind"], params=stage,
            state=StageState.RUNNING if index == rollout.stage_index else StageState.WAITING,
        )
        for rollout in rollouts
        for index, stage in enumerate(rollout.plan)
    )  # fmt: skip
    Participant.objects.bulk_create(
        (Participant(rollout=rollout, node=node) for rollout in rollouts for node in nodes[:100]), batch_size=5_000
    )


def seed_events(team: object, nodes: list[object], now: datetime) -> None:
    """A past for the audit log and the timelines."""
    from apps.audit.models import Event

    Event.objects.bulk_create(
        (
            Event(
                team_id=team.pk, actor_kind="system", actor_label="farrier", verb="node.cordoned", reason="Fan noise.",
                object_type="fleet.node", object_id=str(node.pk), object_label=node.name,
                at=now - timedelta(seconds=number),
            )
            for number, node in ((number, nodes[number % NODES]) for number in range(EVENTS))
        ),
        batch_size=5_000,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
