"""Pages of alerts over the test client: the inbox, an alert, silences, the badge, the node's fragment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.actors import Actor
from apps.access.models import User
from apps.audit.transitions import record
from apps.fleet.models import Node
from apps.observability import alert_services
from apps.observability.alert_models import Alert, Silence
from tests.fleet import builders
from tests.observability.alert_lab import WatchedFleet

SignIn = Callable[[User], Client]
HTMX = {"HX-Request": "true", "HX-Target": "div#results"}
pytestmark = pytest.mark.django_db


@pytest.fixture
def watched(world: builders.World, now: datetime, monkeypatch: pytest.MonkeyPatch) -> WatchedFleet:
    fleet = WatchedFleet(world, now)
    fleet.install(monkeypatch)
    return fleet


@pytest.fixture
def hot_node(watched: WatchedFleet) -> Node:
    """node-2 with a firing heat alert, its memory's heat explained by it."""
    node = watched.add_node("node-2")
    watched.heat(node)
    watched.heat(node, metric="memory_temperature_c")
    watched.run(360)
    return node


def firing() -> Alert:
    return Alert.objects.get(rule="gpu-temperature")


def test_empty_pages_say_what_to_do(viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    assert "Nothing is wrong" in client.get("/alerts/").text
    assert "Nothing is silenced" in client.get("/silences/").text
    assert "No alert matches" in client.get("/alerts/?severity=page").text
    assert "firing</a>" not in client.get("/alerts/").text


def test_an_inbox_that_nobody_fills_says_so(
    hot_node: Node, watched: WatchedFleet, viewer: User, signed_in: SignIn
) -> None:
    client = signed_in(viewer)
    assert "look whether the worker runs" not in client.get("/alerts/").text.lower()
    Alert.objects.filter(rule="heartbeat").update(bad_at=datetime.now(UTC) - timedelta(minutes=5))
    assert "Look whether the worker runs" in client.get("/alerts/").text


def test_the_inbox_shows_what_fires_first(
    hot_node: Node, watched: WatchedFleet, viewer: User, signed_in: SignIn
) -> None:
    other = watched.add_node("node-3")
    watched.heat(other, 1)
    watched.report(hot_node, "GpuXid", "GPU 3 (Xid 79): an error.")
    watched.run(10, step=5)
    page = signed_in(viewer).get("/alerts/").text
    order = [
        page.index(text) for text in ("reports Xid 79", "8 of 8 GPUs run 16", "run their memory", "GPU 1 of node-3")
    ]
    assert order == sorted(order)
    assert page.count('class="badge">simulated') == 4
    assert "explained by" in page
    assert "2 firing</a>" in page  # not what another alert explains
    assert "data-hotkey" not in page  # a viewer acts on nothing


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("severity=page", []),
        ("severity=ticket", ["gpu-temperature", "gpu-memory-temperature"]),
        ("rule=gpu-temperature", ["gpu-temperature"]),
        ("node=node-2&state=firing", ["gpu-temperature", "gpu-memory-temperature"]),
        ("node=node-9", []),
        ("q=memory", ["gpu-memory-temperature"]),
        ("state=resolved", []),
        ("state=all", ["gpu-temperature", "gpu-memory-temperature"]),
    ],
)
def test_filters(query: str, shown: list[str], hot_node: Node, viewer: User, signed_in: SignIn) -> None:
    answer = signed_in(viewer).get(f"/alerts/?{query}")
    assert [alert.rule_id for alert, _ in answer.context["rows"]] == shown


def test_a_poll_without_news_answers_204(hot_node: Node, operator: User, signed_in: SignIn) -> None:
    client = signed_in(operator)
    part = client.get("/alerts/", headers=HTMX).text
    seen = part.rpartition('name="seen" value="')[2].partition('"')[0]
    assert client.get(f"/alerts/?seen={seen}", headers=HTMX).status_code == 204


def test_acknowledging_from_the_inbox(hot_node: Node, operator: User, signed_in: SignIn) -> None:
    client = signed_in(operator)
    alert = firing()
    form = {"revision": alert.revision, "next": "/alerts/?severity=ticket"}
    answer = client.post(f"/alerts/{alert.pk}/acknowledge", form)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/alerts/?severity=ticket")
    alert.refresh_from_db()
    assert (alert.acknowledged_by, alert.owner) == (operator, operator)
    assert "acknowledged" in client.get("/alerts/").text


def test_nobody_is_sent_elsewhere(hot_node: Node, operator: User, signed_in: SignIn) -> None:
    alert = firing()
    answer = signed_in(operator).post(f"/alerts/{alert.pk}/acknowledge", {"next": "https://evil.example/"})
    assert answer.headers["Location"] == f"/alerts/{alert.pk}/"


def test_an_old_page_decides_nothing(hot_node: Node, watched: WatchedFleet, operator: User, signed_in: SignIn) -> None:
    alert = firing()
    answer = signed_in(operator).post(f"/alerts/{alert.pk}/acknowledge", {"revision": alert.revision - 1})
    assert answer.status_code == 409
    assert "has changed since you looked" in answer.text
    alert.refresh_from_db()
    assert alert.acknowledged_at is None


def test_the_alert_page(hot_node: Node, watched: WatchedFleet, operator: User, signed_in: SignIn) -> None:
    alert = firing()
    page = signed_in(operator).get(f"/alerts/{alert.pk}/").text
    for text in (
        "8 of 8 GPUs run 16 °C above their usual; looks like the host",
        "8 of 8 in node-2",
        "59.0 to 65.0 °C",
        "7 °C until clocks are slowed (at 85 °C)",
        "Drain the node and check its airflow",
        "none is on its way on this node",
        "/series.json?metric=temperature_c&amp;gpu=GPU-node-2-",
        "Nobody yet: it is repeated",
    ):
        assert text in page, text
    assert page.count("simulated") >= 9


def test_an_alert_that_is_over_offers_nothing(
    hot_node: Node, watched: WatchedFleet, operator: User, signed_in: SignIn
) -> None:
    watched.cool()
    watched.run(180)
    page = signed_in(operator).get(f"/alerts/{firing().pk}/").text
    assert "Resolved" in page
    assert "data-hotkey" not in page
    assert '<dialog id="silence"' not in page


def test_what_came_before_is_listed(hot_node: Node, watched: WatchedFleet, operator: User, signed_in: SignIn) -> None:
    record(hot_node, "drill.started", actor=Actor.person(operator), reason="fan 2 off", now=firing().pending_at)
    alert = firing()
    before = alert.pending_at - timedelta(minutes=2)
    record(hot_node, "node.cordoned", actor=Actor.person(operator), reason="dusting", now=before)
    page = signed_in(operator).get(f"/alerts/{alert.pk}/").text
    assert "node cordoned: “dusting”" in page


def test_silences_are_made_shown_and_ended(hot_node: Node, operator: User, signed_in: SignIn) -> None:
    client = signed_in(operator)
    form = client.get("/silences/new?rule=gpu-temperature&node=node-2").text
    assert 'value="gpu-temperature"' in form
    refused = client.post("/silences/new", {"node": "node-2", "minutes": "30", "reason": " "})
    assert (refused.status_code, "Say why you silence it" in refused.text) == (400, True)
    assert 'value="node-2"' in refused.text  # what was typed is still there
    made = client.post("/silences/new", {"node": "node-2", "minutes": "30", "reason": "fan change"})
    assert made.status_code == 302
    silence = Silence.objects.get()
    assert silence.matchers == {"node": "node-2"}
    assert "fan change" in client.get("/silences/").text
    assert "Silenced by operator" in client.get(f"/alerts/{firing().pk}/").text
    assert "firing</a>" not in client.get("/alerts/").text
    client.post(f"/silences/{silence.pk}/end", {"reason": "done early"})
    assert "done early" in client.get("/silences/?state=over").text


@pytest.mark.parametrize("minutes", ["", "-1", "x", "99999999", "0"])
def test_bad_lengths_come_back_with_the_form(minutes: str, operator: User, team: Any, signed_in: SignIn) -> None:
    answer = signed_in(operator).post("/silences/new", {"node": "node-2", "minutes": minutes, "reason": "why"})
    assert answer.status_code in (400, 422)
    assert "node-2" in answer.text


def test_the_nodes_fragment(hot_node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    assert "8 of 8 GPUs run 16" in client.get("/fragments/alerts/node/node-2").text
    assert "It has had none" in client.get("/fragments/alerts/node/node-9").text


def test_other_teams_alerts_do_not_exist(
    hot_node: Node, operator: User, outsider: User, watched: WatchedFleet, signed_in: SignIn
) -> None:
    silence = alert_services.create_silence(
        team=watched.world.team,
        matchers={"zone": "zone-c"},
        reason="works",
        expires_at=watched.now + timedelta(hours=1),
        actor=Actor.person(operator),
        now=watched.now,
    )
    client = signed_in(outsider)
    assert "node-2" not in client.get("/alerts/?state=all").text
    assert "zone-c" not in client.get("/silences/").text
    assert "16 °C" not in client.get("/fragments/alerts/node/node-2").text
    assert client.get(f"/alerts/{firing().pk}/").status_code == 404
    assert client.post(f"/alerts/{firing().pk}/acknowledge", {}).status_code == 404
    assert client.post(f"/silences/{silence.pk}/end", {"reason": "mine now"}).status_code == 404


@pytest.mark.parametrize("path", ["/alerts/", "/silences/", "/silences/new"])
def test_strangers_are_sent_to_sign_in(path: str, client: Client) -> None:
    assert client.get(path).status_code == 302


def test_unknown_actions_are_refused(hot_node: Node, operator: User, signed_in: SignIn) -> None:
    assert signed_in(operator).post(f"/alerts/{firing().pk}/explode", {}).status_code == 404


def test_query_count_does_not_grow(hot_node: Node, watched: WatchedFleet, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert client.get("/alerts/").status_code == 200
        return len(seen)

    few = queries()
    for number in range(3, 8):
        watched.heat(watched.add_node(f"node-{number}"))
    watched.run(360)
    assert queries() == few
