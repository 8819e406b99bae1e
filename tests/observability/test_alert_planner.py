"""What becomes of an alert, by table: no database, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.observability.alert_planner import inhibitions, plan
from apps.observability.alert_plans import Inhibit, Member, Move, Observation, Open, Update
from tests.observability.alert_lab import FOR_S, NODE, NOW, RULES, hot, snapshot, view


def moves(actions: list[Any]) -> list[str]:
    return [action.to for action in actions if isinstance(action, Move)]


@pytest.mark.parametrize(
    ("state", "fired", "seen", "silent", "after_s", "expected"),
    [
        # holds
        ("pending", False, True, False, FOR_S - 1, []),
        ("pending", False, True, False, FOR_S, ["firing"]),
        ("firing", True, True, False, 9_999, []),
        ("no_data", True, True, False, 1, ["firing"]),
        ("no_data", False, True, False, 9_999, ["pending"]),
        # does not hold
        ("pending", False, False, False, 1, ["resolved"]),
        ("firing", True, False, False, 119, []),
        ("firing", True, False, False, 120, ["resolved"]),
        ("no_data", True, False, False, 120, ["resolved"]),
        ("no_data", True, False, False, 60, ["firing"]),  # its keep_firing_for is not over
        ("no_data", False, False, False, 60, ["resolved"]),
        # can't be judged: never resolves, however long
        ("pending", False, False, True, 9_999, ["no_data"]),
        ("firing", True, False, True, 1, ["no_data"]),
        ("firing", True, False, True, 999_999, ["no_data"]),
        ("no_data", True, False, True, 999_999, []),
        # judged although other GPUs of the node are silent
        ("firing", True, True, True, 1, []),
    ],
)
def test_next_state(state: str, fired: bool, seen: bool, silent: bool, after_s: float, expected: list[str]) -> None:
    alert = view(state, firing_at=NOW if fired else None)
    world = snapshot([alert], [hot(5)] if seen else [], silent=frozenset({NODE.id}) if silent else frozenset())
    assert moves(plan(world, NOW + timedelta(seconds=after_s))) == expected


def test_what_holds_opens_once_with_a_sentence() -> None:
    actions = plan(snapshot(observations=[hot(*range(8))]), NOW)
    assert [type(action) for action in actions] == [Open]
    opened = actions[0]
    assert isinstance(opened, Open)
    assert opened.summary == "node-2: 8 of 8 GPUs run 16 °C above their usual; looks like the host's cooling, not a GPU"
    assert (opened.severity, len(opened.observation.members)) == ("ticket", 8)


def test_members_come_and_go_in_one_alert() -> None:
    alert = view("firing", gpus=frozenset({"GPU-1"}))
    actions = plan(snapshot([alert], [hot(1, 2, 3)]), NOW)
    assert [type(action) for action in actions] == [Update]
    assert isinstance(actions[0], Update)
    assert [member.index for member in actions[0].observation.members] == [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["resolved"]),
        ({"unheard": frozenset({"GPU-9"})}, ["resolved"]),  # not one that it is about
        ({"unheard": frozenset({"GPU-5"})}, ["no_data"]),  # the one that may still be hot
        ({"blind": True}, ["no_data"]),
    ],
)
def test_an_anomaly_clears_only_when_it_is_known_to(changes: dict[str, Any], expected: list[str]) -> None:
    alert = view("firing", gpus=frozenset({"GPU-4", "GPU-5"}))
    assert moves(plan(snapshot([alert], **changes), NOW + timedelta(hours=1))) == expected


@pytest.mark.parametrize("rule", ["gpu-xid", "gpu-lost", "gpu-ecc", "gpu-throttled", "no-telemetry"])
def test_what_a_node_reports_clears_only_while_it_polls(rule: str) -> None:
    later = NOW + timedelta(hours=1)
    assert moves(plan(snapshot([view("firing", rule)], away=frozenset({NODE.id})), later)) == ["no_data"]
    assert moves(plan(snapshot([view("firing", rule)]), later)) == ["resolved"]


def test_missing_data_opens_nothing() -> None:
    assert plan(snapshot(silent=frozenset({NODE.id})), NOW) == []


@pytest.mark.parametrize("state", ["pending", "firing", "no_data"])
def test_what_is_no_longer_watched_resolves(state: str) -> None:
    alert = view(state, firing_at=NOW)
    gone = plan(snapshot([alert], [], present=frozenset()), NOW)
    assert moves(gone) == ["resolved"]
    off = {**RULES, "gpu-temperature": replace(RULES["gpu-temperature"], enabled=False)}
    assert moves(plan(snapshot([alert], [hot(1)], rules=off), NOW)) == ["resolved"]
    assert plan(snapshot([], [hot(1)], rules=off), NOW) == []


def test_node_down_makes_its_reports_unjudgeable() -> None:
    xid = view("firing", "gpu-xid")
    world = snapshot([xid], away=frozenset({NODE.id}))
    assert moves(plan(world, NOW + timedelta(hours=1))) == ["no_data"]


def test_heat_becomes_a_page_when_clocks_are_slowed() -> None:
    slowed = Observation("gpu-throttled", NODE, (Member("GPU-1", 1),), gpus=8, node_id=NODE.id)
    alone = plan(snapshot(observations=[hot(1)]), NOW)
    both = plan(snapshot(observations=[hot(1), slowed]), NOW)
    severity = {action.observation.rule: action.severity for action in both if isinstance(action, Open)}
    assert isinstance(alone[0], Open)
    assert alone[0].severity == "ticket"
    assert severity == {"gpu-temperature": "page", "gpu-throttled": "ticket"}


GPU_1 = frozenset({"GPU-1"})
ALL = frozenset(f"GPU-{index}" for index in range(8))


@pytest.mark.parametrize(
    ("upper", "lower", "muted"),
    [
        (view("firing", "node-down"), view("firing", "gpu-xid", gpus=GPU_1), True),
        (view("firing", "node-down"), view("no_data", "gpu-temperature", gpus=ALL), True),
        (view("pending", "node-down"), view("firing", "gpu-xid"), False),
        (view("firing", "gpu-xid", gpus=GPU_1), view("firing", "gpu-temperature", gpus=GPU_1), True),
        # a broken GPU does not explain why seven others are hot
        (view("firing", "gpu-xid", gpus=GPU_1), view("firing", "gpu-temperature", gpus=ALL), False),
        (view("firing", "gpu-xid", gpus=GPU_1), view("firing", "model-slo"), True),
        (view("firing", "gpu-temperature", gpus=ALL), view("firing", "model-slo"), True),
        (view("firing", "gpu-temperature", gpus=GPU_1), view("firing", "gpu-memory-temperature", gpus=ALL), True),
        (view("pending", "gpu-temperature", gpus=ALL), view("firing", "gpu-memory-temperature", gpus=ALL), True),
        (view("no_data", "gpu-temperature", gpus=ALL), view("firing", "gpu-memory-temperature", gpus=ALL), False),
        (view("firing", "no-telemetry"), view("no_data", "gpu-temperature", gpus=ALL), True),
        (view("firing", "no-telemetry"), view("firing", "gpu-xid", gpus=GPU_1), False),
        (view("firing", "gpu-temperature", gpus=ALL), view("firing", "gpu-power", gpus=GPU_1), True),
        (view("firing", "gpu-temperature", gpus=ALL, node_id=None), view("firing", "gpu-power", gpus=GPU_1), False),
    ],
)
def test_which_alert_speaks_for_which(upper: Any, lower: Any, muted: bool) -> None:
    changes = {action.alert: action.by for action in inhibitions([lower, upper])}
    assert changes.get(upper.id) is None
    assert changes.get(lower.id) == (upper.id if muted else None)


def test_an_alert_speaks_for_itself_again() -> None:
    lower = view("firing", "gpu-power", gpus=GPU_1, inhibited_by=NODE.id)
    seen = hot(1, rule="gpu-power", excess=100)
    actions = plan(snapshot([lower], [seen]), NOW)
    assert Inhibit(lower.id, None) in actions


def test_the_same_question_has_the_same_answer() -> None:
    world = snapshot([view("pending"), view("firing", "gpu-xid", gpus=GPU_1)], [hot(1), hot(2, rule="gpu-power")])
    assert plan(world, NOW) == plan(world, NOW)
