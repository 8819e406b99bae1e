"""One GPU's metrics through NVML: few calls, no slow ones, NaN for what the driver or the board lacks.

Utilisation is refreshed by the driver every 1/6 to 1 s: asked for more often it repeats itself, so once a second we
take the mean of what the driver kept since. Counters of errors, memory and link state don't move faster than anybody
looks: they are asked for once a second too, and all these are repeated in between. PCIe traffic comes from the byte
counters, because nvmlDeviceGetPcieThroughput measures for 20 ms a direction while everybody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pynvml

from node.agent.hardware.devices import Device
from protocol.metrics import GPU

SLOW_EVERY_S = 1.0
ASK_AGAIN_S = 300.0  # what a driver lacks may be there after somebody changed a mode
COLUMN = {metric.name: position for position, metric in enumerate(GPU)}
NOTHING = [math.nan] * len(GPU)

GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_LACKING = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
_VALUE = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_UTILIZATION = {
    pynvml.NVML_GPU_UTILIZATION_SAMPLES: "utilization_ratio",
    pynvml.NVML_MEMORY_UTILIZATION_SAMPLES: "memory_bandwidth_ratio",
}
_FAST_FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "memory_temperature_c",
    pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: "pcie_rx",
    pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: "pcie_tx",
}
_SLOW_FIELDS = {
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "pcie_replays_total",
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "ecc_corrected_total",
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "ecc_uncorrected_total",
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "nvlink_errors_total",
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "nvlink_errors_total",
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "nvlink_errors_total",
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery_action",
}
_ALL_FIELDS = _FAST_FIELDS | _SLOW_FIELDS
Found = dict[str, float]


class GpuGone(Exception):
    """The GPU is off the bus, or wants a reset before it answers again."""


def _temperature(handle: Any) -> Found:
    return {"temperature_c": pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _power(handle: Any) -> Found:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def _sm_clock(handle: Any) -> Found:
    return {"sm_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6}


def _memory_clock(handle: Any) -> Found:
    return {"memory_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6}


def _throttle(handle: Any) -> Found:
    return {"throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)}


def _old_throttle(handle: Any) -> Found:
    return {"throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _old_temperature(handle: Any) -> Found:
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _fast_fields(handle: Any) -> Found:
    return _fields(handle, _FAST_FIELDS)


def _all_fields(handle: Any) -> Found:
    return _fields(handle, _ALL_FIELDS)


def _fields(handle: Any, wanted: dict[int, str]) -> Found:
    found: Found = {}
    for value in pynvml.nvmlDeviceGetFieldValues(handle, list(wanted)):
        if value.nvmlReturn in GONE:
            raise pynvml.NVMLError(value.nvmlReturn)
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType in _VALUE:
            name = wanted[value.fieldId]
            found[name] = found.get(name, 0.0) + getattr(value.value, _VALUE[value.valueType])
    return found


def _utilization(handle: Any) -> Found:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100, "memory_bandwidth_ratio": rates.memory / 100}


def _memory(handle: Any) -> Found:
    return {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used}


def _fan(handle: Any) -> Found:
    return {"fan_ratio": pynvml.nvmlDeviceGetFanSpeed(handle) / 100}


def _link_generation(handle: Any) -> Found:
    return {"pcie_link_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)}


def _link_width(handle: Any) -> Found:
    return {"pcie_link_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)}


def _old_memory(handle: Any) -> Found:
    return {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used}


Call = Callable[[Any], Found]
_FAST: tuple[Call, ...] = (_temperature, _power, _sm_clock, _memory_clock, _throttle, _fast_fields)
_SLOW: tuple[Call, ...] = (_memory, _fan, _link_generation, _link_width)
_BEFORE: dict[Call, Call] = {
    _temperature: _old_temperature,
    _throttle: _old_throttle,
    _memory: _old_memory,
}  # what older drivers have


class Reader:
    """Reads one GPU. `read` is one thread's at a time."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recovery_action = 0.0  # what the driver asks for: 0 is nothing
        self._slow: tuple[Call, ...] = (self._mean_utilization, *_SLOW)
        self._before = {**_BEFORE, self._mean_utilization: _utilization}
        self._sampled_us: dict[int, int] = {}  # of each kind of the driver's samples, the newest one seen
        self._slow_at_s = -math.inf
        self._kept: Found = {}  # of the slow ones
        self._absent: dict[Call, float] = {}  # what the driver lacks, and when to ask again
        self._bytes: tuple[float, float, float] | None = None  # (time, in, out) of the last look

    def read(self, now_s: float) -> list[float]:
        """The metrics of protocol.metrics.GPU in their order, without the Xid. Raises GpuGone."""
        is_slow_due = now_s - self._slow_at_s >= SLOW_EVERY_S
        fast: Found = {}
        for call in _FAST:
            self._ask(_all_fields if is_slow_due and call is _fast_fields else call, fast, now_s)
        if is_slow_due:
            self._slow_at_s = now_s
            kept = {name: fast.pop(name) for name in _SLOW_FIELDS.values() if name in fast}
            for call in self._slow:
                self._ask(call, kept, now_s)
            self._kept = kept
            self.recovery_action = kept.get("recovery_action", 0.0)
        row = NOTHING.copy()
        for found in (self._kept, fast, self._traffic(fast, now_s)):
            for name, value in found.items():
                if name in COLUMN:
                    row[COLUMN[name]] = value
        return row

    def _ask(self, call: Call, found: Found, now_s: float) -> None:
        for each in (call, self._before.get(call)):
            if each is None or self._absent.get(each, -math.inf) > now_s:
                continue
            try:
                found.update(each(self.device.handle))
            except pynvml.NVMLError as failed:
                if failed.value in GONE:
                    raise GpuGone(str(failed)) from None
                if failed.value in _LACKING:
                    self._absent[each] = now_s + ASK_AGAIN_S
            else:
                return

    def _mean_utilization(self, handle: Any) -> Found:
        """Means of the driver's own samples since the last look, at first of the last second."""
        found: Found = {}
        for kind, name in _UTILIZATION.items():
            value_type, samples = pynvml.nvmlDeviceGetSamples(handle, kind, self._sampled_us.get(kind, 0))
            newest_us = max(sample.timeStamp for sample in samples) if samples else 0
            after_us = self._sampled_us.get(kind, newest_us - 1_000_000)
            fresh = [
                getattr(sample.sampleValue, _VALUE[value_type]) for sample in samples if sample.timeStamp > after_us
            ]
            if not fresh:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            self._sampled_us[kind] = newest_us
            found[name] = sum(fresh) / len(fresh) / 100
        return found

    def _traffic(self, found: Found, now_s: float) -> Found:
        """Bytes a second from the two byte counters; unknown until the second look and after a counter's reset."""
        if "pcie_rx" not in found or "pcie_tx" not in found:
            return {}
        before, self._bytes = self._bytes, (now_s, found["pcie_rx"], found["pcie_tx"])
        if before is None or now_s <= before[0] or before[1] > found["pcie_rx"] or before[2] > found["pcie_tx"]:
            return {}
        passed_s = now_s - before[0]
        return {
            "pcie_rx_bytes_per_s": (found["pcie_rx"] - before[1]) / passed_s,
            "pcie_tx_bytes_per_s": (found["pcie_tx"] - before[2]) / passed_s,
        }
