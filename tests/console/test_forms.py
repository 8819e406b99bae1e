"""Forms: what they do, who may, and that a refused one comes back with what was typed."""

from __future__ import annotations

from collections.abc import Callable

from django.test import Client

from apps.access.models import ApiToken, User
from apps.fleet.models import Node
from apps.models.models import ModelVersion
from apps.rollouts.models import Rollout
from tests.rollouts.lab import Lab

SignIn = Callable[[User], Client]


def test_cordon_and_return_with_reasons(lab: Lab, operator: User, signed_in: SignIn) -> None:
    client = signed_in(operator)
    node = Node.objects.get(name="node-1")
    answer = client.post(
        f"/fleet/nodes/{node}/cordon", {"reason": "Fan noise.", "revision": node.revision}, follow=True
    )
    assert "node-1 is cordoned." in answer.content.decode()
    assert "“Fan noise.”" in answer.content.decode()
    node.refresh_from_db()
    assert node.phase == "cordoned"
    client.post(f"/fleet/nodes/{node}/uncordon", {"reason": "Quiet.", "revision": node.revision})
    node.refresh_from_db()
    assert node.phase == "active"


def test_refused_action_keeps_what_was_typed(lab: Lab, viewer: User, operator: User, signed_in: SignIn) -> None:
    node = Node.objects.get(name="node-1")
    outdated = signed_in(operator).post(
        f"/fleet/nodes/{node}/drain", {"reason": "Typed <b>with</b> care", "revision": "0"}
    )
    assert outdated.status_code == 409
    assert "Typed &lt;b&gt;with&lt;/b&gt; care" in outdated.content.decode()
    denied = signed_in(viewer).post(f"/fleet/nodes/{node}/drain", {"reason": "x", "revision": node.revision})
    assert denied.status_code == 403
    empty = signed_in(operator).post(f"/fleet/nodes/{node}/drain", {"reason": " ", "revision": node.revision})
    assert empty.status_code >= 400
    node.refresh_from_db()
    assert node.phase == "active"


def test_a_bent_revision_is_no_server_error(lab: Lab, operator: User, signed_in: SignIn) -> None:
    answer = signed_in(operator).post("/fleet/nodes/node-1/drain", {"reason": "x", "revision": "seven"})
    assert answer.status_code == 400
    assert Node.objects.get(name="node-1").phase == "active"


def test_rollout_is_started_from_the_form(lab: Lab, operator: User, signed_in: SignIn) -> None:
    version = lab.version(2)
    client = signed_in(operator)
    form = {"version": str(version.pk), "strategy": "demo", "pool": "default", "reason": ""}
    refused = client.post("/rollouts/new", form)
    assert refused.status_code == 422
    assert f'value="{version.pk}" selected' in " ".join(refused.content.decode().split())
    client.post("/rollouts/new", form | {"reason": "Better on long texts."})
    started = Rollout.objects.order_by("-number")[0]
    assert (started.version, started.requested_by, started.reason) == (version, operator, "Better on long texts.")
    again = client.post("/rollouts/new", form | {"reason": "Once more."})
    assert again.status_code == 409
    assert "Once more." in again.content.decode()


def test_viewers_start_nothing(lab: Lab, viewer: User, signed_in: SignIn) -> None:
    version: ModelVersion = lab.version(2)
    client = signed_in(viewer)
    assert "takes the role operator" in client.get("/rollouts/new").content.decode()
    form = {"version": str(version.pk), "strategy": "demo", "pool": "default", "reason": "Mine."}
    assert client.post("/rollouts/new", form).status_code == 403
    assert Rollout.objects.count() == 1


def test_pause_and_resume(lab: Lab, start: Callable[..., Rollout], operator: User, signed_in: SignIn) -> None:
    rollout = start(lab.version(2), "demo")
    lab.until(rollout, "progressing")
    client = signed_in(operator)
    client.post(f"/rollouts/{rollout.pk}/pause", {"reason": "Lunch.", "revision": rollout.revision})
    rollout.refresh_from_db()
    assert (rollout.phase, rollout.pause_reason) == ("paused", "operator")
    page = client.get(f"/rollouts/{rollout.pk}/").content.decode()
    assert "Resume rollout" in page
    assert "Your decision" not in page
    client.post(f"/rollouts/{rollout.pk}/resume", {"reason": "Fed.", "revision": rollout.revision})
    rollout.refresh_from_db()
    assert rollout.phase == "progressing"


def test_tokens_belong_to_their_owner(viewer: User, operator: User, signed_in: SignIn) -> None:
    form = {"name": "ci", "team": "default", "scopes": ["read"], "life": "30"}
    made = signed_in(operator).post("/tokens/", form)
    assert "shown once" in made.content.decode()
    token = ApiToken.objects.get()
    assert token.user == operator
    assert signed_in(viewer).post(f"/tokens/{token.token_key}/revoke", {"reason": "x"}).status_code == 404
    refused = signed_in(operator).post("/tokens/", form | {"name": "kept name", "scopes": ["everything"]})
    assert refused.status_code == 400
    assert 'value="kept name"' in refused.content.decode()
    signed_in(operator).post(f"/tokens/{token.token_key}/revoke", {"reason": "Done."})
    assert not ApiToken.objects.exists()


def test_theme_without_javascript(client: Client, db: None) -> None:
    answer = client.post("/theme", {"next": "https://elsewhere.example/"})
    assert answer.headers["Location"] == "/"
    assert answer.cookies["theme"].value == "dark"
    assert 'data-theme="dark"' in client.get("/login").content.decode()
