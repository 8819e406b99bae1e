"""On-call by keyboard: the inbox, acknowledging, the silence dialog."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from apps.observability.alert_models import Alert, Silence
from tests.browser.conftest import World
from tests.browser.test_pages import serious


def test_the_inbox_works_by_keyboard(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/alerts/")
    rows = page.locator("#results tbody tr")
    expect(rows).to_have_count(2)
    page.keyboard.press("j")
    expect(rows.nth(0).get_by_role("link").first).to_be_focused()
    page.keyboard.press("j")
    expect(rows.nth(1).get_by_role("link").first).to_be_focused()
    page.keyboard.press("a")
    expect(rows.nth(1)).to_contain_text("acknowledged")
    memory = Alert.objects.get(rule="gpu-memory-temperature")
    assert memory.acknowledged_by == world.seed.people["lead"]
    assert world.alert.acknowledged_at is None  # the row that had the focus, no other
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(rows.nth(0).get_by_role("link").first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/alerts/*/")
    expect(page.get_by_role("heading", level=1)).to_contain_text("8 of 8 GPUs run 16 °C above their usual")


def test_silencing_by_keyboard(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/alerts/{world.alert.pk}/")
    page.keyboard.press("s")
    dialog = page.get_by_role("dialog", name="Silence gpu-temperature on gpu-a01")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_label("Reason")).to_be_focused()
    assert serious(page) == []
    page.keyboard.type("as typed, not obeyed")
    dialog.get_by_label("For how long").select_option("120")
    dialog.get_by_role("button", name="Silence these alerts").click()
    page.wait_for_url("**/silences/")
    expect(page.get_by_text("as typed, not obeyed")).to_be_visible()
    silence = Silence.objects.get(reason="as typed, not obeyed")
    assert silence.matchers == {"rule": "gpu-temperature", "node": "gpu-a01"}
    # away with it again: other tests look at the same installation
    card = page.locator("section.card", has_text="as typed, not obeyed")
    card.locator("summary").click()
    card.get_by_label("Reason").fill("Only a test.")
    page.get_by_role("button", name=f"End the silence of {silence}").click()
    expect(page.get_by_text("as typed, not obeyed")).to_be_hidden()
    assert world.alert.silenced_by is None


def test_the_alert_page_acknowledges_and_hands_back(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/alerts/{world.alert.pk}/")
    page.keyboard.press("a")
    expect(page.locator(".said")).to_contain_text("is acknowledged")
    assert world.alert.owner == world.seed.people["lead"]
    page.get_by_text("Hand it back…").click()
    page.get_by_label("Why, for whoever comes next").fill("The shift is over.")
    page.get_by_role("button", name="Hand gpu-temperature back").click()
    expect(page.locator(".said")).to_contain_text("is handed back")
    assert world.alert.acknowledged_at is None


def test_the_badge_leads_to_the_inbox(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/models/")
    page.get_by_role("link", name="1 firing").click()
    page.wait_for_url("**/alerts/")


def test_a_viewer_sees_and_acts_on_nothing(visit: Callable[..., Page]) -> None:
    page = visit("oncall", "/alerts/")
    expect(page.locator("#results tbody tr")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("a")
    page.keyboard.press("s")
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
