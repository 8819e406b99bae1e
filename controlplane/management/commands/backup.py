"""`manage.py backup DIR`: database, artifacts and keys into a new folder, while everything runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.lib.errors import DomainError
from controlplane.backup import archive
from controlplane.backup.database import Target, dump, facts
from controlplane.management.options import layout_from_settings, options_from_settings
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.offline import database


class Command(BaseCommand):
    help = "Save database, artifact store and keys (without private release keys) into a folder that is not there yet."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path)

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            summary = back_up(options["folder"].absolute())
        except (DomainError, SupervisorError) as error:
            raise CommandError(str(error)) from error
        size_mb = summary.total_bytes / 1e6
        self.stdout.write(f"Saved {summary.files} files, {size_mb:.1f} MB, in {options['folder'].absolute()}")
        self.stdout.write("In it: the database, the artifact store, root and director keys, users' first passwords.")
        for name in summary.left_out:
            self.stdout.write(f"Not in it: {name} (a private release key is the publisher's to keep)")


def back_up(folder: Path) -> archive.Summary:
    """Write a backup. It appears under its name when it is whole. Raises DomainError or SupervisorError."""
    if folder.exists():
        raise DomainError("backup_exists", f"{folder} is there already: name a new folder.")
    layout = layout_from_settings()
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        unfinished.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise DomainError(
            "backup_unfinished",
            f"{unfinished} is left from a backup that didn't end, or one runs now: remove it first.",
        ) from error
    with database(options_from_settings(), layout) as urls:
        target = Target(urls.owner)
        # The database first: whatever it names is in the store already, and artifacts never change.
        dump(target, unfinished / archive.DUMP)
        left_out = archive.collect(layout.home, unfinished)
        files, total_bytes = archive.seal(unfinished, {"at": datetime.now(UTC).isoformat(), **facts(target)})
    unfinished.rename(folder)
    return archive.Summary(files, total_bytes, left_out)
