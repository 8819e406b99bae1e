"""A fleet with a history, for looking at the console: made by the production services in simulated time.

`python -m tests.browser.seed` fills the freshly migrated, empty database that DATABASE_URL names, for development.
"""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()

import pytest
from django.conf import settings

from apps.access import services as access
from apps.access.actors import SYSTEM, Actor
from apps.access.models import Role, Team, User
from apps.fleet import reports
from apps.fleet import services as fleet
from apps.fleet.models import Gpu, GpuHealth, Node, Pool
from apps.models import services as registry
from apps.models.models import Artifact, ModelVersion, RegisteredModel
from apps.observability import alert_services, detection
from apps.rollouts import services as rollouts
from apps.rollouts.models import Rollout, Strategy
from protocol.messages import ConditionReport, PollRequest, Refusal
from tests.artifacts import Keys, pack, signed_manifest
from tests.fleet import builders
from tests.observability import gpu_history
from tests.observability.alert_lab import WatchedFleet
from tests.rollouts.lab import Behaviour, Lab, SimNode

PASSWORD = "correct horse battery staple"
PEOPLE = {"requester": Role.OPERATOR, "lead": Role.APPROVER, "oncall": Role.VIEWER, "admin": Role.ADMIN}
GPU_HEALTH = {3: GpuHealth.THROTTLED, 5: GpuHealth.HOT}  # of gpu-a01; the others are well
STORY = timedelta(minutes=40)  # how long ago the history begins
SENTENCES = (
    "Redistributions in binary form must reproduce the above copyright notice",
    "…the licensor provides the work on an as-is basis, without warranties of any kind",
    "It was the best of times, it was the worst of times",
    "A node that stays silent for three polls is not asked for evidence",
)


# One gate and one approval: what a test of the decision itself needs.
SHORT: list[dict[str, Any]] = [
    {
        "kind": "shadow",
        "percent": 100,
        "metrics": [{"name": "similarity", "margin": 0.98}],
        "min_samples": 300,
        "window_s": 30.0,
        "max_duration_s": 600.0,
    },
    {"kind": "approval"},
    {"kind": "full"},
]
QUICK: list[dict[str, Any]] = [
    SHORT[0] | {"percent": 50},
    {
        "kind": "canary",
        "weight": 50,
        "mirror_percent": 50,
        "metrics": [{"name": "similarity", "margin": 0.98}, {"name": "errors", "margin": 0.05}],
        "min_samples": 300,
        "window_s": 30.0,
        "max_duration_s": 600.0,
    },
    *SHORT[1:],
]


def _number(slug: str) -> int:
    """A number for a model's first artifact that no other model's has: equal content would be one artifact."""
    return 1_000 + zlib.crc32(slug.encode()) % 1_000_000


class StoryLab(Lab):
    """A lab whose nodes serve several models, and whose mirrored requests say different things."""

    def serve(self, node: SimNode) -> None:
        everything = node.deployments
        for model in sorted({each.model for each in everything}):
            node.deployments = [each for each in everything if each.model == model]
            super().serve(node)
        node.deployments = everything

    def _pair(self, candidate: Any) -> Any:
        row = super()._pair(candidate)
        row.sample = self.random.choice(SENTENCES)
        return row


@dataclass
class Seed:
    """What a test needs to find its way in the seeded world."""

    people: dict[str, User]
    team: Team
    lab: Lab
    waiting: Rollout  # of minilm-embedder: to be approved
    rolled_back: Rollout
    completed: Rollout
    make: _Builder

    def ask(self, slug: str) -> Rollout:
        """Start a rollout of a new model's second version and bring it to where it waits for an approval."""
        self.catch_up()
        first = self.make.start(self.make.version(slug, _number(slug)), "first", "First version.")
        self.lab.until(first, "completed")
        version = self.make.version(slug, _number(slug) + 1)
        asked = self.make.start(version, None, "A better one.", stages=SHORT)
        self.lab.until(asked, "paused")
        return asked

    def catch_up(self) -> None:
        """Bring the simulated nodes to the present, as if they had polled all the time."""
        self.lab.now = datetime.now(UTC)
        for node in self.lab.nodes:
            node.poll(self.lab.now, self.lab.behaviour)
        Node.objects.filter(name="gpu-a01").update(last_seen_at=self.lab.now)


class _Builder:
    """Builds the world step by step; a class only because every step needs the same five things."""

    def __init__(self, home: Path, keys: Keys, now: datetime) -> None:
        self.home, self.keys, self.now = home, keys, now
        self.team = access.create_team(slug="default", name="Embeddings", actor=SYSTEM, now=now)
        self.people = {name: self._person(name, role) for name, role in PEOPLE.items()}
        self.requester = Actor.person(self.people["requester"])
        self.lead = Actor.person(self.people["lead"])
        registry.add_root(envelope=keys.envelope, actor=SYSTEM, now=now)
        rollouts.ensure_default_strategies(self.team)
        self.pool = fleet.create_pool(
            team=self.team, slug="default", actor=SYSTEM, auto_accept=True, poll_interval_s=20.0, now=now
        )
        world = builders.World(self.team, self.people["requester"], self.people["admin"], self.pool, self.publish)
        self.world = world
        self.lab = StoryLab(world, now, [self._node(number) for number in (1, 2, 3)], requests_a_step=100)

    def _person(self, name: str, role: Role) -> User:
        user = access.create_user(username=name, password=PASSWORD, actor=SYSTEM, now=self.now)
        access.set_membership(user=user, team=self.team, role=role, actor=SYSTEM, now=self.now)
        return user

    def _node(self, number: int) -> SimNode:
        host = builders.Host(f"node-{number}", zone=f"zone-{'abc'[number - 1]}")
        node = self._enrol(host, self.pool)
        return SimNode(node.pk, node.name)

    def _enrol(self, host: builders.Host, pool: Pool) -> Node:
        token = fleet.create_join_token(pool=pool, actor=Actor.person(self.people["requester"]), now=self.now)
        answer = builders.credentials.enrol(host.request(token), now=self.now)
        node = Node.objects.get(pk=answer.node)
        node.hardware = {"cpus": 16, "memory_bytes": 67_108_864_000, "device": "cpu"}
        node.save(update_fields=["hardware"])
        return node

    def publish(self, slug: str, *, seed: int, precision: str = "float32", numpy: str = "2.3.1") -> ModelVersion:
        packed = pack(self.home / f"{slug}-{seed}.aifb", seed=seed, packages={"numpy": numpy, "torch": "2.13.0"})
        version = registry.reserve_version(
            slug=slug, team=self.team, actor=self.requester, now=self.lab.now, source_commit="4f1c2a9"
        )
        with packed.written.path.open("rb") as file:
            registry.store_blob(
                read=file.read,
                digest=packed.written.digest,
                length=packed.written.total_bytes,
                team=self.team,
                actor=self.requester,
                now=self.lab.now,
            )
        registry.publish_version(
            version=version,
            envelope=signed_manifest(packed, slug, version.number, self.keys.release),
            publication=registry.Publication(
                lineage_inputs=packed.inputs.as_dict(), precision=precision, baseline_metrics={"auc": 0.952}
            ),
            actor=self.requester,
            now=self.lab.now,
        )
        return version

    def version(self, slug: str, seed: int, behaviour: Behaviour | None = None, **options: Any) -> ModelVersion:
        """Publish the next version, with how it will behave when it serves."""
        version = self.publish(slug, seed=seed, **options)
        self.lab.behaviour[Artifact.objects.get(version=version).digest] = behaviour or Behaviour()
        return version

    def start(self, version: ModelVersion, strategy: str | None, reason: str, **options: Any) -> Rollout:
        return rollouts.start_rollout(
            model=RegisteredModel.objects.get(pk=version.model_id),
            version=version,
            pool=self.pool,
            strategy=Strategy.objects.get(team=self.team, slug=strategy) if strategy else None,
            **options,
            actor=self.requester,
            reason=reason,
            now=self.lab.now,
        )

    def approve(self, rollout: Rollout, reason: str) -> None:
        rollouts.approve_rollout(rollout, actor=self.lead, reason=reason, now=self.lab.now)

    def others(self) -> None:
        """Nodes in other states: with GPUs, cordoned, waiting, silent, refusing."""
        gpus = self._enrol(builders.Host("gpu-a01", zone="zone-a"), self.pool)
        builders.activate(gpus, self.lab.now)
        for index in range(8):
            uuid = f"GPU-00000000-0000-0000-0000-00000000000{index}"
            Gpu.objects.create(
                uuid=uuid, node=gpus, index=index, name="NVIDIA A100-SXM4-80GB", memory_bytes=85_899_345_920,
                simulated=True, health=GPU_HEALTH.get(index, GpuHealth.OK),
            )  # fmt: skip
        present = datetime.now(UTC)
        gpu_history.fill(gpus, present, hours=54)
        detection.detect(present - timedelta(hours=1))  # it has seen two days by then
        detection.detect(present)
        fleet.cordon_node(gpus, actor=self.requester, reason="Fan 2 is being replaced.", now=self.lab.now)
        by_hand = fleet.create_pool(team=self.team, slug="edge", actor=SYSTEM, auto_accept=False, now=self.lab.now)
        self._enrol(builders.Host("edge-7", zone="zone-b"), by_hand)
        silent = self._enrol(builders.Host("node-9", zone="zone-c"), by_hand)
        fleet.accept_node(silent, actor=self.requester, reason="Ours.", now=self.lab.now)
        fleet.quarantine_node(silent, actor=SYSTEM, reason="Two machines used its credential.", now=self.lab.now)

    def report(self, node: Node, now: datetime) -> None:
        """A report with conditions and a refusal."""
        report = PollRequest(
            boot_id=node.pk,
            report_seq=2,
            agent_version="1.0",
            conditions=[
                ConditionReport(type="GpuHot", status="false", reason="Within", message="61 °C of 85 °C"),
                ConditionReport(type="LandlockAvailable", status="true", reason="Abi6"),
            ],
            refusals=[
                Refusal(
                    code="chunk_mismatch",
                    reason="Chunk 3 of 9f3a…c21 does not hash to its leaf; the file was not used and v1 still serves.",
                    sequence=7,
                    at=now,
                )
            ],
        )
        reports.record_poll(node.pk, report, now=now)


def alarm(seed: Seed) -> None:
    """The host of gpu-a01 runs hot for the last minutes: one alert fires, another is explained by it, one is over."""
    watched = WatchedFleet(seed.make.world, seed.lab.now - timedelta(minutes=16))
    with pytest.MonkeyPatch.context() as patch:
        watched.install(patch)
        node = Node.objects.get(name="gpu-a01")
        watched.heat(node, 5, metric="power_w", excess=120.0)
        watched.run(390)
        watched.cool()
        watched.run(180)
        watched.heat(node)
        watched.heat(node, 0, 1, 2, metric="memory_temperature_c", excess=11.0)
        watched.run(360)
    alert_services.create_silence(
        team=seed.team,
        matchers={"zone": "zone-c", "rule": "node-down"},
        reason="The racks of zone-c are being rewired.",
        expires_at=seed.lab.now + timedelta(hours=8),
        actor=seed.make.requester,
        now=seed.lab.now,
    )


def build(home: Path, keys: Keys, now: datetime) -> Seed:
    """Tell the history up to `now`: a model rolled out, a bad version rolled back, one that waits."""
    make = _Builder(home, keys, now - STORY)
    lab = make.lab
    lab.until(make.start(make.version("minilm-embedder", 1), "first", "First version."), "completed")
    completed = make.start(
        make.version("minilm-embedder", 2, Behaviour(latency_ms=18.0), precision="int8 per row"),
        None,
        "Four times smaller with a scale per row.",
        stages=QUICK,
    )
    lab.until(completed, "paused")
    make.approve(completed, "Similarity is far above its margin and latency is a little better.")
    lab.until(completed, "completed")
    rolled_back = make.start(
        make.version("minilm-embedder", 3, Behaviour(similarity=0.965, scatter=0.012), precision="int8 per tensor"),
        "demo", "One scale per tensor, to save the scales.",
    )  # fmt: skip
    lab.until(rolled_back, "rolled_back")
    waiting = make.start(
        make.version("minilm-embedder", 4, Behaviour(0.9981, scatter=0.0009, latency_ms=19.0), numpy="2.3.2"),
        "demo",
        "Tokenizer fix, same weights elsewhere.",
    )
    lab.until(waiting, "paused")
    make.publish("digit-classifier", seed=11)  # registered, never rolled out
    make.others()
    seed = Seed(make.people, make.team, lab, waiting, rolled_back, completed, make)
    seed.catch_up()
    make.report(Node.objects.get(name="gpu-a01"), lab.now)
    alarm(seed)
    seed.catch_up()
    return seed


def main() -> None:
    if User.objects.exists():
        sys.exit("This database has users already; create and migrate an empty one.")
    home = Path(settings.FARRIER.home)
    home.mkdir(parents=True, exist_ok=True)
    keys = Keys.generate()
    director = builders.write_key(home / "director.pem", keys.director)
    settings.FARRIER = settings.FARRIER.model_copy(update={"director_key": director})
    seed = build(home, keys, datetime.now(UTC))
    sys.stdout.write(f"users {', '.join(PEOPLE)}; password «{PASSWORD}»; waits: /rollouts/{seed.waiting.pk}/\n")


if __name__ == "__main__":
    main()
