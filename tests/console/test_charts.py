"""Charts' data over HTTP: JSON and CSV, scoped by team; the explore page, and what pages of nodes and models show."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client

from apps.access.models import User
from apps.audit.models import Event
from apps.fleet import services as fleet
from apps.fleet.models import Gpu, GpuHealth, Node
from apps.observability import detection, samples
from tests.fleet import builders
from tests.fleet.builders import World
from tests.observability import gpu_history

SignIn = Callable[[User], Client]


@pytest.fixture
def node(world: World, now: datetime) -> Node:
    """A node with two GPUs, one of them simulated, with six hours of minutes."""
    found, _ = builders.enrol(world, "node-1", now)
    for index in range(2):
        Gpu.objects.create(
            uuid=f"GPU-{index}", node=found, index=index, name="A100", memory_bytes=80, simulated=index == 1
        )
    gpu_history.fill(found, now)
    return found


def told(client: Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/series.json", query)
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_points_of_a_node_are_on_one_grid(node: Node, viewer: User, signed_in: SignIn) -> None:
    data = told(signed_in(viewer), metric="temperature_c", node="node-1", range="1h")
    assert (data["unit"], data["step_s"], data["live"]) == ("°C", 60, True)
    assert [(line["label"], line["simulated"]) for line in data["series"]] == [
        ("node-1 GPU 0", False),
        ("node-1 GPU 1", True),
    ]
    steps = {later - earlier for earlier, later in zip(data["times"], data["times"][1:], strict=False)}
    assert steps == {60}
    assert 58 <= len(data["times"]) <= 61
    for line in data["series"]:
        assert len(line["mean"]) == len(line["low"]) == len(line["high"]) == len(data["times"])
        assert all(50 < value < 80 for value in line["mean"] if value is not None)
    assert data["band"] is None


def test_shares_are_told_in_percent_and_bytes_in_gigabytes(node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    share = told(client, metric="utilization_ratio", gpu="GPU-0")
    assert share["unit"] == "%"
    assert 20 < max(share["series"][0]["mean"]) <= 100
    used = told(client, metric="memory_used_bytes", gpu="GPU-0")
    assert (used["unit"], used["series"][0]["mean"][0]) == ("GB", 21.4)


def test_a_gap_in_the_data_is_a_gap_in_the_line(node: Node, viewer: User, signed_in: SignIn, now: datetime) -> None:
    other = Gpu.objects.create(uuid="GPU-9", node=node, index=9, name="A100", memory_bytes=80)
    minutes = np.arange((now - timedelta(hours=2)).timestamp() // 60 * 60, (now - timedelta(hours=1)).timestamp(), 60)
    kept = np.delete(minutes, slice(20, 30))
    samples.copy_history(other.number, {"power_w": kept * 0 + 300.0}, kept, False)
    line = told(signed_in(viewer), metric="power_w", gpu="GPU-9", range="3h")["series"][0]
    assert [value is None for value in line["mean"]] == [20 <= at < 30 for at in range(len(minutes))]


def test_only_news_are_sent_and_none_are_204(node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    whole = told(client, node="node-1", range="6h")
    after = whole["times"][-3]
    news = told(client, node="node-1", range="6h", after=after)
    assert news["times"] == whole["times"][-3:]
    assert news["series"][0]["mean"] == whole["series"][0]["mean"][-3:]
    again = client.get("/series.json", {"node": "node-1", "range": "6h", "after": after, "seen": news["seen"]})
    assert (again.status_code, again.content) == (204, b"")


def test_one_gpu_has_what_is_expected_of_it_behind_it(
    node: Node, viewer: User, signed_in: SignIn, now: datetime
) -> None:
    """Of two GPUs the bands would lie over each other, so there is none."""
    gpu_history.fill(node, now, hours=60)
    detection.detect(now - timedelta(minutes=20))
    detection.detect(now)
    client = signed_in(viewer)
    query = {"metric": "temperature_c", "gpu": "GPU-0", "range": "1h", "band": "1"}
    data = told(client, **query)
    band = data["band"]
    known = [at for at, value in enumerate(band["expected"]) if value is not None]
    assert len(known) >= 15
    assert all(band["low"][at] < band["expected"][at] < band["high"][at] for at in known)
    assert len(band["low"]) == len(data["times"]) == len(data["series"][0]["mean"])
    answer = client.get("/series.csv", query)
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))  # type: ignore[attr-defined]
    assert sum(bool(row["expected"]) for row in rows) >= 15
    assert told(client, metric="temperature_c", node="node-1", band="1")["band"] is None
    assert told(client, metric="temperature_c", gpu="GPU-0")["band"] is None


def test_a_fixed_window_does_not_live(node: Node, viewer: User, signed_in: SignIn, now: datetime) -> None:
    since, until = now - timedelta(hours=3), now - timedelta(hours=2)
    data = told(signed_in(viewer), node="node-1", **{"from": since.isoformat(), "to": until.isoformat()})
    assert data["live"] is False
    assert (data["from"], data["to"]) == (int(since.timestamp()), int(until.timestamp()))
    assert since.timestamp() - 60 <= data["times"][0] <= data["times"][-1] < until.timestamp()


def test_nodes_are_compared_by_their_gpus_mean(
    world: World, node: Node, viewer: User, signed_in: SignIn, now: datetime
) -> None:
    other, _ = builders.enrol(world, "node-2", now)
    Gpu.objects.create(uuid="GPU-8", node=other, index=0, name="A100", memory_bytes=80)
    gpu_history.fill(other, now)
    query = {"metric": "temperature_c", "node": ["node-1", "node-2"], "range": "1h"}
    client = signed_in(viewer)
    apart, folded = told(client, **query), told(client, **query, by="node")
    assert [line["label"] for line in folded["series"]] == ["node-1", "node-2"]
    each = [line["mean"][-1] for line in apart["series"][:2]]
    assert folded["series"][0]["mean"][-1] == pytest.approx(sum(each) / 2, abs=0.01)
    assert folded["series"][0]["low"][-1] == min(line["low"][-1] for line in apart["series"][:2])
    only = told(client, metric="temperature_c", node=["node-1", "node-2"], index="0")
    assert [line["label"] for line in only["series"]] == ["node-1 GPU 0", "node-2 GPU 0"]


def test_csv_holds_the_same_points_in_stored_units(node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    query = {"metric": "utilization_ratio", "node": "node-1", "range": "1h"}
    answer = client.get("/series.csv", query)
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert "attachment; filename=" in answer.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))  # type: ignore[attr-defined]
    data = told(client, **query)
    assert len(rows) == sum(value is not None for line in data["series"] for value in line["mean"])
    assert 100 * float(rows[0]["utilization_ratio"]) == pytest.approx(data["series"][0]["mean"][0], abs=0.01)
    assert {row["simulated"] for row in rows} == {"true", "false"}
    assert {row["key"] for row in rows} == {"GPU-0", "GPU-1"}


def test_a_cell_is_never_a_formula(node: Node, viewer: User, signed_in: SignIn, now: datetime) -> None:
    """A GPU's UUID is whatever its node says."""
    gpu = Gpu.objects.create(uuid='=HYPERLINK("x")', node=node, index=7, name="A100", memory_bytes=80)
    past = np.arange(now.timestamp() // 60 * 60 - 1_800, now.timestamp() - 600, 60)
    samples.copy_history(gpu.number, gpu_history.figures(gpu, past), past, False)
    answer = signed_in(viewer).get("/series.csv", {"gpu": gpu.uuid})
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))  # type: ignore[attr-defined]
    assert rows[0]["key"].startswith("'=")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("metric=no_such", 400, "unknown_metric"),
        ("range=6y", 400, "bad_range"),
        ("range=0h", 400, "bad_range"),
        ("range=9999d", 400, "bad_range"),
        ("from=yesterday", 400, "bad_parameter"),
        ("from=2026-01-02&to=2026-01-01", 400, "bad_range"),
        ("from=0001-01-01T00:00:00%2B23:59", 400, "bad_parameter"),
        ("by=zone", 400, "bad_parameter"),
        ("index=x", 400, "bad_parameter"),
        ("gpu=GPU-none", 404, "gpu_not_found"),
        ("node=nowhere", 404, "node_not_found"),
        ("metric=requests&model=none", 404, "model_not_found"),
        ("metric=requests&model=digits&range=30d", 400, "bad_range"),
    ],
)
@pytest.mark.parametrize("path", ["/series.json", "/series.csv", "/explore/"])
def test_what_makes_no_sense_gets_a_sentence(
    path: str, query: str, status: int, code: str, node: Node, viewer: User, signed_in: SignIn
) -> None:
    answer = signed_in(viewer).get(f"{path}?{query}")
    if path == "/explore/":
        assert answer.status_code in (status, 200)  # the page itself reads only what it needs
        return
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == code


def test_too_many_series_are_refused(world: World, node: Node, viewer: User, signed_in: SignIn) -> None:
    Gpu.objects.bulk_create(
        Gpu(uuid=f"GPU-x{number}", node=node, index=number, name="A100", memory_bytes=80) for number in range(10, 60)
    )
    answer = signed_in(viewer).get("/series.json?node=node-1")
    assert (answer.status_code, answer.json()["code"]) == (400, "too_many_series")
    assert signed_in(viewer).get("/series.json?node=node-1&by=node").status_code == 200


def test_other_teams_series_do_not_exist(node: Node, outsider: User, signed_in: SignIn) -> None:
    client = signed_in(outsider)
    for query in ("gpu=GPU-0", "node=node-1"):
        assert client.get(f"/series.json?{query}").status_code == 404
        assert client.get(f"/series.csv?{query}").status_code == 404
    assert "node-1" not in client.get("/explore/").content.decode()
    assert client.get("/fragments/node-charts/node-1").status_code == 404
    assert client.get("/fragments/node-gpus/node-1").status_code == 404


def test_strangers_get_no_points(node: Node, client: Client) -> None:
    answer = client.get("/series.json?node=node-1")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_signed_in")
    assert client.get("/explore/").status_code == 302


def test_what_happened_is_marked(node: Node, world: World, viewer: User, signed_in: SignIn, now: datetime) -> None:
    builders.activate(node, now)
    fleet.cordon_node(node, actor=world.actor, reason="Fan noise.", now=now)
    data = told(signed_in(viewer), node="node-1", range="1h", to=(now + timedelta(seconds=30)).isoformat())
    assert Event.objects.filter(verb="node.cordoned").exists()
    said = [marker for marker in data["markers"] if "cordoned" in marker["label"]]
    assert [(marker["kind"], marker["label"]) for marker in said] == [("event", "node-1 cordoned: Fan noise.")]


def test_alerts_are_marked_as_long_as_they_fire(
    node: Node, world: World, viewer: User, signed_in: SignIn, now: datetime
) -> None:
    def told_of(alert: str, verb: str, minutes_ago: float) -> None:
        Event.objects.create(
            team_id=world.team.pk, actor_kind="system", actor_label="farrier", verb=verb, object_id=alert,
            object_type="observability.alert", object_label="gpu-temperature on node-1",
            at=now - timedelta(minutes=minutes_ago),
        )  # fmt: skip

    told_of("over", "alert.firing", 40)
    told_of("over", "alert.resolved", 30)
    told_of("fires", "alert.firing", 10)
    told_of("long ago", "alert.firing", 90)
    told_of("long ago", "alert.resolved", 80)
    data = told(signed_in(viewer), node="node-1", range="1h")
    spans = [(each["time"], each["until"]) for each in data["markers"] if each["kind"] == "alert"]
    second = int(now.timestamp())
    assert spans[0] == (second - 2_400, second - 1_800)
    assert spans[1][0] == second - 600
    assert spans[1][1] >= data["to"]
    assert len(spans) == 2


def test_requests_are_series_too(lab: Any, viewer: User, signed_in: SignIn) -> None:
    lab.run(30)
    window = {"from": (lab.now - timedelta(hours=1)).isoformat(), "to": lab.now.isoformat()}
    data = told(signed_in(viewer), metric="requests", model="digits", **window)
    assert [line["label"] for line in data["series"]] == ["digits v1"]
    assert sum(value or 0 for value in data["series"][0]["mean"]) > 0


def test_explore_without_a_choice_offers_some(node: Node, viewer: User, signed_in: SignIn) -> None:
    text = signed_in(viewer).get("/explore/").content.decode()
    assert "Nothing is chosen yet" in text
    assert "?node=node-1" in text


def test_explore_draws_what_the_address_says(node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    text = client.get("/explore/?node=node-1&metric=power_w&range=6h").content.decode()
    assert text.count("data-chart ") == 1
    assert "/series.json?metric=power_w&amp;node=node-1&amp;range=6h" in text
    assert ">simulated<" in text
    each = client.get("/explore/?node=node-1&charts=each&band=1").content.decode()
    assert each.count("data-chart ") == 2
    assert each.count(">simulated<") == 1


def test_explore_shows_a_table_without_javascript(node: Node, viewer: User, signed_in: SignIn) -> None:
    text = signed_in(viewer).get("/explore/?node=node-1&range=15m&view=table").content.decode()
    assert text.count("<tr>") > 10
    assert "node-1 GPU 1" in text


def test_a_bad_field_comes_back_with_what_was_typed(node: Node, viewer: User, signed_in: SignIn) -> None:
    answer = signed_in(viewer).get("/explore/?node=nowhere&node=node-1")
    text = answer.content.decode()
    assert answer.status_code == 404
    assert "There is no node «nowhere»" in text
    assert 'value="nowhere" checked' in text


def test_a_nodes_page_shows_its_gpus(node: Node, viewer: User, signed_in: SignIn, now: datetime) -> None:
    node.gpus.filter(index=1).update(health=GpuHealth.HOT, health_reason="16 °C above its usual", health_since=now)
    text = signed_in(viewer).get("/fleet/nodes/node-1/").content.decode()
    assert text.count("data-chart ") == 4
    assert "16 °C above its usual" in text
    assert "No data" in text  # of GPU 0 nothing is known but its samples


def test_newest_figures_are_polled(node: Node, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    headers = {"HX-Request": "true", "HX-Target": "div#gpus"}
    first = client.get("/fragments/node-gpus/node-1", headers=headers)
    text = first.content.decode()
    assert "21.4 GB" in text
    seen = text.rpartition('name="seen" value="')[2].partition('"')[0]
    assert client.get("/fragments/node-gpus/node-1", {"seen": seen}, headers=headers).status_code == 204


def test_a_node_without_gpus_has_no_charts(world: World, viewer: User, signed_in: SignIn, now: datetime) -> None:
    builders.enrol(world, "node-3", now)
    text = signed_in(viewer).get("/fleet/nodes/node-3/").content.decode()
    assert "data-chart" not in text
    assert "it serves on its CPU" in text


def test_times_are_utc(node: Node, viewer: User, signed_in: SignIn, now: datetime) -> None:
    text = signed_in(viewer).get("/explore/?node=node-1&view=table&range=15m").content.decode()
    assert now.astimezone(UTC).strftime("%Y-%m-%d %H:") in text or "00:0" in text
