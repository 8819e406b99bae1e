"""Secrets that the first start makes and later starts read again."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from controlplane.supervisor.errors import SupervisorError

USERS = ("requester", "lead", "oncall", "admin")


def _word() -> str:
    # 20 characters without look-alikes that a person can read from the banner and type.
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(4))


def _token() -> str:
    return secrets.token_urlsafe(32)


def _user_passwords() -> dict[str, str]:
    return {user: _word() for user in USERS}


@dataclass(frozen=True)
class Secrets:
    """Everything `secrets.json` holds."""

    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(50))
    postgres_superuser: str = field(default_factory=_token)
    postgres_owner: str = field(default_factory=_token)
    postgres_app: str = field(default_factory=_token)
    redis: str = field(default_factory=_token)
    users: dict[str, str] = field(default_factory=_user_passwords)
    metrics_token: str = field(default_factory=_token)


# What a file of an earlier release doesn't hold is made now and added to it.
LATER = frozenset({"metrics_token"})


def load_or_create(path: Path) -> Secrets:
    """Read `path`, or write it with new secrets (mode 0600). Raises SupervisorError when it can't be understood."""
    if not path.exists():
        made = Secrets()
        _write(path, made)
        return made
    try:
        stored = json.loads(path.read_text())
        names = [f.name for f in fields(Secrets) if f.name not in LATER or f.name in stored]
        known = Secrets(**{name: stored[name] for name in names})
    except (ValueError, KeyError, TypeError) as error:
        raise SupervisorError(
            "secrets_unreadable",
            f"{path} does not hold the secrets of this version ({error!r}): restore it from a backup, or start afresh "
            "with `make reset`.",
        ) from error
    if not stored.keys() >= LATER:
        _write(path, known, stored)
    return known


def _write(path: Path, made: Secrets, others: Mapping[str, Any] | None = None) -> None:
    """Write all of it, beside what others keep in the same file."""
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump({**(others or {}), **asdict(made)}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)
