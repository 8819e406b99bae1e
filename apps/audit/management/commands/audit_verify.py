"""`manage.py audit_verify`: has anybody changed the past? Exit status 1 when so."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from django.core.management.base import BaseCommand, CommandError

from apps.audit.keys import read_checkpoints, signing_key
from apps.audit.verify import verify_chain
from apps.lib.errors import DomainError


class Command(BaseCommand):
    help = "Recompute the audit chain and hold it against its signed checkpoints."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--checkpoints", type=Path, help="checkpoints.jsonl as it was shipped off the machine")
        parser.add_argument("--public-key", type=Path, help="PEM of the audit key's public half, kept elsewhere")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            shipped = read_checkpoints(options["checkpoints"]) if options["checkpoints"] else []
            report = verify_chain(_key(options["public_key"]), shipped=shipped)
        except (DomainError, OSError, ValueError) as error:
            raise CommandError(str(error)) from error
        for finding in report.findings:
            self.stderr.write(f"{finding.code} at link {finding.position}: {finding.sentence}")
        summary = f"{report.links} links, {report.checkpoints} checkpoints, {len(report.findings)} findings"
        if not report.intact:
            raise CommandError(f"The audit chain has been tampered with: {summary}.")
        self.stdout.write(f"The audit chain is intact: {summary}.")


def _key(path: Path | None) -> Ed25519PublicKey:
    if path is None:
        return signing_key().public_key()
    key = load_pem_public_key(path.read_bytes())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{path} is no Ed25519 public key.")
    return key
