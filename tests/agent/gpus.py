"""Simulated GPUs for tests, under the real pynvml, with a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from node.agent.gateway import Listen
from node.agent.hardware.devices import Device, Devices, find
from node.agent.hardware.simulated import library
from node.agent.hardware.simulated.host import SimulatedHost
from node.agent.settings import HardwareMode, Settings

NOON_S = 1_790_000_000.0 // 86_400 * 86_400 + 14 * 3_600.0  # 14:00 UTC of some day: the busiest hour


@dataclass
class Clock:
    """A clock for the wall and for durations alike."""

    now_s: float = NOON_S

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


@dataclass
class Rig:
    """A host with simulated GPUs that has started just now."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    devices: Devices = field(default_factory=Devices)

    @property
    def host(self) -> SimulatedHost:
        """The simulation itself."""
        assert self.devices.simulated is not None
        return self.devices.simulated

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs found."""
        return self.devices.gpus

    def script(self, *faults: dict[str, Any]) -> None:
        """Write the scenario, whatever was in it."""
        entries = [{"node": "node-2", **fault} for fault in faults]
        (self.folder / "scenario.json").write_text(json.dumps(entries))

    def settings(self, **changes: Any) -> Settings:
        """The agent's settings for this host."""
        fields: dict[str, Any] = {
            "home": self.folder / "home",
            "server": "http://127.0.0.1:1",
            "name": "node-2",
            "zone": "zone-a",
            "gateway": Listen("127.0.0.1", 1),
            "hardware": HardwareMode.SIMULATED,
            "scenario": self.folder / "scenario.json",
        }
        return Settings(**(fields | changes))


@contextmanager
def restored() -> Iterator[None]:
    """Give pynvml back as it was: what a simulation installs holds for the whole process."""
    before = (pynvml.nvmlLib, pynvml._LoadNvmlLibrary, dict(pynvml._nvmlGetFunctionPointer_cache))
    try:
        yield
    finally:
        pynvml.nvmlLib, pynvml._LoadNvmlLibrary = before[:2]
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(before[2])


@contextmanager
def rig_of(folder: Path, *faults: dict[str, Any], gpus: int = 8) -> Iterator[Rig]:
    """Eight simulated GPUs for the length of the block."""
    rig = Rig(folder)
    rig.script(*faults)
    with restored():
        rig.devices = find(rig.settings(simulated_gpus=gpus), rig.clock)
        yield rig


def without(*names: str) -> None:
    """Make the installed library that of an older driver, which lacks these functions."""
    lacking = type("OlderNvml", (library.SimulatedNvml,), {name: property(_missing) for name in names})
    pynvml.nvmlLib.__class__ = lacking
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _missing(_: object) -> None:
    raise AttributeError("this driver lacks it")
