"""The planner by table: what it does for each state of a node, and what it must never do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aifb.trust import Deployment
from node.agent.planner import (
    DRAIN_TIMEOUT_S,
    MAX_STARTS,
    Action,
    CancelFetch,
    Drain,
    Engine,
    EngineState,
    Evict,
    Failure,
    Fetch,
    Good,
    Key,
    Kill,
    Mirror,
    ModelRoute,
    Remember,
    Route,
    Share,
    Snapshot,
    Start,
    key_of,
    keys_of,
    plan,
    progress,
)
from tests.agent.keys import deployment

MODEL = "digit-classifier"
READY, STARTING = EngineState.READY, EngineState.STARTING
V1 = deployment("v1", version=1)
V2 = deployment("v2", version=2)
V2_CANDIDATE = deployment("v2", version=2, role="candidate", weight=10, mirror_percent=20)
V1_BESIDE = replace(V1, weight=90)
SHADOW = replace(V2_CANDIDATE, weight=0)
NOW = 1_000.0


def _engines(*states: tuple[Deployment, EngineState], since_s: float = 900.0) -> Mapping[Key, Engine]:
    return {key_of(d): Engine(key_of(d), d.version, state, since_s, warmup_ms=3.0) for d, state in states}


def _cached(*deployments: Deployment) -> frozenset[str]:
    return frozenset(d.digest for d in deployments)


def _route(*shares: tuple[Deployment, int], mirror: Mirror | None = None) -> ModelRoute:
    return ModelRoute(MODEL, tuple(Share(key_of(d), weight) for d, weight in shares), mirror)


def _mirror_of(candidate: Deployment) -> Mirror:
    return Mirror(20, key_of(V1), key_of(candidate), candidate)


ALL_V1 = _route((V1, 100))
SPLIT = _route((V2, 10), (V1, 90), mirror=_mirror_of(V2_CANDIDATE))
HOLD = {MODEL: Good(V1)}
SERVING_V1 = Snapshot(wanted=(V1,), engines=_engines((V1, READY)), cached=_cached(V1), good=HOLD, routes=(ALL_V1,))
CANARY = Snapshot(
    wanted=(V1_BESIDE, V2_CANDIDATE),
    engines=_engines((V1, READY), (V2, READY)),
    cached=_cached(V1, V2),
    good=HOLD,
    routes=(SPLIT,),
)
LATER = Failure("unreachable", "The server is away.", 1, NOW + 5, is_refusal=False)
REFUSED = Failure("root_mismatch", "This is another artifact.", 1, NOW + 5)
GAVE_UP = Failure("load_failed", "No such op.", MAX_STARTS, NOW + 300)

TABLE: list[tuple[str, Snapshot, list[Action]]] = [
    ("nothing is wanted, nothing is there", Snapshot(), []),
    ("as it should be", SERVING_V1, []),
    ("a canary as it should be", CANARY, []),
    ("a first artifact is fetched", Snapshot(wanted=(V1,)), [Fetch(V1)]),
    ("a running fetch is left alone", Snapshot(wanted=(V1,), fetching=_cached(V1)), []),
    ("a failed fetch waits", Snapshot(wanted=(V1,), fetch_failures={key_of(V1): LATER}), []),
    (
        "a failed fetch is tried again when its time has come",
        Snapshot(wanted=(V1,), fetch_failures={key_of(V1): replace(LATER, retry_at_s=NOW)}),
        [Fetch(V1)],
    ),
    ("the baseline is fetched before its candidate", Snapshot(wanted=(V2_CANDIDATE, V1_BESIDE)), [Fetch(V1_BESIDE)]),
    (
        "a fetch that nobody wants any more is cancelled",
        Snapshot(fetching=_cached(V2)),
        [CancelFetch(V2.digest)],
    ),
    ("what is cached is started", Snapshot(wanted=(V1,), cached=_cached(V1)), [Start(V1)]),
    ("not twice", Snapshot(wanted=(V1,), cached=_cached(V1), verifying=frozenset({key_of(V1)})), []),
    (
        "what is loading is not routed",
        Snapshot(wanted=(V1,), cached=_cached(V1), engines=_engines((V1, STARTING))),
        [],
    ),
    (
        "what is ready is routed",
        Snapshot(wanted=(V1,), cached=_cached(V1), engines=_engines((V1, READY))),
        [Route((ALL_V1,))],
    ),
    (
        "a baseline in force is remembered",
        replace(SERVING_V1, good={}),
        [Remember(Good(V1))],
    ),
    (
        "a candidate that isn't ready leaves its share with the baseline",
        replace(CANARY, engines=_engines((V1, READY), (V2, STARTING)), routes=(ALL_V1,)),
        [],
    ),
    (
        "a candidate that fell over loses its share at once and is restarted",
        replace(CANARY, engines=_engines((V1, READY))),
        [Start(V2_CANDIDATE), Route((ALL_V1,))],
    ),
    (
        "a candidate in shadow gets copies only",
        replace(CANARY, wanted=(V1, SHADOW), routes=(ALL_V1,)),
        [Route((_route((V1, 100), mirror=_mirror_of(SHADOW)),))],
    ),
    (
        "nothing is copied while no comparator takes it",
        replace(CANARY, is_comparing=False),
        [Route((_route((V2, 10), (V1, 90)),))],
    ),
    (
        "a baseline that is restarted keeps its share, the candidate keeps to its own",
        replace(CANARY, engines=_engines((V1, STARTING), (V2, READY))),
        [Route((_route((V2, 10), (V1, 90)),))],
    ),
    (
        "a baseline that was started in vain too often is waited for no more",
        replace(SERVING_V1, engines={}, start_failures={key_of(V1): GAVE_UP}),
        [Route(())],
    ),
    (
        "no candidate is routed where no baseline ever served",
        replace(CANARY, engines=_engines((V1, STARTING), (V2, READY)), routes=(), good={}),
        [],
    ),
    (
        "promotion: the ready candidate takes all, then the old one is drained",
        replace(CANARY, wanted=(V2,)),
        [Route((_route((V2, 100)),))],
    ),
    (
        "promotion, once the route is in force",
        replace(CANARY, wanted=(V2,), routes=(_route((V2, 100)),)),
        [Drain(key_of(V1)), Remember(Good(V2, V1))],
    ),
    (
        "promotion, while the gateway doesn't say that it follows",
        replace(CANARY, wanted=(V2,), routes=(_route((V2, 100)),), is_routed=False),
        [],
    ),
    (
        "a new baseline that isn't here yet: the old one serves on",
        replace(SERVING_V1, wanted=(V2,)),
        [Fetch(V2)],
    ),
    (
        "and while it loads",
        replace(SERVING_V1, wanted=(V2,), cached=_cached(V1, V2), engines=_engines((V1, READY), (V2, STARTING))),
        [],
    ),
    (
        "and when it won't start at all",
        replace(SERVING_V1, wanted=(V2,), cached=_cached(V1, V2), start_failures={key_of(V2): GAVE_UP}),
        [],
    ),
    (
        "after a reboot the last good version comes back where the wanted one fails",
        Snapshot(wanted=(V2,), cached=_cached(V1, V2), good=HOLD, start_failures={key_of(V2): GAVE_UP}),
        [Start(V1)],
    ),
    (
        "or while it is fetched",
        Snapshot(wanted=(V2,), cached=_cached(V1), good=HOLD, fetching=_cached(V2)),
        [Start(V1)],
    ),
    (
        "a stand-in that loads is not drained",
        Snapshot(wanted=(V2,), cached=_cached(V1), good=HOLD, fetching=_cached(V2), engines=_engines((V1, STARTING))),
        [],
    ),
    (
        "rollback: the candidate's share goes back, nothing is downloaded",
        replace(CANARY, wanted=(V1,)),
        [Route((ALL_V1,))],
    ),
    (
        "rollback of a promoted version: the artifact is here still",
        Snapshot(
            wanted=(V1,),
            engines=_engines((V2, READY)),
            cached=_cached(V1, V2),
            good={MODEL: Good(V2, V1)},
            routes=(_route((V2, 100)),),
        ),
        [Start(V1)],
    ),
    (
        "a candidate that was taken back never stands in for a baseline that fell over",
        replace(CANARY, wanted=(V1,), engines=_engines((V2, READY)), routes=(ALL_V1,)),
        [Start(V1), Drain(key_of(V2))],
    ),
    (
        "a model that is taken away is unrouted, then drained",
        replace(SERVING_V1, wanted=()),
        [Route(())],
    ),
    (
        "a drained engine that doesn't end is killed",
        Snapshot(engines=_engines((V1, EngineState.DRAINING), since_s=NOW - DRAIN_TIMEOUT_S - 1)),
        [Kill(key_of(V1), "it took too long to finish its requests")],
    ),
    ("before that it is left in peace", Snapshot(engines=_engines((V1, EngineState.DRAINING), since_s=NOW - 1)), []),
    (
        "an engine that hangs is killed",
        replace(SERVING_V1, engines=_engines((V1, EngineState.HUNG))),
        [Kill(key_of(V1), "its loop stands still")],
    ),
    (
        "wanted again while it drains: it ends first",
        replace(SERVING_V1, engines=_engines((V1, EngineState.DRAINING), since_s=NOW - 1)),
        [],
    ),
    (
        "what nobody needs is evicted, the last two baselines are kept",
        replace(SERVING_V1, cached=_cached(V1, V2), parts=frozenset({"c" * 128}), good={MODEL: Good(V1, V2)}),
        [Evict("c" * 128)],
    ),
    ("a rolled back candidate is evicted", replace(SERVING_V1, cached=_cached(V1, V2)), [Evict(V2.digest)]),
]


@pytest.mark.parametrize(("snapshot", "actions"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(snapshot: Snapshot, actions: list[Action]) -> None:
    assert plan(snapshot, NOW) == actions


@pytest.mark.parametrize(
    ("snapshot", "state", "code", "weight"),
    [
        (Snapshot(wanted=(V1,)), "assigned", "", 0),
        (Snapshot(wanted=(V1,), fetching=_cached(V1)), "downloading", "", 0),
        (Snapshot(wanted=(V1,), fetch_failures={key_of(V1): LATER}), "downloading", "unreachable", 0),
        (
            Snapshot(wanted=(V1,), fetch_failures={key_of(V1): replace(LATER, is_refusal=True)}),
            "failed",
            "unreachable",
            0,
        ),
        (Snapshot(wanted=(V1,), verifying=frozenset({key_of(V1)})), "verifying", "", 0),
        (Snapshot(wanted=(V1,), engines=_engines((V1, STARTING))), "loading", "", 0),
        (Snapshot(wanted=(V1,), engines=_engines((V1, EngineState.WARMING))), "warming", "", 0),
        (Snapshot(wanted=(V1,), start_failures={key_of(V1): GAVE_UP}), "failed", "load_failed", 0),
        (SERVING_V1, "running", "", 100),
        (CANARY, "running", "", 90),
    ],
)
def test_progress(snapshot: Snapshot, state: str, code: str, weight: int) -> None:
    seen = progress(V1, snapshot)
    assert (seen.state, seen.code, seen.weight_in_force) == (state, code, weight)


VERSIONS = [deployment(f"v{n}", version=n) for n in (1, 2, 3)]


@st.composite
def _any_snapshot(draw: st.DrawFn) -> Snapshot:
    one = st.integers(0, 2)
    base, candidate, weight = draw(one), draw(one), draw(st.integers(0, 100))
    wanted = [replace(VERSIONS[base], weight=100 if base == candidate else 100 - weight)]
    if base != candidate:
        mirror = draw(st.sampled_from([0, 20]))
        wanted.append(replace(VERSIONS[candidate], role="candidate", weight=weight, mirror_percent=mirror))
    states = [draw(st.none() | st.sampled_from(list(EngineState))) for _ in VERSIONS]
    failures = [draw(st.none() | st.sampled_from([LATER, GAVE_UP])) for _ in VERSIONS]
    good = draw(st.none() | st.tuples(one, one))
    routed = draw(st.none() | one)
    return Snapshot(
        wanted=tuple(wanted),
        engines=_engines(*((version, state) for version, state in zip(VERSIONS, states, strict=True) if state)),
        cached=frozenset(VERSIONS[n].digest for n in draw(st.sets(one))),
        start_failures={key_of(v): failure for v, failure in zip(VERSIONS, failures, strict=True) if failure},
        good={MODEL: Good(VERSIONS[good[0]], VERSIONS[good[1]])} if good else {},
        routes=(_route((VERSIONS[routed], 100)),) if routed is not None else (),
    )


@settings(max_examples=200, deadline=None)
@given(_any_snapshot())
def test_what_no_plan_may_do(snapshot: Snapshot) -> None:
    actions = plan(snapshot, NOW)
    routes = next((action.routes for action in actions if isinstance(action, Route)), snapshot.routes)
    wanted = {key_of(d): d for d in snapshot.wanted}
    was_routed = {key for route in snapshot.routes for key in keys_of(route)}
    for route in routes if any(isinstance(action, Route) for action in actions) else ():
        assert sum(share.weight for share in route.shares) == 100
        for share in route.shares:
            engine = snapshot.engines.get(share.key)
            is_ready = engine is not None and engine.state == READY
            assert is_ready or share.key in was_routed  # ready, or being restarted where it was
            if share.key in wanted and wanted[share.key].role == "candidate":
                assert is_ready
                assert share.weight <= wanted[share.key].weight
        for key in (route.mirror.baseline, route.mirror.candidate) if route.mirror else ():
            assert snapshot.engines[key].state == READY
    in_force = was_routed | {key for route in routes for key in keys_of(route)}
    for action in actions:
        if isinstance(action, Drain):
            assert action.key not in in_force
            assert action.key not in wanted
        if isinstance(action, Evict):
            assert action.digest not in {key.digest for key in [*wanted, *snapshot.engines]}
        if isinstance(action, Start):
            assert action.deployment.digest in snapshot.cached
            assert key_of(action.deployment) not in snapshot.engines
