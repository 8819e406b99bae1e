"""Everything by keyboard, the theme by button and kept."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import World


def test_shortcuts_are_listed_and_work(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/rollouts/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_label("Search rollouts")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("#results tbody tr").nth(1).get_by_role("link").first).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("#results tbody tr").nth(0).get_by_role("link").first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts/*/")
    page.keyboard.press("g")
    page.keyboard.press("f")
    page.wait_for_url("**/fleet/")


def test_deciding_keys_lead_to_the_reason_first(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{world.seed.waiting.pk}/")
    page.keyboard.press("a")
    expect(page.get_by_label("Reason", exact=True)).to_be_focused()
    page.keyboard.type("ar? typed, not obeyed")
    assert page.get_by_label("Reason", exact=True).input_value() == "ar? typed, not obeyed"
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Reject and roll back")).to_be_focused()
    world.seed.waiting.refresh_from_db()
    assert world.seed.waiting.phase == "paused"  # no single key decides


def test_skip_link_is_the_first_stop(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_theme_is_turned_and_kept(visit: Callable[..., Page]) -> None:
    page = visit("lead", "/", color_scheme="light")
    page.locator("details.who summary").click()
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto("/fleet/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_token_is_shown_once_and_revoked(visit: Callable[..., Page]) -> None:
    page = visit("oncall", "/tokens/")
    page.get_by_label("Name").fill("pager")
    page.get_by_role("button", name="Create the token").click()
    secret = page.locator("#secret").inner_text()
    assert len(secret) > 40
    page.goto("/tokens/")
    assert secret not in page.content()
    page.get_by_text("Revoke…").click()
    page.locator("[id^=revoke-]").fill("Not needed.")
    page.get_by_role("button", name="Revoke pager").click()
    expect(page.locator("p.said")).to_contain_text("The token pager is revoked")
