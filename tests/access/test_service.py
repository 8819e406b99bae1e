"""What machines ask of the web process: health, the OpenAPI document, errors as problem JSON."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection
from django.test import Client

from controlplane import health

pytestmark = pytest.mark.django_db


def test_alive_and_ready(client: Client) -> None:
    assert client.get("/livez").content == b"ok\n"
    assert client.get("/readyz").status_code == 200


def test_not_ready_without_migrations(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/api/v1/me", "/models/"])
def test_a_lost_database_is_no_bug(client: Client, operator: Any, path: str) -> None:
    client.force_login(operator)
    assert client.get(path).status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    database = connection.settings_dict
    names = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "NAME": "dbname"}
    with psycopg.connect(**{names[key]: database[key] for key in names}) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    answer = client.get(path)
    connection.close()
    assert (answer.status_code, answer["Retry-After"]) == (503, "2")
    assert "The database does not answer" in answer.content.decode()
    if path.startswith("/api/"):
        assert answer.json()["code"] == "database_away"
    assert client.get(path).status_code == 200
