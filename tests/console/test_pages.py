"""What every page owes: sign-in, the team's things only, a constant number of queries, 204 without news."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.fleet.models import Gpu, Node
from apps.models.models import ModelVersion, RegisteredModel
from apps.rollouts.models import Rollout
from tests.fleet import builders
from tests.rollouts.lab import Lab

PAGES = (
    "/",
    "/models/",
    "/rollouts/",
    "/rollouts/new",
    "/fleet/",
    "/fleet/?view=list",
    "/holds/",
    "/audit/",
    "/tokens/",
)
SignIn = Callable[[User], Client]


@pytest.mark.parametrize("path", [*PAGES, "/models/digits/", "/fleet/nodes/node-1/"])
def test_strangers_are_sent_to_sign_in(db: None, client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith("/login?next=/")


def test_a_poll_without_a_session_reloads_the_page(db: None, client: Client) -> None:
    """Else the sign-in page would be painted into a fragment."""
    answer = client.get("/fleet/", headers={"HX-Request": "true", "HX-Target": "div#live"})
    assert (answer.status_code, answer.headers["HX-Refresh"]) == (401, "true")


@pytest.mark.parametrize("path", PAGES)
def test_pages_without_data_say_what_to_do(path: str, viewer: User, signed_in: SignIn) -> None:
    assert signed_in(viewer).get(path).status_code == 200


def test_other_teams_things_do_not_exist(lab: Lab, outsider: User, signed_in: SignIn) -> None:
    client = signed_in(outsider)
    rollout = Rollout.objects.get()
    for path in ("/models/digits/", "/models/digits/versions/1/", f"/rollouts/{rollout.pk}/", "/fleet/nodes/node-1/"):
        assert client.get(path).status_code == 404, path
    for path in ("/", "/models/", "/rollouts/", "/fleet/", "/fleet/?view=list", "/audit/", "/rollouts/new"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "node-1" not in answer.content.decode()
        assert "digits" not in answer.content.decode()


@pytest.mark.parametrize(
    "path", ["/fleet/nodes/node-1/cordon", "/fleet/nodes/node-1/drain", "/fleet/nodes/node-1/no-such-thing"]
)
def test_other_teams_nodes_cannot_be_touched(path: str, lab: Lab, outsider: User, signed_in: SignIn) -> None:
    assert signed_in(outsider).post(path, {"reason": "x"}).status_code == 404
    assert Node.objects.get(name="node-1").phase == "active"


def test_a_poll_without_news_answers_204(lab: Lab, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    headers = {"HX-Request": "true", "HX-Target": "div#live"}
    first = client.get("/fleet/nodes/node-1/", headers=headers)
    text = first.content.decode()
    assert "<html" not in text
    seen = text.rpartition('name="seen" value="')[2].partition('"')[0]
    again = client.get("/fleet/nodes/node-1/", {"seen": seen}, headers=headers)
    assert (again.status_code, again.content) == (204, b"")
    Node.objects.filter(name="node-1").update(agent_version="9.9")
    assert client.get("/fleet/nodes/node-1/", {"seen": seen}, headers=headers).status_code == 200


def test_a_part_that_a_page_does_not_have_gives_the_page(viewer: User, signed_in: SignIn) -> None:
    answer = signed_in(viewer).get("/fleet/", headers={"HX-Request": "true", "HX-Target": "div#secrets"})
    assert b"<html" in answer.content


def queries(client: Client, path: str) -> int:
    client.get(path)  # warms what is cached for the process
    with CaptureQueriesContext(
        connection,
    ) as caught:
        assert client.get(path).status_code == 200
    return len(caught)


def test_query_counts_do_not_grow_with_the_fleet(lab: Lab, operator: User, signed_in: SignIn, now: datetime) -> None:
    client = signed_in(operator)
    paths = ("/", "/fleet/", "/fleet/?view=list", "/models/digits/", f"/rollouts/{Rollout.objects.get().pk}/")
    before = {path: queries(client, path) for path in paths}
    for number in range(12):
        node, _ = builders.enrol(lab.world, f"more-{number}", now)
        Gpu.objects.create(uuid=f"GPU-{number}", node=node, index=0, name="A100", memory_bytes=1)
    assert {path: queries(client, path) for path in paths} == before
    assert all(count < 40 for count in before.values()), before


def test_query_counts_do_not_grow_with_models_and_rollouts(
    lab: Lab, start: Any, operator: User, signed_in: SignIn, publish: Callable[..., ModelVersion]
) -> None:
    client = signed_in(operator)
    paths = ("/", "/models/", "/rollouts/", "/audit/", "/rollouts/new")
    start(publish("model-0", seed=100), "first")
    before = {path: queries(client, path) for path in paths}
    for number in range(1, 5):
        start(publish(f"model-{number}", seed=100 + number), "first")
    assert RegisteredModel.objects.count() == 6
    assert {path: queries(client, path) for path in paths} == before


def test_every_page_shows_its_matter(lab: Lab, viewer: User, signed_in: SignIn) -> None:
    client = signed_in(viewer)
    rollout = Rollout.objects.get()
    wanted = {
        "/models/": "champion v1",
        "/models/digits/": "Where it runs",
        "/models/digits/versions/1/": "four parts make its identity",
        f"/rollouts/{rollout.pk}/": "Completed.",
        "/fleet/nodes/node-1/": "In force",
        "/audit/?q=enrolled": "Node enrolled",
    }
    for path, text in wanted.items():
        assert text.lower() in client.get(path).content.decode().lower(), path


def test_no_inline_script_or_style_in_any_template() -> None:
    """The policy would refuse them; this says where they are."""
    for path in (Path(__file__).resolve().parents[2] / "templates").rglob("*.html"):
        text = path.read_text()
        for banned in (" style=", "<style", "onclick=", "hx-on", "javascript:", "js:"):
            assert banned not in text, f"{path.name}: {banned}"
