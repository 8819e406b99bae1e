"""The GPUs of this host as NVML lists them, whether a driver or the simulation answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from node.agent.hardware.simulated.host import SimulatedHost
from node.agent.hardware.simulated.library import SimulatedNvml, install
from node.agent.hardware.simulated.model import Host
from node.agent.hardware.simulated.scenario import ScenarioFile
from node.agent.settings import MAX_GPUS, HardwareMode, Settings

log = logging.getLogger(__name__)

_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@dataclass(frozen=True)
class Device:
    """One GPU: `handle` is NVML's."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    handle: Any

    def facts(self, *, simulated: bool) -> dict[str, Any]:
        """What the control plane is told of it."""
        return {
            "uuid": self.uuid,
            "index": self.index,
            "name": self.name,
            "memory_bytes": self.memory_bytes,
            "simulated": simulated,
        }


@dataclass(frozen=True)
class Devices:
    """What was found: GPUs, or why there are none."""

    gpus: tuple[Device, ...] = ()
    unreadable: tuple[tuple[int, str], ...] = ()  # GPUs that the driver counts and can't open, with its words
    driver: str = ""
    error: str = ""  # a sentence; empty where none were looked for
    simulated: SimulatedHost | None = None


def find(settings: Settings, now: Callable[[], float]) -> Devices:
    """Look for GPUs as the settings say. Never raises: what went wrong is told as a condition."""
    if settings.hardware == HardwareMode.NONE:
        return Devices()
    simulated = None
    if settings.hardware == HardwareMode.SIMULATED:
        scenario = ScenarioFile(settings.scenario, settings.name)
        simulated = SimulatedHost(Host(settings.name), settings.simulated_gpus, scenario, now)
        install(SimulatedNvml(simulated))
    try:
        pynvml.nvmlInit()
        count = min(pynvml.nvmlDeviceGetCount(), MAX_GPUS)
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as failed:
        if settings.hardware == HardwareMode.AUTO and failed.value in _NO_DRIVER:
            return Devices()  # nobody said that there is one; GPUs that were listed before are told lost
        log.error("NVML can't be used: %s", failed)
        return Devices(error=f"NVML can't be used: {failed}. Look at the driver with nvidia-smi.")
    gpus, unreadable = [], []
    for index in range(count):
        try:
            gpus.append(_open(index))
        except pynvml.NVMLError as failed:
            log.error("GPU %d can't be opened: %s", index, failed)
            unreadable.append((index, str(failed)))
    return Devices(tuple(gpus), tuple(unreadable), driver, simulated=simulated)


def _open(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    try:
        memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).total
    except pynvml.NVMLError:
        log.warning("GPU %d doesn't tell its memory", index)
        memory_bytes = 0
    return Device(index, uuid, name, memory_bytes, handle)
