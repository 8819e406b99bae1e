"""`manage.py restore DIR`: bring a backup back while Farrier is stopped."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.lib.errors import Conflict, DomainError
from controlplane.backup import archive
from controlplane.backup.database import Target, check_restorable, restore
from controlplane.management.options import layout_from_settings, options_from_settings
from controlplane.settings import BASE_DIR
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.offline import DatabaseUrls, database
from controlplane.supervisor.statefile import Lock


class Command(BaseCommand):
    help = "Restore a backup into an empty database, or over an existing one with --force. Farrier must be stopped."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)
        parser.add_argument("--force", action="store_true", help="replace the data that is there")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            bring_back(options["folder"].absolute(), force=options["force"])
        except (DomainError, SupervisorError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            "Restored. `make up` goes on from the backup; nodes accept the next assignment by themselves."
        )


def bring_back(folder: Path, *, force: bool) -> None:
    """Check the whole backup, then replace database, artifacts and keys. Raises DomainError or SupervisorError."""
    archive.check(folder)
    layout, options = layout_from_settings(), options_from_settings()
    if options.database_url is None and Lock(layout.lock).holder() is not None:
        raise Conflict("still_running", "Farrier is running: stop it with `make down` first.")
    with database(options, layout) as urls:
        target = Target(urls.owner)
        check_restorable(target, force)
        archive.bring_back_artifacts(folder, layout.home)
        restore(target, folder / archive.DUMP)
        archive.bring_back_keys(folder, layout.home)
        _migrate_and_mark(layout, urls)


def _migrate_and_mark(layout: Layout, urls: DatabaseUrls) -> None:
    """In a process of its own: this one may have been set up without a database."""
    environment = os.environ | {
        "DATABASE_URL": urls.app,
        "FARRIER_OWNER_DATABASE_URL": urls.owner,
        "FARRIER_HOME": str(layout.home),
        "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
    }
    command = [sys.executable, str(BASE_DIR / "manage.py"), "after_restore"]
    done = subprocess.run(command, env=environment, cwd=BASE_DIR, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        raise DomainError("after_restore", f"The data is back, but what follows failed: {words[-1] if words else ''}")
