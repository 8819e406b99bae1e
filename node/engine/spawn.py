"""The message that asks the fork server for an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.engine.errors import SpawnError
from node.engine.identity import LINEAGE_PARTS, Identity

MAX_MESSAGE_BYTES = 64 * 1024
_MAX_THREADS = 1024


@dataclass(frozen=True)
class SpawnRequest:
    """One engine to start: who it is, where its sockets, rows and log go, on how many threads it computes."""

    slot: str
    identity: Identity
    socket: Path
    health_socket: Path
    spool_dir: Path
    log: Path
    threads: int
    is_sandboxed: bool


def parse_message(raw: bytes) -> dict[str, Any]:
    """One message to the fork server. Raises SpawnError `bad_message`."""
    try:
        message = json.loads(raw)
    except ValueError as error:
        raise SpawnError("bad_message", f"The message to the fork server is not JSON: {error}.") from error
    if not isinstance(message, dict) or not isinstance(message.get("cmd"), str):
        raise SpawnError("bad_message", "The message to the fork server must be an object with a cmd.")
    return message


def parse_spawn(message: Mapping[str, Any]) -> SpawnRequest:
    """A spawn message, checked. Raises SpawnError `bad_message`."""
    lineage = message.get("lineage")
    if not isinstance(lineage, dict) or not all(isinstance(lineage.get(part), str) for part in LINEAGE_PARTS):
        raise SpawnError("bad_message", f"The spawn message's lineage must have the parts {', '.join(LINEAGE_PARTS)}.")
    digest = _text(message, "digest")
    if len(digest) != 128 or set(digest) - set("0123456789abcdef"):
        raise SpawnError("bad_message", "The spawn message's digest must be 128 lower-case hexadecimal characters.")
    identity = Identity(
        model=_header_text(message, "model"),
        version=_number(message, "version", 1, 2**31),
        digest=digest,
        lineage={part: _header_text(lineage, part) for part in LINEAGE_PARTS},
        deployment=_text(message, "deployment"),
    )
    sandbox = message.get("sandbox", True)
    if not isinstance(sandbox, bool):
        raise SpawnError("bad_message", "The spawn message's sandbox must be true or false.")
    return SpawnRequest(
        slot=_text(message, "slot"),
        identity=identity,
        socket=_path(message, "socket"),
        health_socket=_path(message, "health_socket"),
        spool_dir=_path(message, "spool_dir"),
        log=_path(message, "log"),
        threads=_number(message, "threads", 1, _MAX_THREADS),
        is_sandboxed=sandbox,
    )


def _text(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise SpawnError("bad_message", f"The spawn message needs a {key}, a line of text.")
    return value


def _header_text(message: Mapping[str, Any], key: str) -> str:
    """Text that goes into response headers."""
    value = _text(message, key)
    if not value.isascii():
        raise SpawnError("bad_message", f"The spawn message's {key} must be ASCII text.")
    return value


def _path(message: Mapping[str, Any], key: str) -> Path:
    path = Path(_text(message, key))
    if not path.is_absolute():
        raise SpawnError("bad_message", f"The spawn message's {key} must be an absolute path, not {path}.")
    return path


def _number(message: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = message.get(key)
    if type(value) is not int or not least <= value <= most:
        raise SpawnError("bad_message", f"The spawn message's {key} must be a whole number from {least} to {most}.")
    return value
