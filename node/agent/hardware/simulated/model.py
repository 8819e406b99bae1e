"""How a simulated GPU behaves over time: pure functions of (node, GPU, seed, time), the same for history and live.

A day of load (busier by day, UTC) makes heat; around it lies slow noise that is a hash of the time, so that whoever
asks for a moment gets the same answer, seven days later or on another machine. Faults and real requests come on top
(host.py). Arrays are (GPUs, moments).
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from protocol.metrics import GPU

NAME = "NVIDIA H100 80GB HBM3"
MEMORY_BYTES = 85_520_809_984
POWER_LIMIT_W = 700.0
SLOWDOWN_C = 85.0  # from here on the board slows itself down
HIGHEST_SM_HZ = 1_980e6
MEMORY_CLOCK_HZ = 2_619e6
PCIE_GENERATION, PCIE_LANES = 5, 16
DAY_S = 86_400.0
BUSIEST_HOUR = 14
COUNTING_SINCE_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()  # the counters' common zero

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Host:
    """Which simulated host: two of one name and seed are the same one."""

    name: str
    seed: int = 0

    def key(self, *what: object) -> int:
        """64 bits that stand for one source of noise of this host."""
        return _key(self.name, self.seed, *what)

    def gpu_uuid(self, index: int) -> str:
        """The UUID of its GPU `index`, in NVML's form."""
        digits = hashlib.sha256(f"{self.name}\x00{self.seed}\x00{index}".encode()).hexdigest()
        return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def history(
    node_name: str,
    gpu_index: int,
    start: datetime | float,
    end: datetime | float,
    step_s: float = 60.0,
    *,
    seed: int = 0,
) -> dict[str, Floats]:
    """What this GPU's samples would have averaged at start, start + step_s, … before `end`, without faults.

    One array for each metric of protocol.metrics.GPU; times are datetimes or Unix seconds.
    """
    count = max(0, math.ceil((_unix_s(end) - _unix_s(start)) / step_s))
    times: Floats = _unix_s(start) + step_s * np.arange(count, dtype=np.float64)
    host = Host(node_name, seed)
    load = base_load(host, [gpu_index], times)
    values = readings(load, base_temperature(host, [gpu_index], times, load))
    values |= counters(host, [gpu_index], times)
    values["xid"] = np.zeros_like(load)
    return {metric.name: values[metric.name][0] for metric in GPU}


def base_load(host: Host, gpus: Sequence[int], times: Floats) -> Floats:
    """The share of time that each GPU is busy by itself: 0.4 by night, 0.8 by day, and noise."""
    hours = (times % DAY_S) / 3_600.0
    day = 0.6 + 0.2 * np.cos((hours - BUSIEST_HOUR) * (2 * math.pi / 24))
    shared = 0.015 * noise([host.key("load")], times, 600.0)
    own = 0.015 * noise([host.key("load", gpu) for gpu in gpus], times, 300.0)
    bias = 0.02 * _standing(host, "load", gpus)
    return np.clip(day + shared + own + bias, 0.02, 0.97)


def base_temperature(host: Host, gpus: Sequence[int], times: Floats, load: Floats) -> Floats:
    """Degrees Celsius in balance with this load: about 62 ± 3 over the day."""
    shared = 0.4 * noise([host.key("inlet")], times, 900.0)
    own = 0.3 * noise([host.key("temperature", gpu) for gpu in gpus], times, 300.0)
    place = 0.8 * _standing(host, "temperature", gpus)
    return 62.0 + degrees_of_load(load - 0.6) + place + shared + own


def degrees_of_load(load: Floats) -> Floats:
    """How much warmer so much more load makes a board, in balance."""
    return 15.0 * load


def readings(load: Floats, temperature_c: Floats) -> dict[str, Floats]:
    """The gauges and flags that follow from load and temperature."""
    # a hot board slows its clock, and what runs slower takes less power
    speed = np.where(temperature_c >= SLOWDOWN_C, 0.7, 1.0 - 0.06 * load)
    power_w = np.minimum((90.0 + 560.0 * load) * np.where(temperature_c >= SLOWDOWN_C, 0.75, 1.0), POWER_LIMIT_W)
    flags = np.where(temperature_c >= SLOWDOWN_C, SW_THERMAL | HW_THERMAL, 0)
    flags = flags | np.where(power_w >= 0.97 * POWER_LIMIT_W, POWER_CAP, 0) | np.where(load < 0.03, IDLE, 0)
    return {
        "utilization_ratio": load,
        "memory_bandwidth_ratio": 0.55 * load,
        "memory_used_bytes": MEMORY_BYTES * (0.5 + 0.25 * load),
        "temperature_c": temperature_c,
        "memory_temperature_c": temperature_c + 6.0 + 6.0 * load,
        "power_w": power_w,
        "sm_clock_hz": HIGHEST_SM_HZ * speed,
        "memory_clock_hz": np.full_like(load, MEMORY_CLOCK_HZ),
        "fan_ratio": np.clip(0.35 + 0.02 * (temperature_c - 55.0), 0.3, 1.0),
        "pcie_rx_bytes_per_s": 6e9 * load,
        "pcie_tx_bytes_per_s": 2.5e9 * load,
        "pcie_link_generation": np.full_like(load, PCIE_GENERATION),
        "pcie_link_width": np.full_like(load, PCIE_LANES),
        "throttle_reasons": flags.astype(np.float64),
    }


def counters(host: Host, gpus: Sequence[int], times: Floats) -> dict[str, Floats]:
    """What rises by one every few hours on a healthy board."""
    age_s = times - COUNTING_SINCE_S
    hours = {"pcie_replays_total": 31.0, "nvlink_errors_total": 53.0, "ecc_corrected_total": 19.0}

    def count(name: str, every_h: float) -> Floats:
        phase = np.array([[host.key(name, gpu) % 3_600 / 3_600] for gpu in gpus])
        return np.asarray(np.maximum(np.floor(age_s / (3_600.0 * every_h) + phase), 0.0))

    found = {name: count(name, every_h) for name, every_h in hours.items()}
    return found | {"ecc_uncorrected_total": np.zeros((len(gpus), len(times)))}


def noise(keys: Sequence[int], times: Floats, knot_s: float) -> Floats:
    """Smooth noise of about unit deviation and never above 3: (keys, times); one hashed value each `knot_s`."""
    at = times / knot_s
    knot = np.floor(at)
    share = at - knot
    weight = share * share * (3.0 - 2.0 * share)
    left, right = (_hashed(keys, (knot + step).astype(np.int64)) for step in (0, 1))
    return left * (1.0 - weight) + right * weight


def _hashed(keys: Sequence[int], knots: NDArray[np.int64]) -> Floats:
    """Three uniform numbers added and scaled: mean 0, deviation 1, within ± 3; for every key and knot."""
    mixed = np.array(keys, np.uint64)[:, None] ^ (knots.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    # the finalizer of splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    total = sum((mixed >> np.uint64(shift) & np.uint64(0x1FFFFF)) / float(1 << 21) for shift in (0, 21, 42))
    return np.asarray(2.0 * total - 3.0)


@functools.cache
def _key(*what: object) -> int:
    return int.from_bytes(hashlib.sha256("\x00".join(map(str, what)).encode()).digest()[:8], "little")


def _standing(host: Host, what: str, gpus: Sequence[int]) -> Floats:
    """What sets one board apart from its neighbours for good, within ± 1."""
    return np.array([[host.key("standing", what, gpu) % 2_001 / 1_000 - 1.0] for gpu in gpus])


def _unix_s(moment: datetime | float) -> float:
    return moment.timestamp() if isinstance(moment, datetime) else moment
