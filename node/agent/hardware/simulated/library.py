"""NVML's C functions, answered by a simulated host: an object that stands where `pynvml` keeps the loaded library.

The package calls functions by name with ctypes values; out-parameters come as `byref()` objects whose `_obj` is filled
in; a number that is returned becomes the package's own exception. So all of its marshalling and error handling runs,
as it would over a driver. A function that is not here looks like one that an old driver lacks. Handles are small
numbers in the handle's pointer.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import pynvml

from node.agent.hardware.simulated import model
from node.agent.hardware.simulated.host import Gpu, SimulatedHost

OK: int = pynvml.NVML_SUCCESS
DRIVER = b"simulated"
SAMPLE_US = 166_667  # between two of a driver's own samples of utilisation
SAMPLES_KEPT = 120

_FIELDS: dict[int, Callable[[Gpu], int]] = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: lambda gpu: gpu.memory_temperature_c,
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: lambda gpu: gpu.pcie_rx_bytes,
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: lambda gpu: gpu.pcie_tx_bytes,
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: lambda gpu: gpu.pcie_replays,
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: lambda gpu: gpu.ecc_corrected,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: lambda gpu: gpu.ecc_uncorrected,
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: lambda gpu: gpu.nvlink_errors,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: lambda _: 0,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: lambda _: 0,
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: lambda gpu: gpu.recovery_action,
}


def install(library: SimulatedNvml) -> None:
    """Make `pynvml` use this library in this process, in place of the driver's."""
    pynvml.nvmlLib = library
    pynvml._LoadNvmlLibrary = lambda: None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _of_gpu(answer: Callable[..., int | None]) -> Callable[..., int]:
    """A function of one board: gets its state, unless it is off the bus."""

    @functools.wraps(answer)
    def call(self: SimulatedNvml, handle: Any, *arguments: Any) -> int:
        gpu = self.host.gpu(_number(handle))
        if gpu.is_lost:
            return int(pynvml.NVML_ERROR_GPU_IS_LOST)
        return answer(self, gpu, *arguments) or OK

    return call


class SimulatedNvml:
    """The functions that the sampler asks for, under their C names."""

    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self._registered: set[int] = set()
        self._lock = threading.Lock()

    def nvmlInitWithFlags(self, _flags: int) -> int:
        return OK

    def nvmlShutdown(self) -> int:
        return OK

    def nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:
        text.value = DRIVER
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.host.count
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if not 0 <= index.value < self.host.count:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        # null is no handle
        ctypes.c_void_p.from_buffer(handle._obj).value = index.value + 1
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> int:
        text.value = self.host.host.gpu_uuid(_number(handle)).encode()
        return OK

    def nvmlDeviceGetName(self, _handle: Any, text: Any, _size: Any) -> int:
        text.value = model.NAME.encode()
        return OK

    @_of_gpu
    def nvmlDeviceGetMemoryInfo_v2(self, gpu: Gpu, memory: Any) -> None:
        found = memory._obj
        found.total, found.used = model.MEMORY_BYTES, gpu.memory_used_bytes
        found.free = found.total - found.used

    @_of_gpu
    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu, rates: Any) -> None:
        rates._obj.gpu, rates._obj.memory = gpu.utilization_percent, gpu.memory_percent

    @_of_gpu
    def nvmlDeviceGetSamples(
        self, gpu: Gpu, kind: Any, after: Any, value_type: Any, count: Any, samples: Any
    ) -> int | None:
        """One sample each SAMPLE_US, as far back as a driver keeps them; without an array only how many may come."""
        values = {
            pynvml.NVML_GPU_UTILIZATION_SAMPLES: gpu.utilization_percent,
            pynvml.NVML_MEMORY_UTILIZATION_SAMPLES: gpu.memory_percent,
        }
        if kind.value not in values:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        newest = round(self.host.now() * 1e6) // SAMPLE_US
        if samples is None:
            count._obj.value = SAMPLES_KEPT
            return None
        first = max(newest - SAMPLES_KEPT + 1, after.value // SAMPLE_US + 1)
        if first > newest:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        for place, number in enumerate(range(first, newest + 1)):
            samples[place].timeStamp = number * SAMPLE_US
            samples[place].sampleValue.uiVal = values[kind.value]
        value_type._obj.value = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        count._obj.value = newest - first + 1
        return None

    @_of_gpu
    def nvmlDeviceGetTemperatureV(self, gpu: Gpu, reading: Any) -> None:
        reading._obj.temperature = gpu.temperature_c

    @_of_gpu
    def nvmlDeviceGetPowerUsage(self, gpu: Gpu, milliwatts: Any) -> None:
        milliwatts._obj.value = gpu.power_mw

    @_of_gpu
    def nvmlDeviceGetClockInfo(self, gpu: Gpu, kind: Any, mhz: Any) -> int | None:
        clocks = {pynvml.NVML_CLOCK_SM: gpu.sm_mhz, pynvml.NVML_CLOCK_MEM: gpu.memory_mhz}
        if kind.value not in clocks:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        mhz._obj.value = clocks[kind.value]
        return None

    @_of_gpu
    def nvmlDeviceGetFanSpeed(self, gpu: Gpu, percent: Any) -> None:
        # a real board of this kind has no fan of its own; this one tells its host's
        percent._obj.value = gpu.fan_percent

    @_of_gpu
    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu, reasons: Any) -> None:
        reasons._obj.value = gpu.throttle

    @_of_gpu
    def nvmlDeviceGetCurrPcieLinkGeneration(self, _gpu: Gpu, generation: Any) -> None:
        generation._obj.value = model.PCIE_GENERATION

    @_of_gpu
    def nvmlDeviceGetCurrPcieLinkWidth(self, _gpu: Gpu, width: Any) -> None:
        width._obj.value = model.PCIE_LANES

    @_of_gpu
    def nvmlDeviceGetFieldValues(self, gpu: Gpu, _count: Any, values: Any) -> None:
        for value in values._obj:
            read = _FIELDS.get(value.fieldId)
            value.nvmlReturn = OK if read else pynvml.NVML_ERROR_NOT_SUPPORTED
            if read:
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                value.value.ullVal = read(gpu)

    @_of_gpu
    def nvmlDeviceGetSupportedEventTypes(self, _gpu: Gpu, types: Any) -> None:
        types._obj.value = pynvml.nvmlEventTypeXidCriticalError

    def nvmlDeviceRegisterEvents(self, handle: Any, _types: Any, _events: Any) -> int:
        self._registered.add(_number(handle))
        return OK

    def nvmlEventSetCreate(self, events: Any) -> int:
        ctypes.c_void_p.from_buffer(events._obj).value = 1
        return OK

    def nvmlEventSetWait_v2(self, _events: Any, data: Any, _timeout_ms: Any) -> int:
        """Never waits: the next event, or a timeout at once."""
        with self._lock:
            while (event := self.host.next_event()) is not None:
                index, xid = event
                if index not in self._registered:
                    continue
                found = data._obj
                ctypes.c_void_p.from_buffer(found.device).value = index + 1
                found.eventType, found.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
                return OK
        return int(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, _events: Any) -> int:
        return OK


def _number(handle: Any) -> int:
    """The index of the board that a handle stands for."""
    return int(ctypes.c_void_p.from_buffer(handle).value or 0) - 1
