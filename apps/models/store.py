"""The artifact store: verified .aifb files under their digest, written whole or not at all. No database in here."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from aifb import lineage, tree
from aifb.errors import AifbError
from aifb.header import HEADER_BYTES, Header
from aifb.reader import Artifact, open_artifact
from apps.lib.errors import DomainError

PIECE_BYTES = 1 << 20
SPARE_BYTES = 1 << 28  # what an upload must leave free on the disk
STALE_UPLOAD = timedelta(hours=24)
Read = Callable[[int], bytes]


@dataclass(frozen=True)
class Checked:
    """What the store found out about a file by itself, whatever its publisher says."""

    digest: str
    total_bytes: int
    flat_sha3_512: str
    leaf_table: bytes  # 128-byte header and leaves
    model_hash: str
    graph_hash: str
    tensors: list[dict[str, Any]]


def refusal(error: AifbError) -> DomainError:
    """Return what the caller is told when the format's own checks refuse something."""
    return DomainError(error.code, error.sentence, status=422)


def root_folder() -> Path:
    return Path(settings.FARRIER.home) / "artifacts"


def path_of(digest: str) -> Path:
    """Return where the artifact of `digest` (128 hex characters) lies, or would lie."""
    return root_folder() / "sha3" / digest[:2] / f"{digest}.aifb"


def receive(read: Read, *, digest: str, length: int) -> Checked:
    """Stream `length` bytes from `read` into the store and verify them; constant memory, whatever the length.

    The file appears under its digest only when every chunk leads to it. Raises DomainError: the codes of
    aifb.header, aifb.tree and aifb.reader with status 422, `truncated` when the body ends early, `disk_full`.
    """
    incoming = root_folder() / "incoming"
    incoming.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(incoming).free < length + SPARE_BYTES:
        raise DomainError(
            "disk_full", f"The store has no room for {length} bytes; free some or add a disk.", status=507
        )
    fd, temporary = tempfile.mkstemp(dir=incoming, suffix=".part")
    try:
        with os.fdopen(fd, "w+b") as file:
            flat = _copy(read, file.write, digest, length)
            file.flush()
            checked = _check(file.fileno(), digest, length, flat)
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        _put(Path(temporary), path_of(digest))
    except AifbError as refused:
        raise refusal(refused) from refused
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return checked


def _copy(read: Read, write: Callable[[bytes], Any], digest: str, length: int) -> str:
    """Copy the body, judging its header before the rest is read; return its flat SHA3-512 in hex."""
    head = _exactly(read, min(HEADER_BYTES, length))
    header = Header.parse(head)
    if header.root.hex() != digest:
        raise AifbError("root_mismatch", "The file's root is not the digest in the address: it is another artifact.")
    if header.total_bytes != length:
        raise AifbError("length_mismatch", f"The header says {header.total_bytes} bytes, Content-Length says {length}.")
    flat = hashlib.sha3_512(head)
    write(head)
    left = length - len(head)
    while left:
        piece = _exactly(read, min(PIECE_BYTES, left))
        flat.update(piece)
        write(piece)
        left -= len(piece)
    return flat.hexdigest()


def _exactly(read: Read, count: int) -> bytes:
    pieces, left = [], count
    while left:
        piece = read(left)
        if not piece:
            raise DomainError("truncated", "The upload ended before its Content-Length; send it again.")
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check(fd: int, digest: str, length: int, flat: str) -> Checked:
    leaf_table = tree.leaf_table_bytes(fd)  # hashes every chunk and leads them back to the root
    with open_artifact(fd, expected_root=bytes.fromhex(digest), verify=False) as artifact:
        return _describe(artifact, digest, length, flat, leaf_table)


def _describe(artifact: Artifact, digest: str, length: int, flat: str, leaf_table: bytes) -> Checked:
    tensors = artifact.tensors()
    entries = lineage.model_entries(tensors)
    rows = [
        {
            "name": name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "bytes": tensor.byte_length,
            "alias_of": tensor.alias_of,
            "sha256": "" if tensor.alias_of else entries[name].rsplit(" ", 1)[1],
        }
        for name, tensor in sorted(tensors.items())
    ]
    model_hash = lineage.hash_entries("model", entries)
    graph_hash = lineage.graph_hash(artifact.metadata.graph)
    return Checked(digest, length, flat, leaf_table, model_hash, graph_hash, rows)


def _put(temporary: Path, path: Path) -> None:
    """Rename into place, durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, path)
    for folder in (path.parent, path.parent.parent):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sweep(*, now: datetime) -> int:
    """Delete uploads that broke off a day ago or longer; return how many."""
    gone = 0
    for part in (root_folder() / "incoming").glob("*.part"):
        with suppress(FileNotFoundError):  # another sweep was quicker
            if part.stat().st_mtime < (now - STALE_UPLOAD).timestamp():
                part.unlink()
                gone += 1
    return gone
