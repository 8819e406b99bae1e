"""Files that survive a crash whole: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make renames and deletions inside `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `content`; after a crash either the old or the new content is there, never a mixture.

    One writer per path: the temporary name is fixed, so a crash leaves at most one stray file,
    overwritten next time.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)  # the file may be left over from a crash, with another mode
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """`write_atomically` of `value` as readable JSON."""
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n", mode=mode)


def read_json(path: Path) -> Any | None:
    """Return the parsed file, or None when there is none. Raises ValueError when it isn't JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
