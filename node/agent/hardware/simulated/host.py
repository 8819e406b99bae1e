"""A simulated host at this moment: the model's day, plus the heat of real requests, plus scripted faults."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from node.agent.hardware.simulated import model
from node.agent.hardware.simulated.model import Floats, Host
from node.agent.hardware.simulated.scenario import Fault, FaultKind, ScenarioFile

REFRESH_S = 0.2  # a real board's sensors are no faster
HEAT_S = 30.0  # time constant of a board under load
REAL_LOAD = 0.03  # utilisation that a host adds when its engines compute all the time; its boards are far bigger
USUAL_RISE_C = 18.0  # without the host's fans
RISE_LIMIT_C = 84.0  # unless a scenario asks for more, a fault of cooling stays below the boards' own limit
ECC_EVERY_S = 60.0
FRESH_S = 60.0  # an Xid older than that is not told again after a restart
FELL_OFF_THE_BUS = 79
RECOVERY_NONE, RECOVERY_RESET, RECOVERY_REBOOT = 0, 1, 2


class Gpu(NamedTuple):
    """One board now, in NVML's integer units."""

    utilization_percent: int
    memory_percent: int
    memory_used_bytes: int
    temperature_c: int
    memory_temperature_c: int
    power_mw: int
    sm_mhz: int
    memory_mhz: int
    fan_percent: int
    throttle: int
    pcie_rx_bytes: int
    pcie_tx_bytes: int
    pcie_replays: int
    nvlink_errors: int
    ecc_corrected: int
    ecc_uncorrected: int
    recovery_action: int
    is_lost: bool


class SimulatedHost:
    """All boards of one host. `now` is the wall clock; `busy_share` is how much of a core its engines computed."""

    def __init__(self, host: Host, count: int, scenario: ScenarioFile, now: Callable[[], float]) -> None:
        self.host = host
        self.count = count
        self.scenario = scenario
        self.now = now
        self.busy_share = 0.0
        self.started_s = now()
        self.events: deque[tuple[int, int]] = deque(maxlen=1_000)  # (GPU, Xid)
        self._told: set[tuple[Fault, int]] = set()
        self._at_s = -math.inf
        self._extra_load = 0.0  # of real requests, as far as the boards have warmed up to it
        self._pcie_bytes = np.zeros((2, self.count))
        self._jitter = np.random.default_rng(self.host.key("jitter"))
        self._gpus: list[Gpu] = []

    def gpu(self, index: int) -> Gpu:
        """Board `index` now."""
        now_s = self.now()
        if not 0 <= now_s - self._at_s < REFRESH_S:
            self._refresh(now_s)
        return self._gpus[index]

    def next_event(self) -> tuple[int, int] | None:
        """The next Xid that nobody has fetched yet, as (GPU, code)."""
        if self.count:
            self.gpu(0)
        return self.events.popleft() if self.events else None

    def script(self) -> str:
        """A sentence on the faults that are in force, or on a scenario that can't be read; empty when all is well."""
        now_s = self.now()
        active = [fault for fault in self.scenario.faults(now_s) if _is_active(fault, now_s, self.started_s)]
        if self.scenario.error:
            return self.scenario.error
        struck = [f"{fault.fault} of {_named(fault)}" for fault in active]
        return f"Scripted just now: {', '.join(struck)}." if struck else ""

    def _refresh(self, now_s: float) -> None:
        passed_s = min(max(now_s - self._at_s, 0.0), 5.0) if self._gpus else 0.0
        self._at_s = now_s
        indices, times = range(self.count), np.array([now_s])
        own = model.base_load(self.host, indices, times)
        wanted = REAL_LOAD * min(max(self.busy_share, 0.0), 1.0)
        self._extra_load += (wanted - self._extra_load) * (1.0 - math.exp(-passed_s / HEAT_S))
        load = np.minimum(own + wanted, 1.0)
        degrees = model.base_temperature(self.host, indices, times, own)
        degrees = degrees + model.degrees_of_load(np.full_like(own, self._extra_load))
        faults = self.scenario.faults(now_s)
        degrees += self._rise(faults, now_s, degrees)
        values = {name: column[:, 0] for name, column in model.readings(load, degrees).items()}
        values |= {name: column[:, 0] for name, column in model.counters(self.host, indices, times).items()}
        # the sensor tells whole degrees: without jitter minutes on end would show one number
        values["temperature_c"] = np.rint(degrees[:, 0] + self._jitter.normal(0.0, 0.4, self.count))
        self._pcie_bytes += passed_s * np.stack([values["pcie_rx_bytes_per_s"], values["pcie_tx_bytes_per_s"]])
        self._gpus = [self._board(index, values, faults, now_s) for index in indices]
        self._tell(faults, now_s)

    def _rise(self, faults: tuple[Fault, ...], now_s: float, degrees: Floats) -> Floats:
        """Degrees that failed cooling adds: first order towards its full rise, and back when it returns."""
        total = np.zeros_like(degrees)
        for fault in faults:
            if fault.fault != FaultKind.FAN_OFF:
                continue
            begin_s, end_s = fault.span(self.started_s)
            share = rise_share(now_s, begin_s, end_s, fault.time_constant_s)
            struck = np.array([[fault.hits(index)] for index in range(self.count)])
            full = np.minimum(USUAL_RISE_C, RISE_LIMIT_C - degrees) if fault.rise_c is None else fault.rise_c
            total += share * np.where(struck, full, 0.0)
        return total

    def _board(self, index: int, values: dict[str, Floats], faults: tuple[Fault, ...], now_s: float) -> Gpu:
        active = [fault for fault in faults if fault.hits(index) and _is_active(fault, now_s, self.started_s)]
        kinds = {fault.fault for fault in active}
        is_braked = FaultKind.THROTTLE in kinds
        fell_off = any(fault.fault == FaultKind.XID and fault.xid == FELL_OFF_THE_BUS for fault in active)
        uncorrected = sum(
            1 + int((now_s - fault.span(self.started_s)[0]) / ECC_EVERY_S)
            for fault in active
            if fault.fault == FaultKind.ECC
        )
        needs_reset = FaultKind.XID in kinds or uncorrected
        throttle = int(values["throttle_reasons"][index]) | (model.HW_SLOWDOWN | model.POWER_BRAKE) * is_braked
        slower = 0.5 if is_braked else 1.0
        return Gpu(
            utilization_percent=round(100 * values["utilization_ratio"][index]),
            memory_percent=round(100 * values["memory_bandwidth_ratio"][index]),
            memory_used_bytes=int(values["memory_used_bytes"][index]),
            temperature_c=int(values["temperature_c"][index]),
            memory_temperature_c=round(values["memory_temperature_c"][index]),
            power_mw=round(1_000 * slower * values["power_w"][index]),
            sm_mhz=round(slower * values["sm_clock_hz"][index] / 1e6),
            memory_mhz=round(values["memory_clock_hz"][index] / 1e6),
            fan_percent=0 if FaultKind.FAN_OFF in kinds else round(100 * values["fan_ratio"][index]),
            throttle=throttle,
            pcie_rx_bytes=int(self._pcie_bytes[0, index]),
            pcie_tx_bytes=int(self._pcie_bytes[1, index]),
            pcie_replays=int(values["pcie_replays_total"][index]),
            nvlink_errors=int(values["nvlink_errors_total"][index]),
            ecc_corrected=int(values["ecc_corrected_total"][index]),
            ecc_uncorrected=uncorrected,
            recovery_action=RECOVERY_REBOOT if fell_off else RECOVERY_RESET if needs_reset else RECOVERY_NONE,
            is_lost=FaultKind.LOST in kinds or fell_off,
        )

    def _tell(self, faults: tuple[Fault, ...], now_s: float) -> None:
        for fault in faults:
            if fault.fault != FaultKind.XID:
                continue
            begin_s, end_s = fault.span(self.started_s)
            if not begin_s <= now_s < min(end_s, begin_s + FRESH_S):
                continue
            for index in range(self.count):
                if fault.hits(index) and (fault, index) not in self._told:
                    self._told.add((fault, index))
                    self.events.append((index, fault.xid))


def rise_share(now_s: float, begin_s: float, end_s: float, time_constant_s: float) -> float:
    """How much of its full rise a fault of cooling has reached: up from `begin_s`, down again from `end_s`."""
    if now_s <= begin_s:
        return 0.0
    up = 1.0 - math.exp(-(min(now_s, end_s) - begin_s) / time_constant_s)
    return up * math.exp(-max(now_s - end_s, 0.0) / time_constant_s)


def _named(fault: Fault) -> str:
    return "all GPUs" if fault.gpus == "all" else f"GPU {', '.join(map(str, fault.gpus))}"


def _is_active(fault: Fault, now_s: float, started_s: float) -> bool:
    begin_s, end_s = fault.span(started_s)
    return begin_s <= now_s < end_s
