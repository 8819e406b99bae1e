"""`manage.py grant_app_role`: what the role of web and workers may do. Connects as the owner of the tables."""

from collections.abc import Iterable
from typing import Any

import pgtrigger
from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connections
from psycopg import sql

# Written by the sealer and by restores alone, both under the owner.
OWNER_WRITES = ("audit_seal", "audit_checkpoint", "audit_restoreepoch", "django_migrations")


class Command(BaseCommand):
    help = "Grant the role of DATABASE_URL reading and writing, except changes to what is append-only."

    def handle(self, *_args: Any, **_options: Any) -> None:
        role = app_role()
        if role is None:
            self.stdout.write(
                "One database role for everything: audit rows are kept by their trigger alone. "
                "Set FARRIER_OWNER_DATABASE_URL to a second role for rights of its own."
            )
            return
        with connections["owner"].cursor() as cursor:
            for statement in grants(role, append_only_tables()):
                cursor.execute(statement.as_string(cursor.connection))
        self.stdout.write(f"Rights of {role} are set.")


def app_role() -> str | None:
    """The role of web and workers, when it is another than the owner of the tables."""
    databases = settings.DATABASES
    if "owner" not in databases or databases["owner"]["USER"] == databases["default"]["USER"]:
        return None
    return str(databases["default"]["USER"])


def append_only_tables() -> list[str]:
    """Tables that a trigger named append_only protects."""
    return sorted(
        model._meta.db_table
        for model in apps.get_models()
        if any(
            isinstance(trigger, pgtrigger.Protect) and trigger.name == "append_only"
            for trigger in getattr(model._meta, "triggers", ())
        )
    )


def grants(role: str, append_only: Iterable[str]) -> list[sql.Composed]:
    """Statements that set the rights of `role` in schema public, now and for tables to come."""
    name = sql.Identifier(role)
    wide = sql.SQL("SELECT, INSERT, UPDATE, DELETE")
    statements = [
        sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(name),
        sql.SQL("GRANT {} ON ALL TABLES IN SCHEMA public TO {}").format(wide, name),
        sql.SQL("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(name),
        sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT {} ON TABLES TO {}").format(wide, name),
        sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {}").format(name),
    ]
    statements += [
        sql.SQL("REVOKE UPDATE, DELETE, TRUNCATE ON {} FROM {}").format(sql.Identifier(table), name)
        for table in append_only
    ]
    statements += [
        sql.SQL("REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {} FROM {}").format(sql.Identifier(table), name)
        for table in OWNER_WRITES
    ]
    return statements
