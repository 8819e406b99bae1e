"""What an agent is told on its command line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from node.agent.gateway import Listen

MAX_GPUS = 64  # a batch of samples can name so many


class HardwareMode(StrEnum):
    """Where the agent looks for GPUs."""

    AUTO = "auto"  # NVML where there is a driver, else nowhere
    NVML = "nvml"
    SIMULATED = "simulated"
    NONE = "none"


@dataclass(frozen=True)
class Settings:
    """One agent's settings; times in seconds."""

    home: Path
    server: str
    name: str
    zone: str
    gateway: Listen
    join_token_file: Path | None = None
    ca_file: Path | None = None  # whom to believe that a server is the control plane, instead of the system's list
    poll_interval_s: float | None = None  # instead of what the server asks for
    telemetry_interval_s: float = 5.0
    tick_s: float = 1.0
    hardware: HardwareMode = HardwareMode.AUTO
    simulated_gpus: int = 8
    sample_interval_s: float = 1.0
    scenario: Path | None = None  # scripted faults of simulated GPUs
