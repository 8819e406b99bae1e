"""Guessing passwords has a bound; mistyping one has not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.cache import cache
from django.test import Client

from apps.access.forms import FAILURES_MAX
from apps.access.models import User
from tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db
WORDS = b"too many wrong passwords"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def sign_in(client: Client, username: str, password: str, path: str = "/login") -> bytes:
    answer = client.post(path, {"username": username, "password": password})
    return b"" if answer.status_code == 302 else answer.content


@pytest.mark.parametrize("path", ["/login", "/admin/login/"])
def test_after_many_wrong_ones_the_right_one_waits_too(client: Client, superuser: User, path: str) -> None:
    for _ in range(FAILURES_MAX):
        assert WORDS not in sign_in(client, "root", "wrong", path)
    assert WORDS in sign_in(client, "ROOT", PASSWORD, path)
    cache.clear()  # five minutes later
    assert sign_in(client, "root", PASSWORD, path) == b""


def test_other_names_and_other_addresses_are_not_held_back(client: Client, operator: User, viewer: User) -> None:
    for _ in range(FAILURES_MAX):
        sign_in(client, "operator", "wrong")
    assert sign_in(client, "viewer", PASSWORD) == b""
    assert sign_in(Client(REMOTE_ADDR="10.0.0.7"), "operator", PASSWORD) == b""


def test_signing_in_often_is_no_crime(operator: User) -> None:
    for _ in range(FAILURES_MAX + 5):
        assert sign_in(Client(), "operator", PASSWORD) == b""


@pytest.mark.parametrize("spelling", ["root ", "\troot", "ｒoot", "𝐫oot", " ROOT "])
def test_another_spelling_of_the_name_is_no_fresh_start(client: Client, superuser: User, spelling: str) -> None:
    """The form reads all of these as «root», or could: each would have brought twenty more guesses."""
    for _ in range(FAILURES_MAX):
        sign_in(client, "root", "wrong")
    assert WORDS in sign_in(client, spelling, "wrong")


def test_failures_on_many_other_names_do_not_push_a_count_out(client: Client, operator: User) -> None:
    for _ in range(FAILURES_MAX):
        sign_in(client, "operator", "wrong")
    for number in range(1_000):
        cache.set(f"sign-in-of-somebody-{number}", 1)
    assert WORDS in sign_in(client, "operator", PASSWORD)
