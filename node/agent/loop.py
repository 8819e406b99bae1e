"""The agent: observe, plan, act, report; once a second, and at once when something happens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx2

from aifb.trust import Deployment
from node.agent import AGENT_VERSION, planner
from node.agent.backoff import Backoff
from node.agent.board import Board
from node.agent.cache import ArtifactCache
from node.agent.client import ControlPlane
from node.agent.errors import AgentError, Permanent
from node.agent.fetch import Fetcher, HttpRangeSource
from node.agent.files import read_json, write_json
from node.agent.gateway import Gateway
from node.agent.hardware.monitor import Hardware
from node.agent.home import Home
from node.agent.identity import IdentityStore, JoinToken, load_or_create_key
from node.agent.jobs import Jobs
from node.agent.link import Link
from node.agent.planner import Action, Engine, EngineState, Key, Snapshot, key_of
from node.agent.preflight import condition, conditions, facts
from node.agent.processes import Watch, python_command
from node.agent.records import GoodStore
from node.agent.services import Records, Service, Status, health_says_ready
from node.agent.settings import Settings
from node.agent.slots import Slots
from node.agent.telemetry import Boot, Outbox, Shipper
from node.agent.trust import TrustStore
from protocol.messages import ConditionReport, DeploymentReport

log = logging.getLogger(__name__)

FAST_S = 0.1  # between two looks while something is under way
STEADY_S = 60.0  # an engine that was ready this long starts counting failures anew


class Agent:
    """One node's agent. `now` is the wall clock (Unix seconds), `transport` replaces the network to the control plane.

    Durations are measured on the monotonic clock; the wall clock only judges expiry and stamps reports.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        now: Callable[[], float] = time.time,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._now = now
        self._home = Home(settings.home)
        self._home.prepare()
        self._watch = Watch()
        self._stopping = threading.Event()
        self._records = Records(self._home)
        boot = _next_boot(self._home)
        identities = IdentityStore(self._home.path)
        key = load_or_create_key(self._home.path)
        self._control_plane = ControlPlane(settings.server, key, transport=transport, now=now, ca_file=settings.ca_file)
        self._trust = TrustStore(self._home.trust, _pin(identities, settings))
        self._cache = ArtifactCache(self._home.artifacts)
        self._good = GoodStore(self._home.path / "good.json")
        self._slots = Slots(self._home)
        self._board = Board()
        self._hardware = Hardware(settings, self._home, now=now)
        self._gateway = Gateway(self._home, self._records, settings.gateway, settings.name)
        self._zygote = self._make_zygote()
        self._comparator = self._make_comparator()
        self._is_comparing = False
        self.link = Link(
            settings, self._control_plane, identities, self._trust, self._board, boot,
            facts=lambda: facts() | self._hardware.facts(), assigned=self._on_assigned, now=now,
        )  # fmt: skip
        self._board.changed = self.link.report_soon
        self._shipper = Shipper(self._home, Outbox(self._home, boot), self._control_plane, now=now)
        self._jobs = Jobs(
            Fetcher(self._cache, self._trust, HttpRangeSource(self._control_plane)),
            self._cache, self._trust, self._slots, self._board, done=self._watch.wake, utc=self._utc,
        )  # fmt: skip
        self._states: dict[str, tuple[planner.Progress, datetime]] = {}
        self._content = ""
        self._telemetry_error: AgentError | None = None

    def run(self) -> None:
        """Work until `stop`. Engines, gateway, comparator and fork server go on afterwards."""
        self._slots.adopt(time.monotonic())
        self.link.start()
        self._hardware.start()
        shipping = threading.Thread(target=self._ship_forever, name="telemetry", daemon=True)
        shipping.start()
        while not self._stopping.is_set():
            is_busy = self.tick()
            services = (self._zygote, self._gateway.service, self._comparator)
            processes = [process for process in (service.process() for service in services) if process is not None]
            self._watch.wait([*processes, *self._slots.processes()], FAST_S if is_busy else self._settings.tick_s)
        # whatever these are in the middle of is safe to cut off: that is how they survive a kill
        self.link.stop()
        self._jobs.close()
        self._hardware.stop()
        shipping.join(timeout=2.0)
        self._control_plane.close()

    def stop(self) -> None:
        """End `run` soon. Safe in a signal handler."""
        self._stopping.set()
        self._watch.wake()

    def tick(self) -> bool:
        """One round of observe, plan, act and report; True while something is under way."""
        now_s = time.monotonic()
        statuses = self._ensure_services(now_s)
        comparator = statuses.get("ComparatorReady")
        snapshot = self._observe(now_s, is_comparing=comparator is not None and comparator.is_ready)
        if statuses["GatewayReady"].is_ready and not snapshot.is_routed:
            sentence = "The gateway does not follow the routes that were written last; see its log."
            statuses["GatewayReady"] = Status(False, "routes_not_in_force", sentence)
        self._hardware.tick(now_s, self._slots.health())
        actions = planner.plan(snapshot, now_s)
        for action in actions:
            self._act(action, now_s, is_zygote_ready=statuses["ZygoteReady"].is_ready)
        self._set_clusters(self._gateway.wanted)
        self._report(snapshot, statuses)
        unsettled = {EngineState.STARTING, EngineState.WARMING, EngineState.DRAINING}
        is_waiting = any(engine.state in unsettled for engine in snapshot.engines.values())
        return bool(actions) or is_waiting or any(status.is_starting for status in statuses.values())

    def _observe(self, now_s: float, *, is_comparing: bool) -> Snapshot:
        engines, ended = self._slots.observe(now_s)
        for end in ended:
            log.warning("an engine of %s ended: %s (%s)", end.key.model, end.sentence, end.code)
            self._jobs.starts.note(end.key, end.code, end.sentence, now_s)
        for engine in engines.values():
            if engine.state == EngineState.READY and now_s - engine.since_s > STEADY_S:
                self._jobs.starts.forgive(engine.key)
        wanted = self._wanted()
        in_force = self._gateway.in_force()
        return Snapshot(
            wanted=wanted,
            engines=engines,
            cached=self._cached(wanted),
            parts=self._cache.parts(),
            fetching=self._jobs.fetching(),
            verifying=self._jobs.starting(),
            fetch_failures=self._jobs.fetches.failures(),
            start_failures=self._jobs.starts.failures(),
            good=dict(self._good.by_model),
            routes=self._gateway.wanted,
            is_routed=in_force is not None,
            is_comparing=is_comparing,
        )

    def _wanted(self) -> tuple[Deployment, ...]:
        assignment = self._trust.assignment
        if assignment is None:
            return ()
        if assignment.statement.content != self._content:
            self._content = assignment.statement.content
            self._jobs.fetches.forgive_all()
            self._jobs.starts.forgive_all()
        return assignment.statement.deployments

    def _cached(self, wanted: Iterable[Deployment]) -> frozenset[str]:
        """Complete artifacts, without those of which a wanted deployment's manifest has yet to be accepted."""
        return self._cache.complete() - {d.digest for d in wanted if not self._trust.has_manifest(d)}

    def _act(self, action: Action, now_s: float, *, is_zygote_ready: bool) -> None:
        match action:
            case planner.Fetch(deployment):
                self._jobs.fetch(deployment)
            case planner.CancelFetch(digest):
                self._jobs.cancel_fetch(digest)
            case planner.Start(deployment):
                if is_zygote_ready and now_s >= self._jobs.no_start_before_s:
                    self._jobs.start(deployment)
            case planner.Route(routes):
                self._route(routes)
            case planner.Drain(key):
                self._slots.drain(key, now_s)
            case planner.Kill(key, reason):
                log.warning("an engine of %s is killed: %s", key.model, reason)
                self._slots.kill(key)
            case planner.Remember(good):
                self._good.remember(good)
            case planner.Evict(digest):
                self._cache.evict(digest)
                kept = self._cache.complete() | self._cache.parts() | {d.digest for d in self._wanted()}
                self._trust.forget_manifests(kept)

    def _route(self, routes: tuple[planner.ModelRoute, ...]) -> None:
        """Clusters first, so that no route names one that isn't known; the comparator's pairs before its requests."""
        write_json(self._home.path / "comparator.json", self._comparator_config(routes))
        if self._set_clusters((*routes, *self._gateway.wanted)) or self._gateway.in_force() is None:
            self._gateway.set_routes(routes)

    def _set_clusters(self, routes: Iterable[planner.ModelRoute]) -> bool:
        named = {key for route in routes for key in planner.keys_of(route)}
        sockets = {key: self._home.engine_sockets(*key)[0] for key in named}
        return self._gateway.set_clusters({**sockets, **self._slots.sockets()})

    def _comparator_config(self, routes: Iterable[planner.ModelRoute]) -> dict[str, object]:
        versions = {key_of(deployment): deployment.version for deployment in self._wanted()}

        def side(key: Key) -> dict[str, object]:
            socket = self._home.engine_sockets(*key)[0].absolute()
            return {"socket": str(socket), "version": versions[key], "digest": key.digest}

        models = {
            route.model: {
                "deployment": route.mirror.deployment.id,
                "rollout": route.mirror.deployment.rollout,
                "stage": route.mirror.deployment.stage or 0,
                "attempt": route.mirror.deployment.attempt or 0,
                "baseline": side(route.mirror.baseline),
                "candidate": side(route.mirror.candidate),
            }
            for route in routes
            if route.mirror is not None
        }
        return {"spool_dir": str(self._home.spool.absolute()), "models": models}

    def _ensure_services(self, now_s: float) -> dict[str, Status]:
        statuses = {
            "ZygoteReady": Status(True) if self._jobs.starting() else self._zygote.ensure(now_s),
            "GatewayReady": self._gateway.ensure(now_s),
        }
        if self._is_comparing or any(deployment.mirror_percent for deployment in self._wanted()):
            config = self._home.path / "comparator.json"
            if not config.exists():
                write_json(config, self._comparator_config(()))
            self._is_comparing = True
            statuses["ComparatorReady"] = self._comparator.ensure(now_s)
        return statuses

    def _make_zygote(self) -> Service:
        command = python_command("node.engine.zygote", "--socket", str(self._home.socket("zygote.sock")))
        return Service(
            self._home, self._records, "zygote", command,
            is_ready=self._slots.zygote_answers, reads=AGENT_VERSION.encode(), start_timeout_s=240.0,
        )  # fmt: skip

    def _make_comparator(self) -> Service:
        health = self._home.socket("cmp.health")
        command = python_command(
            "node.comparator",
            *("--config", str(self._home.path / "comparator.json")),
            *("--socket", str(self._home.socket("cmp.sock"))),
            *("--health-socket", str(health)),
        )
        return Service(
            self._home, self._records, "comparator", command,
            is_ready=lambda: health_says_ready(health), reads=AGENT_VERSION.encode(),
        )  # fmt: skip

    def _report(self, snapshot: Snapshot, statuses: dict[str, Status]) -> None:
        at = self._utc()
        reports, states = [], {}
        for deployment in snapshot.wanted:
            seen = planner.progress(deployment, snapshot)
            before = self._states.get(deployment.id)
            since = before[1] if before is not None and before[0].state == seen.state else at
            states[deployment.id] = (seen, since)
            reports.append(
                DeploymentReport(
                    id=UUID(deployment.id),
                    digest=deployment.digest,
                    state=seen.state,
                    reason_code=seen.code[:63],
                    reason=seen.reason[:1_000],
                    warmup_ms=seen.warmup_ms,
                    since=since,
                    weight_in_force=seen.weight_in_force,
                )
            )
        self._states = states
        self._board.publish(reports, [*self._conditions(snapshot.engines.values(), statuses)])

    def _conditions(self, engines: Iterable[Engine], statuses: dict[str, Status]) -> Iterable[ConditionReport]:
        yield from conditions(self._home.path)
        yield self.link.condition()
        for kind, status in statuses.items():
            yield condition(kind, status.is_ready, status.code or "ready", status.sentence)
        yield from self._hardware.conditions()
        lost, error = self._shipper.dropped_rows + self._hardware.lost_rows, self._telemetry_error
        if lost:
            yield condition("TelemetryComplete", False, "rows_lost", f"{lost} rows were lost since the agent started.")
        else:
            yield condition("TelemetryComplete", True, error.code if error else "shipped", str(error or ""))
        if any(True for _ in engines):
            boxes = self._slots.sandbox.values()
            weak = [box for box in boxes if not (box.get("landlock") and box.get("seccomp"))]
            text = "An engine runs without Landlock or seccomp: this kernel lacks them." if weak else ""
            yield condition("EnginesSandboxed", not weak, "partly" if weak else "enforced", text)

    def _ship_forever(self) -> None:
        backoff = Backoff(1.0, 30.0)
        while not self._stopping.is_set():
            delay = self._settings.telemetry_interval_s
            try:
                self._hardware.publish()
                has_more = self._shipper.collect()
                self._hardware.note_compute(self._shipper.compute_s)
                self._shipper.ship()
                self._telemetry_error = None
                backoff.reset()
                delay = 0.0 if has_more else delay
            except AgentError as failed:
                self._telemetry_error = failed
                delay = max(delay, backoff.next_s(getattr(failed, "retry_after_s", None)))
            except OSError as failed:
                log.exception("telemetry could not be written")
                self._telemetry_error = Permanent("spool_unwritable", f"Telemetry can't be stored: {failed}.")
                delay = max(delay, backoff.next_s())
            self._rest(delay, is_away=self._telemetry_error is not None)

    def _rest(self, delay_s: float, *, is_away: bool) -> None:
        """Wait for the next batch's time, or until there are rows enough for a full one."""
        deadline = time.monotonic() + delay_s
        while not self._stopping.is_set() and (left := deadline - time.monotonic()) > 0:
            if not is_away and self._shipper.has_full_batch():
                return
            self._stopping.wait(min(left, 0.5))

    def _on_assigned(self) -> None:
        self._watch.wake()

    def _utc(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def _next_boot(home: Home) -> Boot:
    """A fresh boot: its number orders batches on disk, its id tells the control plane that counters begin anew."""
    path = home.path / "boot.json"
    stored = read_json(path) or {"number": 0}
    boot = Boot(int(stored["number"]) + 1, str(uuid4()))
    write_json(path, {"number": boot.number, "id": boot.id})
    return boot


def _pin(identities: IdentityStore, settings: Settings) -> str:
    """The digest of the first trust root: from the identity, or before enrolment from the join token."""
    identity = identities.load()
    if identity is not None:
        return identity.root_sha256
    if settings.join_token_file is None:
        raise Permanent("no_join_token", "This node has not enrolled yet: start it with --join-token-file.")
    try:
        return JoinToken.parse(settings.join_token_file.read_text()).root_sha256
    except OSError as missing:
        raise Permanent("no_join_token", f"The join token can't be read: {missing}.") from None
