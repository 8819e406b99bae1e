"""What the database can't hold is the sender's fault, on pages as in the REST API."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import User

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("path", ["/rollouts/?q=%00", "/models/?q=%00", "/fleet/?q=%00", "/holds/?q=%00"])
def test_a_nul_in_a_search_is_no_fault_of_ours(operator: User, path: str) -> None:
    client = Client()
    client.force_login(operator)
    assert client.get(path).status_code == 400
