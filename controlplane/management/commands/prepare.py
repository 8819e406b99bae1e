"""`manage.py prepare`: everything between a reachable database and a first request. Idempotent."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.management.owner import migrate_as_owner


class Command(BaseCommand):
    help = "Migrate, give the web's role its rights, make keys and users, gather static files."
    requires_system_checks = []  # `migrate` runs them, in a process of its own

    def handle(self, *_args: Any, **_options: Any) -> None:
        migrate_as_owner()
        self.stdout.write("The database is migrated.")
        call_command("grant_app_role")
        call_command("bootstrap")
        call_command("collectstatic", interactive=False, verbosity=0)
