"""Every page, in both themes and three widths: accessible, quiet, nothing sticks out; screenshots are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Watch, World

WIDTHS = (400, 1280, 2000)
PAGES: dict[str, Callable[[World], str]] = {
    "home": lambda world: "/",
    "models": lambda world: "/models/",
    "model": lambda world: "/models/minilm-embedder/",
    "version": lambda world: "/models/minilm-embedder/versions/2/",
    "version-held": lambda world: "/models/minilm-embedder/versions/3/",
    "rollouts": lambda world: "/rollouts/",
    "rollout-waiting": lambda world: f"/rollouts/{world.seed.waiting.pk}/",
    "rollout-rolled-back": lambda world: f"/rollouts/{world.seed.rolled_back.pk}/",
    "rollout-completed": lambda world: f"/rollouts/{world.seed.completed.pk}/",
    "rollout-new": lambda world: "/rollouts/new",
    "fleet": lambda world: "/fleet/",
    "fleet-list": lambda world: "/fleet/?view=list",
    "enrol": lambda world: "/fleet/enrol",
    "node": lambda world: "/fleet/nodes/node-1/",
    "node-cordoned": lambda world: "/fleet/nodes/gpu-a01/",
    "explore": lambda world: "/explore/",
    "explore-node": lambda world: "/explore/?node=gpu-a01&range=6h",
    "explore-each": lambda world: "/explore/?node=gpu-a01&range=6h&charts=each&band=1",
    "explore-table": lambda world: "/explore/?node=gpu-a01&range=15m&view=table",
    "explore-requests": lambda world: "/explore/?metric=requests&model=minilm-embedder&range=6h",
    "alerts": lambda world: "/alerts/?state=all",
    "alert": lambda world: f"/alerts/{world.alert.pk}/",
    "silences": lambda world: "/silences/",
    "silence-new": lambda world: "/silences/new?node=gpu-a01",
    "holds": lambda world: "/holds/",
    "audit": lambda world: "/audit/",
    "tokens": lambda world: "/tokens/",
    "missing": lambda world: "/models/no-such-model/",
}
QUIET = {"missing"}  # its 404 is a complaint of the browser's console, and meant


def serious(page: Page) -> list[str]:
    """Return the serious and critical violations that axe finds, each with where."""
    # its preloading copies style sheets into inline ones, which our content security policy rightly blocks
    found = Axe().run(page, options={"preload": False}).response["violations"]
    return [
        f"{each['id']}: {each['help']} at {[node['target'] for node in each['nodes']][:3]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def settle(page: Page) -> None:
    page.wait_for_load_state("load")
    page.evaluate("document.fonts.ready")
    expect(page.locator("[data-chart]:not([data-state])")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", list(PAGES))
def test_page_is_accessible_in_every_width(
    name: str, theme: str, world: World, visit: Callable[..., Page], watch: Watch, keep: Callable[[Page, str], None]
) -> None:
    path = PAGES[name](world)
    page = visit("lead", path, color_scheme=theme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        keep(page, f"{name}-{width}-{theme}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"wider than {width} px"
        assert name in QUIET or watch.complaints == []
        if width != WIDTHS[-1]:
            assert serious(page) == []
        watch.complaints.clear()  # axe itself tries inline styles, which the policy refuses


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sign_in_page(theme: str, world: World, browser: Browser, keep: Callable[[Page, str], None]) -> None:
    context = browser.new_context(base_url=world.url, color_scheme=theme)
    page = context.new_page()
    page.goto("/login")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        keep(page, f"login-{width}-{theme}")
    assert serious(page) == []
    page.fill("#username", "lead")
    page.fill("#password", "not the password")
    page.get_by_role("button", name="Sign in").click()
    assert page.get_by_role("alert").is_visible()
    assert page.input_value("#username") == "lead"
    context.close()


def test_strict_policy_is_sent(world: World, visit: Callable[..., Page]) -> None:
    page = visit("lead", "/")
    answer = page.request.get("/")
    policy = answer.headers["content-security-policy"]
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy
    body = answer.text()
    assert " style=" not in body
    assert " onclick=" not in body
