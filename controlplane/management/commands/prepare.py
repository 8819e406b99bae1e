"""`manage.py prepare`: everything between a reachable database and a first request. Idempotent."""

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from controlplane.management.options import layout_from_settings
from controlplane.supervisor.credentials import load_or_create


class Command(BaseCommand):
    help = "Migrate, give the web's role its rights, make keys and users, gather static files."

    def handle(self, *_args: Any, **_options: Any) -> None:
        # `make up` has made them already; a deployment that starts its processes itself has not.
        load_or_create(layout_from_settings().secrets)
        owner = "owner" if "owner" in settings.DATABASES else "default"
        call_command("migrate", database=owner, interactive=False, verbosity=1)
        call_command("grant_app_role")
        call_command("bootstrap")
        call_command("collectstatic", interactive=False, verbosity=0)
