"""`manage.py bootstrap`: team, users, keys, trust root, pool, strategies, tokens. Idempotent."""

from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from controlplane.bootstrap import bootstrap
from controlplane.management.options import layout_from_settings
from controlplane.supervisor.credentials import load_or_create


class Command(BaseCommand):
    help = "Make what a new installation lacks: team, users, keys, trust root, pool, strategies, tokens."

    def handle(self, *_args: Any, **_options: Any) -> None:
        secrets = layout_from_settings().secrets
        secrets.parent.mkdir(parents=True, exist_ok=True)
        load_or_create(secrets)
        bootstrap(secrets=secrets, now=timezone.now(), say=self.stdout.write)
