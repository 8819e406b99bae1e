"""A backup on disk: a folder with the dump, the artifacts, the keys, and a manifest of SHA-256 sums over all of it.

manifest.json         format, when, what the database was, and every file with length and SHA-256
database.dump         pg_dump's custom format
artifacts/…           the artifact store
keys/…                all keys but private release keys, which are the publisher's to keep
secrets.json          users' first passwords and the session key; no passwords of services
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.lib.errors import DomainError

FORMAT = 1
MANIFEST = "manifest.json"
DUMP = "database.dump"
ARTIFACTS = "artifacts"
KEYS = "keys"
SECRETS = "secrets.json"
PIECE_BYTES = 1 << 20
# Passwords of the services of one installation: another installation has its own.
NOT_PORTABLE = ("postgres_superuser", "postgres_owner", "postgres_app", "redis")


@dataclass(frozen=True)
class Summary:
    """What a person wants to hear after a backup."""

    files: int
    total_bytes: int
    left_out: list[str]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def files_below(folder: Path) -> Iterator[Path]:
    """Every regular file below a folder, in name order; uploads still in progress are left out."""
    if folder.is_dir():
        yield from sorted(
            path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".tmp"
        )


def is_private_release_key(path: Path, home: Path) -> bool:
    """True for what only the publisher should hold."""
    return path.relative_to(home).parts[:2] == (KEYS, "release") and b"PRIVATE KEY" in path.read_bytes()[:4096]


def collect(home: Path, target: Path) -> list[str]:
    """Copy artifacts, keys and portable secrets from a home; return what was left out."""
    left_out = []
    for path in (*files_below(home / ARTIFACTS), *files_below(home / KEYS)):
        name = path.relative_to(home)
        if is_private_release_key(path, home):
            left_out.append(str(name))
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    if (home / SECRETS).is_file():
        stored: dict[str, Any] = json.loads((home / SECRETS).read_text())
        portable = {name: value for name, value in stored.items() if name not in NOT_PORTABLE}
        write_private(target / SECRETS, json.dumps(portable, indent=1))
    return left_out


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def seal(target: Path, facts: dict[str, Any]) -> tuple[int, int]:
    """Write the manifest over every file; return their number and total length."""
    paths = list(files_below(target))
    sizes = [path.stat().st_size for path in paths]
    rows = {
        str(path.relative_to(target)): {"bytes": size, "sha256": sha256_of(path)}
        for path, size in zip(paths, sizes, strict=True)
    }
    (target / MANIFEST).write_text(json.dumps({"format": FORMAT, **facts, "files": rows}, indent=1))
    return len(rows), sum(sizes)


def check(source: Path) -> dict[str, Any]:
    """The manifest, after every file was found as it says. Raises DomainError naming the first that differs."""
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise DomainError("no_backup", f"{source} holds no backup: its {MANIFEST} can't be read ({error}).") from error
    if manifest.get("format") != FORMAT:
        raise DomainError(
            "backup_format", f"{source} has format {manifest.get('format')}; this version reads {FORMAT}."
        )
    for name, row in manifest["files"].items():
        path = source / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise DomainError("backup_damaged", f"The manifest of {source} names a file outside of it: {name}.")
        if not path.is_file() or path.stat().st_size != row["bytes"] or sha256_of(path) != row["sha256"]:
            raise DomainError("backup_damaged", f"{path} is missing or not what was backed up: nothing was restored.")
    extra = {str(path.relative_to(source)) for path in files_below(source)} - {MANIFEST, *manifest["files"]}
    if extra:
        raise DomainError("backup_damaged", f"{source / min(extra)} is not in the manifest: nothing was restored.")
    return manifest


def bring_back_artifacts(source: Path, home: Path) -> None:
    """Copy artifacts into a home: named by content, they never replace anything else."""
    _copy_tree(source / ARTIFACTS, home / ARTIFACTS)


def bring_back_keys(source: Path, home: Path) -> None:
    """Copy keys into a home, each file whole or not at all, and merge the secrets."""
    _copy_tree(source / KEYS, home / KEYS)
    if (source / SECRETS).is_file():
        stored = json.loads((home / SECRETS).read_text()) if (home / SECRETS).is_file() else {}
        write_private(home / SECRETS, json.dumps(stored | json.loads((source / SECRETS).read_text()), indent=1))


def _copy_tree(source: Path, target: Path) -> None:
    for path in files_below(source):
        copy = target / path.relative_to(source)
        if copy.is_file() and sha256_of(copy) == sha256_of(path):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        temporary = copy.with_name(copy.name + ".tmp")
        shutil.copy2(path, temporary)
        temporary.replace(copy)
