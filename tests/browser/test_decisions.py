"""Deciding on a canary in the browser: approve, reject, who may not and why, what a refused form keeps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from playwright.sync_api import Page, expect

from apps.rollouts.models import Rollout
from tests.browser.conftest import World

_numbers = count(1)


@pytest.fixture
def asked(world: World) -> Rollout:
    """A rollout of a model of its own that waits for an approval."""
    return world.seed.ask(f"ranker-{next(_numbers)}")


def test_sign_in_evidence_approve_completed(world: World, asked: Rollout, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/")
    page.get_by_role("link", name=f"{asked.model.slug} v1 → v2").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("v1 → v2")
    similarity = page.get_by_role("row", name="Output similarity")
    expect(similarity).to_contain_text("successful")
    expect(page.get_by_text("Waiting for approval").first).to_be_visible()
    page.get_by_label("Reason", exact=True).fill("Similarity is far above its margin.")
    page.get_by_role("button", name="Approve to full").click()
    expect(page.locator("p.said")).to_contain_text("is approved")
    world.seed.lab.until(asked, "completed")
    # the page learns it by its own polling
    expect(page.locator("#decision")).to_contain_text("Completed.")
    expect(page.get_by_text("“Similarity is far above its margin.”").first).to_be_visible()
    page.goto(f"/models/{asked.model.slug}/")
    expect(page.get_by_role("row", name="v2 champion")).to_be_visible()


def test_reject_rolls_back_and_holds(world: World, asked: Rollout, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{asked.pk}/")
    page.get_by_label("Reason", exact=True).fill("The worst pairs are all licence texts.")
    page.get_by_role("button", name="Reject and roll back").click()
    expect(page.locator("p.said")).to_contain_text("rolls back")
    world.seed.lab.until(asked, "rolled_back")
    expect(page.locator("#decision")).to_contain_text("Rolled back.")
    page.goto("/holds/")
    held = page.locator("section.card", has_text=f"{asked.model.slug} v2")
    held.get_by_text("Lift the hold…").click()
    held.get_by_label("Reason").fill("Looked at each pair: they are fine.")
    held.get_by_role("button", name="Lift the hold on").click()
    expect(page.locator("p.said")).to_contain_text("is lifted")
    expect(page.locator("section.card", has_text=f"{asked.model.slug} v2")).to_have_count(0)


def test_requester_cannot_decide(asked: Rollout, visit: Callable[..., Page]) -> None:
    """The requester is made an approver here, so that nothing but four eyes stands in the way."""
    asked.team.memberships.filter(user=asked.requested_by).update(role="approver")
    page = visit("requester", f"/rollouts/{asked.pk}/")
    expect(page.get_by_role("button", name="Approve to full")).to_be_disabled()
    expect(page.get_by_text("You asked for this rollout, so another person must decide on it.")).to_be_visible()
    # and the server refuses whoever sends the form all the same
    token = page.locator("input[name=csrfmiddlewaretoken]").first.input_value()
    answer = page.request.post(
        f"/rollouts/{asked.pk}/approve",
        form={"csrfmiddlewaretoken": token, "reason": "mine", "revision": str(asked.revision)},
    )
    assert answer.status == 403
    asked.refresh_from_db()
    assert asked.phase == "paused"
    asked.team.memberships.filter(user=asked.requested_by).update(role="operator")


@pytest.mark.parametrize(("user", "role"), [("requester", "operator"), ("oncall", "viewer")])
def test_buttons_say_why_a_role_may_not(user: str, role: str, world: World, visit: Callable[..., Page]) -> None:
    page = visit(user, f"/rollouts/{world.seed.waiting.pk}/")
    expect(page.get_by_role("button", name="Approve to full")).to_be_disabled()
    expect(page.get_by_text(f"Your role here is {role}; deciding takes approver.")).to_be_visible()


def test_stale_decision_keeps_what_was_typed(world: World, asked: Rollout, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{asked.pk}/")
    page.evaluate("document.querySelector('#live').removeAttribute('hx-get')")
    page.locator("input[name=revision]").first.evaluate("field => field.value = '0'")
    page.get_by_label("Reason", exact=True).fill("Typed with care.")
    page.get_by_role("button", name="Approve to full").click()
    expect(page.get_by_role("alert")).to_contain_text("has changed since you looked")
    assert page.get_by_label("Reason", exact=True).input_value() == "Typed with care."
    asked.refresh_from_db()
    assert asked.phase == "paused"


def test_decides_without_javascript(world: World, asked: Rollout, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{asked.pk}/", java_script_enabled=False)
    page.get_by_label("Reason", exact=True).fill("No script needed.")
    page.get_by_role("button", name="Approve to full").click()
    expect(page.locator("p.said")).to_contain_text("is approved")
    world.seed.lab.until(asked, "completed")
    page.reload()
    expect(page.locator("#decision")).to_contain_text("Completed.")


def test_abort_from_the_page(world: World, asked: Rollout, visit: Callable[..., Page]) -> None:
    page = visit("lead", f"/rollouts/{asked.pk}/")
    page.get_by_text("Abort…").click()
    page.locator("#reason-abort").fill("A better version is on its way.")
    page.get_by_role("button", name=f"Abort rollout {asked}").click()
    expect(page.locator("p.said")).to_contain_text("is being aborted")
    world.seed.lab.until(asked, "aborted")
    expect(page.locator("#decision")).to_contain_text("lead aborted it: A better version is on its way.")
