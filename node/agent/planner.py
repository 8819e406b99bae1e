"""What to do next: a pure function of what is wanted, what is there, and one reading of a clock.

Level-triggered: it compares the accepted assignment with the observed node and never asks how either came about.
The rules: load, warm up, then route; a share never exceeds what is ready; the old version serves until the new one
can; a candidate is only ever routed beside a baseline that serves; an engine is drained only once no route in force
names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from aifb.trust import Deployment
from protocol.messages import DeploymentState, Role

MAX_STARTS = 5  # failures in a row after which nobody waits for an engine any more
DRAIN_TIMEOUT_S = 30.0
MAX_FETCHES = 1  # artifacts at once; each uses several connections


class Key(NamedTuple):
    """What an engine is known by on this node: one per model and artifact."""

    model: str
    digest: str


def key_of(deployment: Deployment) -> Key:
    """The engine that serves a deployment."""
    return Key(deployment.model, deployment.digest)


class EngineState(StrEnum):
    """An engine's life as the agent sees it; one that ended is absent."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    HUNG = "hung"
    FAILED = "failed"  # it says why on its health socket, and will end
    DRAINING = "draining"


@dataclass(frozen=True)
class Engine:
    """One observed engine process."""

    key: Key
    version: int
    state: EngineState
    since_s: float
    warmup_ms: float | None = None


@dataclass(frozen=True)
class Failure:
    """Why a deployment did not get further, how often in a row, and when to try again."""

    code: str
    reason: str
    count: int
    retry_at_s: float
    is_refusal: bool = True  # false: nothing is wrong with the artifact, the way to it is


@dataclass(frozen=True)
class Share:
    """Percent of a model's requests that one engine gets."""

    key: Key
    weight: int


@dataclass(frozen=True)
class Mirror:
    """Percent of a model's requests that the comparator replays through baseline and candidate."""

    percent: int
    baseline: Key
    candidate: Key
    deployment: Deployment


@dataclass(frozen=True)
class ModelRoute:
    """Where the requests of one model go."""

    model: str
    shares: tuple[Share, ...]
    mirror: Mirror | None = None


@dataclass(frozen=True)
class Good:
    """The baselines that served last on this node, newest first: where a rollback finds what it needs."""

    current: Deployment
    previous: Deployment | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything a plan depends on. Times are seconds of one monotonic clock."""

    wanted: tuple[Deployment, ...] = ()
    engines: Mapping[Key, Engine] = field(default_factory=dict)
    cached: frozenset[str] = frozenset()  # digests of complete artifacts with an accepted manifest
    parts: frozenset[str] = frozenset()  # digests of artifacts of which only a part is here
    fetching: frozenset[str] = frozenset()
    verifying: frozenset[Key] = frozenset()  # being verified and handed to the fork server
    fetch_failures: Mapping[Key, Failure] = field(default_factory=dict)
    start_failures: Mapping[Key, Failure] = field(default_factory=dict)
    good: Mapping[str, Good] = field(default_factory=dict)
    routes: tuple[ModelRoute, ...] = ()  # last written for the gateway
    is_routed: bool = True  # whether the gateway says that it follows them
    is_comparing: bool = True  # whether the comparator takes copies


@dataclass(frozen=True)
class Fetch:
    deployment: Deployment


@dataclass(frozen=True)
class CancelFetch:
    digest: str


@dataclass(frozen=True)
class Start:
    """Verify the artifact and ask the fork server for an engine."""

    deployment: Deployment


@dataclass(frozen=True)
class Route:
    """Put these routes in force; models that they leave out are served no more."""

    routes: tuple[ModelRoute, ...]


@dataclass(frozen=True)
class Drain:
    """Let an engine finish its requests and end."""

    key: Key


@dataclass(frozen=True)
class Kill:
    """End an engine that hangs, failed, or takes too long to drain."""

    key: Key
    reason: str


@dataclass(frozen=True)
class Remember:
    """A baseline serves: keep it, and the one before it, for rollbacks."""

    good: Good


@dataclass(frozen=True)
class Evict:
    digest: str


Action = Fetch | CancelFetch | Start | Route | Drain | Kill | Remember | Evict


def plan(s: Snapshot, now_s: float) -> list[Action]:
    """Return what to do now; an empty list means that the node is as it should be, or waits for something to end."""
    routes = tuple(route for model in _models(s) if (route := _route(model, s)))
    actions: list[Action] = [*_fetches(s, now_s), *_starts(s, now_s)]
    if routes != s.routes:
        actions.append(Route(routes))
    actions += [*_ends(s, routes, now_s), *_memories(s, routes), *_evictions(s)]
    return actions


def _models(s: Snapshot) -> list[str]:
    return sorted({deployment.model for deployment in s.wanted})


def _of(model: str, s: Snapshot) -> list[Deployment]:
    return [deployment for deployment in s.wanted if deployment.model == model]


def _baseline(deployments: Iterable[Deployment]) -> Deployment | None:
    """The deployment that holds what candidates don't get: the baseline, or a model's only version."""
    ranked = sorted(deployments, key=lambda d: (d.role != Role.BASELINE, -d.weight, d.id))
    return ranked[0] if ranked else None


def _is_ready(key: Key, s: Snapshot) -> bool:
    engine = s.engines.get(key)
    return engine is not None and engine.state == EngineState.READY


def _baselines_first(deployments: Iterable[Deployment]) -> list[Deployment]:
    return sorted(deployments, key=lambda d: (d.role != Role.BASELINE, d.model))


def _may_try(failure: Failure | None, now_s: float) -> bool:
    return failure is None or failure.retry_at_s <= now_s


def _fetches(s: Snapshot, now_s: float) -> Iterator[Action]:
    wanted = {deployment.digest for deployment in s.wanted}
    stale = s.fetching - wanted
    yield from (CancelFetch(digest) for digest in sorted(stale))
    free = MAX_FETCHES - len(s.fetching)
    begun: set[str] = set()
    for deployment in _baselines_first(s.wanted):
        is_here = deployment.digest in s.cached | s.fetching | begun
        if not is_here and free > 0 and _may_try(s.fetch_failures.get(key_of(deployment)), now_s):
            begun.add(deployment.digest)
            free -= 1
            yield Fetch(deployment)


def _starts(s: Snapshot, now_s: float) -> Iterator[Action]:
    for deployment in [*_baselines_first(s.wanted), *_stand_ins_to_start(s)]:
        key = key_of(deployment)
        is_under_way = key in s.engines or key in s.verifying
        if deployment.digest in s.cached and not is_under_way and _may_try(s.start_failures.get(key), now_s):
            yield Start(deployment)


def _stand_ins_to_start(s: Snapshot) -> Iterator[Deployment]:
    """The last good baseline of models whose wanted one is not here yet, or doesn't start, when nothing else serves."""
    for model in _models(s):
        wanted, good = _baseline(_of(model, s)), s.good.get(model)
        if wanted is None or good is None or _is_ready(key_of(wanted), s):
            continue
        is_stuck = wanted.digest not in s.cached or key_of(wanted) in s.start_failures
        if is_stuck and _stand_in(model, s) is None and key_of(good.current) not in map(key_of, s.wanted):
            yield good.current


def _stand_in(model: str, s: Snapshot) -> Key | None:
    """A former baseline that nobody wants any more, but which serves until the wanted one can.

    A candidate that was taken back is never one: it held no more than its share while it was wanted.
    """
    good = s.good.get(model)
    former = [good.current, *([good.previous] if good.previous else [])] if good else []
    wanted = set(map(key_of, s.wanted))
    return next((key for key in map(key_of, former) if key not in wanted and _is_ready(key, s)), None)


def _route(model: str, s: Snapshot) -> ModelRoute | None:
    deployments = _of(model, s)
    baseline = _baseline(deployments)
    if baseline is None:
        return None
    holder = _holder(model, key_of(baseline), s)
    if holder is None:
        return None
    candidates = [d for d in deployments if d is not baseline and d.weight > 0 and _is_ready(key_of(d), s)]
    # candidates first: the sticky split draws from the front, so a growing weight keeps the users that it had
    shares = [Share(key_of(candidate), candidate.weight) for candidate in candidates]
    rest = 100 - sum(share.weight for share in shares)
    if rest:
        shares.append(Share(holder, rest))
    return ModelRoute(model, tuple(shares), _mirror(baseline, deployments, s))


def _holder(model: str, baseline: Key, s: Snapshot) -> Key | None:
    """Who gets what candidates don't: the baseline if it is ready, else whoever served before, else nobody.

    A baseline that was routed and is being restarted keeps its share: the gateway retries until it is back.
    """
    if _is_ready(baseline, s):
        return baseline
    stand_in = _stand_in(model, s)
    if stand_in is not None:
        return stand_in
    routed = {share.key for route in s.routes if route.model == model for share in route.shares}
    failure = s.start_failures.get(baseline)
    is_lost = failure is not None and failure.count >= MAX_STARTS
    return baseline if baseline in routed and not is_lost else None


def _mirror(baseline: Deployment, deployments: Iterable[Deployment], s: Snapshot) -> Mirror | None:
    for candidate in deployments:
        if candidate.rollout is None or candidate is baseline:
            continue  # a comparison belongs to a rollout
        if (
            s.is_comparing
            and candidate.mirror_percent
            and _is_ready(key_of(candidate), s)
            and _is_ready(key_of(baseline), s)
        ):
            return Mirror(candidate.mirror_percent, key_of(baseline), key_of(candidate), candidate)
    return None


def _ends(s: Snapshot, routes: tuple[ModelRoute, ...], now_s: float) -> Iterator[Action]:
    wanted = set(map(key_of, s.wanted))
    in_force = {key for route in (*s.routes, *routes) for key in keys_of(route)}
    waiting = {d.model for d in s.wanted if d == _baseline(_of(d.model, s)) and not _is_ready(key_of(d), s)}
    for key, engine in s.engines.items():
        if engine.state == EngineState.DRAINING:
            if now_s - engine.since_s > DRAIN_TIMEOUT_S:
                yield Kill(key, "it took too long to finish its requests")
        elif engine.state == EngineState.HUNG:
            yield Kill(key, "its loop stands still")
        elif engine.state == EngineState.FAILED:
            yield Kill(key, "it failed to load")
        elif s.is_routed and key not in wanted and key not in in_force and not _may_stand_in(key, s, waiting):
            yield Drain(key)


def _may_stand_in(key: Key, s: Snapshot, waiting: set[str]) -> bool:
    """Whether an unwanted engine is the last good baseline of a model whose wanted baseline isn't ready yet."""
    good = s.good.get(key.model)
    return key.model in waiting and good is not None and key == key_of(good.current)


def keys_of(route: ModelRoute) -> set[Key]:
    """Every engine that a route sends anything to."""
    mirrored = {route.mirror.baseline, route.mirror.candidate} if route.mirror else set()
    return {share.key for share in route.shares} | mirrored


def _memories(s: Snapshot, routes: tuple[ModelRoute, ...]) -> Iterator[Action]:
    for route in filter(routes.__contains__, s.routes if s.is_routed else ()):  # in force, and as they should be
        baseline = _baseline(_of(route.model, s))
        if baseline is None or not _is_ready(key_of(baseline), s):
            continue
        good = s.good.get(route.model)
        if key_of(baseline) not in keys_of(route) or (good and key_of(good.current) == key_of(baseline)):
            continue
        yield Remember(Good(baseline, good.current if good else None))


def _evictions(s: Snapshot) -> Iterator[Action]:
    kept = {deployment.digest for deployment in s.wanted} | s.fetching
    kept |= {key.digest for key in [*s.engines, *s.verifying]}
    for good in s.good.values():
        kept |= {good.current.digest} | ({good.previous.digest} if good.previous else set())
    yield from (Evict(digest) for digest in sorted((s.cached | s.parts) - kept))


@dataclass(frozen=True)
class Progress:
    """How far a deployment has come, as the node's page shows it."""

    state: DeploymentState
    code: str = ""
    reason: str = ""
    warmup_ms: float | None = None
    weight_in_force: int = 0


def progress(deployment: Deployment, s: Snapshot) -> Progress:
    """Return how far one wanted deployment has come."""
    key = key_of(deployment)
    engine = s.engines.get(key)
    in_force = s.routes if s.is_routed else ()
    weight = sum(share.weight for route in in_force for share in route.shares if share.key == key)
    if engine is not None and engine.state == EngineState.READY:
        return Progress(DeploymentState.RUNNING, warmup_ms=engine.warmup_ms, weight_in_force=weight)
    failure = s.start_failures.get(key) or s.fetch_failures.get(key)
    why = (failure.code, failure.reason) if failure else ("", "")
    if engine is not None and engine.state in (EngineState.STARTING, EngineState.WARMING):
        is_warming = engine.state == EngineState.WARMING
        return Progress(
            DeploymentState.WARMING if is_warming else DeploymentState.LOADING, *why, weight_in_force=weight
        )
    if key in s.verifying:
        return Progress(DeploymentState.VERIFYING, *why, weight_in_force=weight)
    if deployment.digest in s.fetching:
        return Progress(DeploymentState.DOWNLOADING, *why, weight_in_force=weight)
    if failure is not None:
        state = DeploymentState.FAILED if failure.is_refusal else DeploymentState.DOWNLOADING
        return Progress(state, *why, weight_in_force=weight)
    if deployment.digest in s.cached:
        return Progress(DeploymentState.LOADING, weight_in_force=weight)
    return Progress(DeploymentState.ASSIGNED, weight_in_force=weight)
