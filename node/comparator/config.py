"""Which versions are compared: a JSON file that the agent replaces, read again when it changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.comparator.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Side:
    """One of the two engines: its serving socket and the version that must answer there."""

    socket: Path
    version: int
    digest: str


@dataclass(frozen=True)
class Pairing:
    """What is compared for one model, and to which stage attempt of which rollout the result belongs."""

    deployment: str
    rollout: str
    stage: int
    attempt: int
    baseline: Side
    candidate: Side


@dataclass(frozen=True)
class Config:
    """Where rows go, and the pairings by model."""

    spool_dir: Path
    models: Mapping[str, Pairing]


def parse(raw: bytes) -> Config:
    """The configuration in `raw`; raises ConfigError."""
    try:
        document = json.loads(raw)
        models = {str(name): _pairing(entry) for name, entry in document["models"].items()}
        return Config(_absolute(document["spool_dir"]), models)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"The comparator's configuration can't be used: {error!r}.") from error


def _pairing(entry: Mapping[str, Any]) -> Pairing:
    return Pairing(
        deployment=str(entry["deployment"]),
        rollout=str(entry["rollout"]),
        stage=int(entry["stage"]),
        attempt=int(entry["attempt"]),
        baseline=_side(entry["baseline"]),
        candidate=_side(entry["candidate"]),
    )


def _side(entry: Mapping[str, Any]) -> Side:
    return Side(_absolute(entry["socket"]), int(entry["version"]), str(entry["digest"]))


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError(f"{text} is not an absolute path")
    return path


class ConfigFile:
    """The file at `path`; `current` is its last good content, `error` why the newest wasn't taken."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self.error: str | None = None
        self.current = self._read()

    def refresh(self) -> Config:
        """Read the file again if it was replaced; a bad or missing one changes nothing but `error`."""
        try:
            if self._stamp_of_file() != self._stamp:
                self.current = self._read()
                self.error = None
        except (ConfigError, OSError) as error:
            if self.error != str(error):
                log.warning("the last good configuration stays in force: %s", error)
            self.error = str(error)
        return self.current

    def _stamp_of_file(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> Config:
        # the stamp first: a file that is replaced meanwhile is read once more
        self._stamp = self._stamp_of_file()
        return parse(self._path.read_bytes())
