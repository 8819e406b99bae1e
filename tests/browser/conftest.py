"""A real Chromium against the real web app: one seeded world for all browser tests, one signed-in page a test."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from apps.observability.alert_models import Alert
from tests.artifacts import Keys
from tests.browser.seed import PASSWORD, Seed, build
from tests.conftest import empty_series
from tests.fleet import builders

ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
PATIENCE_MS = 60_000  # a busy machine is slow, not wrong
expect.set_options(timeout=PATIENCE_MS)
# Django's ORM refuses to work inside the loop that Playwright's synchronous interface runs in this thread.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and keep it on one worker: the seeded world is made once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.timeout(900))  # the first one builds the world


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; without one these tests are skipped, and say so."""
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no Chromium on PATH (looked for {', '.join(CHROMIUMS)}): the console is NOT tested in a browser"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    return found


# of the package, not of the run: its event loop runs as long as it lives, and other tests of the worker have their own
@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@dataclass
class World:
    """The seeded installation, served at `url`."""

    seed: Seed
    url: str
    farrier: Any  # its settings

    @property
    def alert(self) -> Alert:
        """The alert that fires on gpu-a01."""
        return Alert.objects.get(rule="gpu-temperature", resolved_at=None)


@pytest.fixture
def db() -> None:
    """Has the test database made, and no more: here rows outlive a test, so nothing is rolled back."""


@pytest.fixture(scope="package")
def installation(
    chromium: str, keys: Keys, django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One installation with a history, and its web server, for the whole folder; the database is emptied after it."""
    from django.conf import settings

    home = tmp_path_factory.mktemp("console")
    (home / "static").mkdir()
    director = builders.write_key(home / "director.pem", keys.director)
    farrier = settings.FARRIER.model_copy(update={"home": home, "director_key": director})
    quick = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    with (
        django_db_blocker.unblock(),
        override_settings(FARRIER=farrier, STATIC_ROOT=home / "static", PASSWORD_HASHERS=quick),
    ):
        seed = build(home, keys, datetime.now(UTC))
        server = LiveServer("127.0.0.1")
        try:
            yield World(seed, server.url, farrier)
        finally:
            server.stop()
            call_command("flush", interactive=False, verbosity=0, inhibit_post_migrate=True)
            empty_series()
            connections.close_all()
            connections["default"].close_pool()  # type: ignore[attr-defined]  # PostgreSQL's


@pytest.fixture
def world(db: None, installation: World, settings: Any, home: Path) -> World:
    """The installation, its nodes freshly heard from."""
    settings.FARRIER = installation.farrier
    settings.STATIC_ROOT = home / "static"
    installation.seed.catch_up()
    return installation


@dataclass
class Watch:
    """What a page complained about while it was open."""

    complaints: list[str] = field(default_factory=list)

    def on(self, page: Page) -> None:
        page.on("console", lambda said: self.note(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("requestfailed", lambda request: self.failed(request.url, request.failure or ""))

    def note(self, kind: str, text: str) -> None:
        # a refused form answers 4xx, which Chromium reports though it is what the test wants to see
        if kind in ("error", "warning") and not re.search(r"status of 4(00|03|09|22)", text):
            self.complaints.append(f"{kind}: {text}")

    def failed(self, url: str, why: str) -> None:
        if "ERR_ABORTED" not in why:  # a poll that a navigation cut off
            self.complaints.append(f"failed: {url} {why}")


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails the test if a page broke the content security policy, threw, or missed a file."""
    watching = Watch()
    yield watching
    assert watching.complaints == []


@pytest.fixture
def visit(world: World, browser: Browser, watch: Watch) -> Iterator[Callable[..., Page]]:
    """`visit("lead", "/fleet/", width=400, color_scheme="dark")`: a page of a fresh browser, signed in."""
    contexts: list[BrowserContext] = []

    def go(user: str, path: str, *, width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(base_url=world.url, viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watch.on(page)
        page.goto(f"/login?next={quote(path)}")
        page.fill("#username", user)
        page.fill("#password", PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda url: url.endswith(path))
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Keep a screenshot of the whole page under test-artifacts/."""

    def save(page: Page, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)

    return save
