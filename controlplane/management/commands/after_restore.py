"""`manage.py after_restore`: what a restored database needs before it is used. Started by `manage.py restore`."""

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from apps.audit.services import mark_restored
from controlplane.management.owner import migrate_as_owner


class Command(BaseCommand):
    help = "Migrate a restored database, set the rights of its roles and raise the audit's restore epoch."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        migrate_as_owner()
        call_command("grant_app_role")
        # Transaction ids start over in a restored cluster; the order of audit events must not.
        mark_restored()
