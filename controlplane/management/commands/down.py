"""`manage.py down`: stop what `manage.py up` started in another terminal."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.management.options import layout_from_settings
from controlplane.supervisor.control import down
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.logs import Terminal


class Command(BaseCommand):
    help = "Stop Farrier in order and keep its data; also ends engines that a killed start left behind."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        try:
            down(layout_from_settings(), Terminal())
        except SupervisorError as error:
            raise CommandError(str(error)) from error
