"""Scripted faults: a JSON list in a file, read again whenever it changes.

`[{"node": "node-2", "fault": "fan_off", "gpus": "all", "at_s": 120, "until_s": 900}]`: seconds count from the agent's
start; `"at"` and `"until"` are ISO times instead.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class FaultKind(StrEnum):
    """What can go wrong with simulated boards."""

    FAN_OFF = "fan_off"  # the host's cooling fails: warmer, yet below the boards' own limit
    XID = "xid"  # the driver tells an Xid; after 79 the board is off the bus
    LOST = "lost"
    ECC = "ecc"  # memory errors that could not be corrected
    THROTTLE = "throttle"  # the power supply pulls the brake


class Fault(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str
    fault: FaultKind
    gpus: tuple[int, ...] | Literal["all"] = "all"
    at_s: float | None = Field(default=None, ge=0)
    at: AwareDatetime | None = None
    until_s: float | None = Field(default=None, gt=0)
    until: AwareDatetime | None = None
    xid: int = Field(default=79, ge=1, le=10_000)
    time_constant_s: float = Field(default=30.0, gt=0)  # how fast boards follow when cooling fails or returns
    rise_c: float | None = Field(default=None, gt=0, le=60)  # instead of the usual 18, and then without a limit

    @model_validator(mode="after")
    def _has_one_start(self) -> Fault:
        if (self.at_s is None) == (self.at is None):
            raise ValueError("give either at_s or at")
        return self

    def hits(self, gpu: int) -> bool:
        """Whether GPU `gpu` of its node is struck."""
        return self.gpus == "all" or gpu in self.gpus

    def span(self, started_s: float) -> tuple[float, float]:
        """(begin, end) in Unix seconds for an agent that started at `started_s`; without an end it is infinite."""
        return (
            _moment(self.at, self.at_s, started_s, -math.inf),
            _moment(self.until, self.until_s, started_s, math.inf),
        )


_FAULTS = TypeAdapter(list[Fault])


def parse(raw: bytes) -> list[Fault]:
    """Read a scenario. Raises ValueError with a sentence that says where it is wrong."""
    try:
        return _FAULTS.validate_json(raw)
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"{where} is malformed: {first['msg']}") from None


@dataclass
class ScenarioFile:
    """The faults of one node in a file that may come, change and go. A malformed file changes nothing."""

    path: Path | None
    node: str
    error: str = ""
    _faults: tuple[Fault, ...] = ()
    _seen: tuple[int, int] | None = None
    _look_at_s: float = field(default=-math.inf)

    def faults(self, now_s: float) -> tuple[Fault, ...]:
        """What the file says now; it is looked at once a second."""
        if self.path is None or 0 <= now_s - self._look_at_s < LOOK_EVERY_S:
            return self._faults
        self._look_at_s = now_s
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._faults, self._seen, self.error = (), None, ""
            return ()
        if (stat.st_mtime_ns, stat.st_size) != self._seen:
            self._seen = (stat.st_mtime_ns, stat.st_size)
            self._read(self.path)
        return self._faults

    def _read(self, path: Path) -> None:
        try:
            self._faults = tuple(fault for fault in parse(path.read_bytes()) if fault.node == self.node)
            self.error = ""
        except (ValueError, OSError) as bad:
            self.error = f"The scenario {path} is not followed: {bad}."
            log.error("%s", self.error)


def _moment(at: datetime | None, at_s: float | None, started_s: float, default: float) -> float:
    if at is not None:
        return at.timestamp()
    return started_s + at_s if at_s is not None else default
