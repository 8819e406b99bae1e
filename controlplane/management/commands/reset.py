"""`manage.py reset`: forget everything."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.management.options import layout_from_settings
from controlplane.supervisor.control import reset
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.logs import Terminal


class Command(BaseCommand):
    help = "Delete the database, models, keys and nodes of this machine's Farrier, after asking."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--yes", action="store_true", help="don't ask")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            reset(layout_from_settings(), Terminal(), (lambda _question: True) if options["yes"] else ask)
        except SupervisorError as error:
            raise CommandError(str(error)) from error


def ask(question: str) -> bool:
    """Ask at the terminal; without one, the answer is no."""
    if not sys.stdin.isatty():
        raise CommandError("There is no terminal to ask at: say `make reset YES=1`.")
    return input(f"{question} Type yes: ").strip().lower() == "yes"
