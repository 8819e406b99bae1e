"""`manage.py status`: what runs, since when, with how much memory."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.management.options import layout_from_settings
from controlplane.supervisor.control import format_status, status_rows


class Command(BaseCommand):
    help = "Show every process with state, pid, uptime and memory; exit status 1 when one is not ready."
    requires_system_checks = []

    def handle(self, *_args: Any, **_options: Any) -> None:
        rows = status_rows(layout_from_settings())
        if not rows:
            raise CommandError("Farrier is not running: start it with `make up`.")
        self.stdout.write(format_status(rows))
        troubled = [
            row.name for row in rows if row.state not in ("ready", "done") or (row.note and row.state == "ready")
        ]
        if troubled:
            raise CommandError(f"Not ready: {', '.join(troubled)}.")
