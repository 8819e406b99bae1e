"""Migrations run as the owner of the tables."""

import os
import subprocess
import sys

from django.conf import settings
from django.core.management.base import CommandError

from controlplane.settings import BASE_DIR


def migrate_as_owner() -> None:
    """Run `migrate` in a process whose only database role is the owner. Raises CommandError.

    Data migrations write through the default connection, so `--database owner` here would not reach them.
    """
    environment = dict(os.environ)
    if owner_url := settings.FARRIER.owner_database_url:
        environment |= {"DATABASE_URL": owner_url, "FARRIER_OWNER_DATABASE_URL": ""}
    command = [sys.executable, "manage.py", "migrate", "--no-input"]
    done = subprocess.run(command, cwd=BASE_DIR, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise CommandError(f"The migrations failed: {words[-1] if words else 'no reason given'}")
