"""Pages over Django's test client: fast, without a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from apps.access.models import User
from tests.fleet.conftest import farrier, world
from tests.rollouts.conftest import empty_lab, lab, requester, start

__all__ = ["empty_lab", "farrier", "lab", "requester", "start", "world"]


@pytest.fixture
def signed_in() -> Callable[[User], Client]:
    """`signed_in(user)`: a client whose session is that user's."""

    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return sign_in
