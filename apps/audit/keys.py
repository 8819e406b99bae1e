"""The Ed25519 key that signs checkpoints of the audit chain, and what exactly it signs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings

from apps.audit.models import Checkpoint
from apps.lib.errors import Conflict


def key_path() -> Path:
    """Return where the private key lies: FARRIER_AUDIT_KEY, else below FARRIER_HOME/keys/audit."""
    path: Path | None = settings.FARRIER.audit_key
    return path or Path(settings.FARRIER.home) / "keys" / "audit" / "audit.pem"


def signing_key() -> Ed25519PrivateKey:
    """Read the private key. Raises Conflict when there is none or it is of another kind."""
    path = key_path()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as missing:
        raise Conflict("no_audit_key", f"There is no audit key at {path}; run `manage.py bootstrap`.") from missing
    except ValueError as bad:
        raise Conflict("bad_audit_key", f"{path} is no unencrypted PEM key; restore it from a backup.") from bad
    if not isinstance(key, Ed25519PrivateKey):
        raise Conflict("bad_audit_key", f"{path} is no Ed25519 key; restore it from a backup.")
    return key


def new_key_pem() -> bytes:
    """Return a fresh private key as unencrypted PKCS #8 PEM: keep it in a file of mode 0600."""
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def checkpoint_text(checkpoint: Checkpoint) -> bytes:
    """Return the text that a checkpoint's signature covers."""
    at = checkpoint.at.astimezone(UTC).isoformat(timespec="microseconds")
    return f"farrier-audit-v1\n{checkpoint.position}\n{bytes(checkpoint.hash).hex()}\n{at}".encode()


def is_genuine(checkpoint: Checkpoint, key: Ed25519PublicKey) -> bool:
    """Tell whether the checkpoint was signed by `key`."""
    try:
        key.verify(bytes(checkpoint.signature), checkpoint_text(checkpoint))
    except InvalidSignature:
        return False
    return True


def checkpoint_file() -> Path:
    return Path(settings.FARRIER.home) / "audit" / "checkpoints.jsonl"


def append_checkpoint(checkpoint: Checkpoint) -> None:
    """Append a checkpoint to the file that is shipped off the machine."""
    path = checkpoint_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    line: dict[str, Any] = {
        "position": checkpoint.position,
        "hash": bytes(checkpoint.hash).hex(),
        "at": checkpoint.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "signature": bytes(checkpoint.signature).hex(),
    }
    with path.open("a") as out:
        out.write(json.dumps(line) + "\n")


def read_checkpoints(path: Path) -> list[Checkpoint]:
    """Read shipped checkpoints. Raises ValueError for a malformed line, except a last one that was cut off."""
    found = []
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            checkpoint = Checkpoint(
                position=row["position"],
                hash=bytes.fromhex(row["hash"]),
                at=datetime.fromisoformat(row["at"]),
                signature=bytes.fromhex(row["signature"]),
            )
        except (ValueError, KeyError, TypeError) as bad:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(f"{path}, line {number} is no checkpoint.") from bad
        found.append(checkpoint)
    return found
