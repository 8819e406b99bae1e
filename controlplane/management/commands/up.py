"""`manage.py up`: start everything on this machine and watch it."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.management.options import options_from_settings
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.launch import up
from controlplane.supervisor.logs import Terminal


class Command(BaseCommand):
    help = "Start Farrier on this machine: database, broker, web, workers, edge, nodes. Ctrl-C stops it."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            up(options_from_settings(), Terminal())
        except SupervisorError as error:
            raise CommandError(str(error)) from error
