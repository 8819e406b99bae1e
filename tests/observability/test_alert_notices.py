"""Who is told what, and when: no database, no clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apps.observability.alert_notices import Cadence, Hush, Notice, Tell, Told, Topic, notices
from tests.observability.alert_lab import NODE, NOW

CADENCE = Cadence(wait_s=30, interval_s=300, repeat_s=14_400, heartbeat_s=60)
HEAT = UUID(int=11)
XID = UUID(int=12)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def topic(alert: UUID = HEAT, rule: str = "gpu-temperature", state: str = "firing", **changes: Any) -> Topic:
    fields = {"firing_at": NOW} | changes
    return Topic(alert, rule, NODE.id, state, **fields)


def ask(topics: list[Topic], told: dict[str, Told] | None = None, *, after_s: float) -> list[Notice]:
    known = {(rule, NODE.id): row for rule, row in (told or {}).items()}
    return notices(topics, known, frozenset({"heartbeat"}), CADENCE, at(after_s))


def test_a_new_group_waits_for_more_and_is_told_together() -> None:
    both = [topic(), topic(XID, "gpu-xid", firing_at=at(20))]
    assert ask(both, after_s=29) == []
    assert ask(both, after_s=30) == [Tell(HEAT, "alert.firing"), Tell(XID, "alert.firing")]


def test_a_known_group_tells_changes_every_interval() -> None:
    told = {"gpu-temperature": Told("firing", at(30))}
    both = [topic(), topic(XID, "gpu-xid", firing_at=at(60))]
    assert ask(both, told, after_s=300) == []
    assert ask(both, told, after_s=330) == [Tell(XID, "alert.firing")]


def test_an_end_is_told_and_then_nothing_more() -> None:
    told = {"gpu-temperature": Told("firing", at(30))}
    over = topic(state="resolved")
    assert ask([over], told, after_s=200) == []
    assert ask([over], told, after_s=330) == [Tell(HEAT, "alert.resolved")]
    assert ask([over], {"gpu-temperature": Told("resolved", at(330))}, after_s=99_999) == []


def test_a_flap_within_the_interval_tells_nothing() -> None:
    """It resolved and fired again as another row, of the same identity, before the interval was over."""
    again = topic(XID, "gpu-temperature", firing_at=at(200))
    assert ask([again], {"gpu-temperature": Told("firing", at(30))}, after_s=330) == []


def test_what_is_unchanged_is_repeated_until_somebody_acknowledges() -> None:
    told = {"gpu-temperature": Told("firing", at(0))}
    assert ask([topic()], told, after_s=14_399) == []
    assert ask([topic()], told, after_s=14_400) == [Tell(HEAT, "alert.firing", repeat=True)]
    assert ask([topic(acknowledged=True)], told, after_s=14_400) == []


def test_an_acknowledged_alert_still_tells_that_it_is_over() -> None:
    over = topic(state="resolved", acknowledged=True)
    assert ask([over], {"gpu-temperature": Told("firing", at(0))}, after_s=300) == [Tell(HEAT, "alert.resolved")]


def test_a_ticket_that_becomes_a_page_is_told() -> None:
    told = {"gpu-temperature": Told("firing", at(0), severity="ticket")}
    worse = topic(severity="page", acknowledged=True)
    assert ask([worse], told, after_s=299) == []
    assert ask([worse], told, after_s=300) == [Tell(HEAT, "alert.firing")]
    assert (
        ask([topic(severity="ticket")], {"gpu-temperature": Told("firing", at(0), severity="page")}, after_s=300) == []
    )


def test_no_data_is_told_as_itself() -> None:
    told = {"gpu-temperature": Told("firing", at(0))}
    assert ask([topic(state="no_data")], told, after_s=300) == [Tell(HEAT, "alert.no_data")]
    never_fired = topic(state="no_data", firing_at=None)
    assert ask([never_fired], after_s=9_999) == []


def test_pending_is_told_to_nobody() -> None:
    assert ask([topic(state="pending", firing_at=None)], after_s=9_999) == []


def test_the_muted_are_not_told() -> None:
    assert ask([topic(inhibited=True)], after_s=9_999) == []
    assert ask([topic(silenced=True)], after_s=9_999) == []


def test_what_a_silence_muted_is_told_anew_when_it_ends() -> None:
    told = {"gpu-temperature": Told("firing", at(0))}
    assert ask([topic(silenced=True)], told, after_s=60) == [Hush(HEAT)]
    hushed = {"gpu-temperature": Told("firing", at(0), again=True)}
    assert ask([topic(silenced=True)], hushed, after_s=120) == []
    assert ask([topic()], hushed, after_s=299) == []
    assert ask([topic()], hushed, after_s=300) == [Tell(HEAT, "alert.firing")]


def test_what_ends_under_a_silence_is_told_to_those_who_know_that_it_began() -> None:
    hushed = {"gpu-temperature": Told("firing", at(0), again=True)}
    over = topic(state="resolved", silenced=True)
    assert ask([over], hushed, after_s=300) == [Tell(HEAT, "alert.resolved")]


def test_inhibition_that_ends_tells_only_what_is_not_known() -> None:
    assert ask([topic()], {"gpu-temperature": Told("firing", at(0))}, after_s=9_999) == []
    assert ask([topic()], after_s=30) == [Tell(HEAT, "alert.firing")]


def test_the_heartbeat_beats() -> None:
    beat = topic(XID, "heartbeat")
    assert ask([beat], after_s=0) == [Tell(XID, "alert.heartbeat")]
    assert ask([beat], {"heartbeat": Told("firing", at(0))}, after_s=59) == []
    assert ask([beat], {"heartbeat": Told("firing", at(0))}, after_s=60) == [Tell(XID, "alert.heartbeat")]
