"""Pages that live: polls answer 204 when nothing is new, typed text survives news, filters live in the URL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from apps.access.actors import Actor
from apps.fleet import services as fleet
from apps.fleet.models import Node
from tests.browser.conftest import Watch, World


def test_poll_without_news_answers_204(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/fleet/nodes/gpu-a01/")
    with page.expect_response(lambda answer: answer.status == 204 and "gpu-a01" in answer.url):
        pass


def test_news_arrive_and_typed_text_stays(world: World, visit: Callable[..., Page]) -> None:
    page = visit("admin", "/fleet/nodes/node-2/")
    page.get_by_text("Drain…").click()
    reason = page.locator("#reason-drain")
    reason.fill("Half a sen")
    node = Node.objects.get(name="node-2")
    fleet.cordon_node(node, actor=Actor.person(world.seed.people["admin"]), reason="Fan noise.", now=datetime.now(UTC))
    expect(page.get_by_text("“Fan noise.”")).to_be_visible()
    assert reason.input_value() == "Half a sen"
    assert page.evaluate("document.activeElement.id") == "reason-drain"
    fleet.uncordon_node(node, actor=Actor.person(world.seed.people["admin"]), reason="Quiet.", now=datetime.now(UTC))


def test_ended_session_leads_to_sign_in(world: World, visit: Callable[..., Page], watch: Watch) -> None:
    page = visit("lead", "/fleet/")
    Session.objects.all().delete()
    page.wait_for_url("**/login?next=/fleet/")
    watch.complaints.clear()  # the 401 that said so


def test_filters_sort_and_pages_live_in_the_url(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/rollouts/")
    page.get_by_label("Phase", exact=True).select_option("rolled_back")
    page.wait_for_url("**phase=rolled_back**")
    rows = page.locator("#results tbody tr")
    expect(rows.filter(has_text="minilm-embedder")).to_have_count(1)
    page.goto("/rollouts/?phase=&q=minilm")
    page.get_by_role("columnheader", name="Phase").get_by_role("link").click()
    page.wait_for_url("**sort=phase**")
    expect(page.get_by_role("columnheader", name="Phase")).to_have_attribute("aria-sort", "ascending")
    assert "q=minilm" in page.url
    page.reload()
    expect(page.get_by_role("columnheader", name="Phase")).to_have_attribute("aria-sort", "ascending")


def test_search_as_you_type(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/models/")
    page.get_by_label("Search models").press_sequentially("digit")
    expect(page.locator("#results tbody tr")).to_have_count(1)
    expect(page.get_by_label("Search models")).to_be_focused()


def test_lists_work_without_javascript(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/audit/", java_script_enabled=False)
    page.get_by_label("Search events").fill("cordoned")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#results tbody tr").first).to_contain_text("Node cordoned")
    page.goto("/fleet/?view=list")
    page.get_by_role("columnheader", name="Zone").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="Zone")).to_have_attribute("aria-sort", "ascending")


def test_earlier_stage_can_be_looked_at(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{world.seed.waiting.pk}/")
    page.get_by_role("link", name="Shadow 10 %").click()
    expect(page.get_by_text("Shadow 10 %, candidate against baseline")).to_be_visible()
