"""Binding a unix socket where an earlier owner may have left its file."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

_BACKLOG = 1024
# sockaddr_un holds 108 bytes with the closing zero
_MAX_PATH_BYTES = 107


def bind_unix(path: Path, *, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A listening unix socket at `path`, mode 0660. A stale socket file is replaced, any other file is left alone.

    Raises OSError: the path is too long, something else lies there, or its folder is missing.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise OSError(f"the socket path {path} is longer than {_MAX_PATH_BYTES} bytes; use a shorter home directory")
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is no socket")
        path.unlink()
    except FileNotFoundError:
        pass  # the usual case: nobody was here before
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
