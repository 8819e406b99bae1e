"""What machines ask of the web process: health, the OpenAPI document, errors as problem JSON."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client

from controlplane import health

pytestmark = pytest.mark.django_db


def test_alive_and_ready(client: Client) -> None:
    assert client.get("/livez").content == b"ok\n"
    assert client.get("/readyz").status_code == 200


def test_not_ready_without_migrations(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connection
    from django.db.migrations.recorder import MigrationRecorder

    monkeypatch.setattr(health, "_migrated", False)
    MigrationRecorder(connection).record_unapplied("audit", "0002_outbox_destinations")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_migrated")
    MigrationRecorder(connection).record_applied("audit", "0002_outbox_destinations")
    assert client.get("/readyz").status_code == 200


def test_not_ready_without_a_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> list[str]:
        raise DatabaseError("the connection is closed")

    monkeypatch.setattr(health, "_pending", away)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_away")
    assert client.get("/livez").status_code == 200


def test_the_api_describes_itself(client: Client) -> None:
    document: dict[str, Any] = client.get("/api/schema?format=json").json()
    assert document["openapi"].startswith("3.")
    assert {"/api/v1/models/{slug}/versions:reserve", "/api/v1/artifacts/{digest}", "/api/v1/tokens"} <= set(
        document["paths"]
    )
    assert "apiToken" in document["components"]["securitySchemes"]
    page = client.get("/api/docs")
    assert page.status_code == 200
    for inline in (b"<script>", b"<style", b"style="):
        assert inline not in page.content, "the content security policy would stop it"


def test_errors_are_problem_documents(client: Client) -> None:
    for path, status in (("/api/v1/models", 401), ("/api/v1/nothing", 404)):
        assert client.get(path).status_code == status
    answer = client.get("/api/v1/models")
    assert answer["Content-Type"] == "application/problem+json"
    assert set(answer.json()) == {"title", "status", "detail", "code"}
