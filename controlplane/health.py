"""What the edge and the supervisor ask: is the process alive, can it serve?"""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from psycopg_pool import PoolTimeout

from apps.lib.problems import problem

_migrated = False  # once true it stays true for this process: no query a probe


def livez(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 Django passes it
    """Answer 200 as long as the process takes requests at all."""
    return HttpResponse("ok\n", content_type="text/plain")


def readyz(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 Django passes it
    """Answer 200 when the database answers and holds every migration, else 503 with the reason."""
    try:
        pending = _pending()
    except (DatabaseError, PoolTimeout) as away:
        return problem(503, "database_away", f"The database does not answer ({type(away).__name__}); is it running?")
    if pending:
        return problem(503, "not_migrated", f"{len(pending)} migrations are missing; run `manage.py migrate`.")
    return HttpResponse("ok\n", content_type="text/plain")


def _pending() -> list[str]:
    global _migrated
    if _migrated:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return []
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    _migrated = not plan
    return [str(migration) for migration, _ in plan]
