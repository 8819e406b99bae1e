"""What is measured of a GPU and of an engine: names, units, meaning; one list for agents, tables and charts.

Names are column names: SI units, the unit in the name. A ratio lies in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How values of a metric combine over time."""

    GAUGE = "gauge"  # mean, lowest, highest
    COUNTER = "counter"  # never falls but at a reset; the last value of a bucket, and differences
    FLAGS = "flags"  # bits, or-ed
    CODE = "code"  # 0 is nothing; the highest of a bucket


@dataclass(frozen=True)
class Metric:
    """One metric: `label` is what people read, `unit` its symbol (`%` for ratios, which charts multiply by 100)."""

    name: str
    label: str
    unit: str
    kind: Kind = Kind.GAUGE
    digits: int = 0  # decimals worth showing


GPU = (
    Metric("utilization_ratio", "Utilisation", "%"),  # share of time with any kernel running, as NVML has it
    Metric("memory_bandwidth_ratio", "Memory bandwidth in use", "%"),
    Metric("memory_used_bytes", "Memory used", "B"),
    Metric("temperature_c", "Temperature", "°C", digits=1),
    Metric("memory_temperature_c", "Memory temperature", "°C", digits=1),
    Metric("power_w", "Power", "W"),
    Metric("sm_clock_hz", "SM clock", "Hz"),
    Metric("memory_clock_hz", "Memory clock", "Hz"),
    Metric("fan_ratio", "Fan", "%"),
    Metric("pcie_rx_bytes_per_s", "PCIe in", "B/s"),
    Metric("pcie_tx_bytes_per_s", "PCIe out", "B/s"),
    Metric("pcie_link_generation", "PCIe generation", "", digits=1),
    Metric("pcie_link_width", "PCIe lanes", "", digits=1),
    Metric("pcie_replays_total", "PCIe replays", "", Kind.COUNTER),
    Metric("nvlink_errors_total", "NVLink errors", "", Kind.COUNTER),
    Metric("ecc_corrected_total", "ECC errors corrected", "", Kind.COUNTER),
    Metric("ecc_uncorrected_total", "ECC errors not corrected", "", Kind.COUNTER),
    Metric("throttle_reasons", "Throttle reasons", "", Kind.FLAGS),  # NVML's clocks event reasons
    Metric("xid", "Xid", "", Kind.CODE),  # the last Xid since the sample before
)
GPU_BY_NAME = {metric.name: metric for metric in GPU}

ENGINE = (
    Metric("requests_total", "Requests", "", Kind.COUNTER),
    Metric("errors_total", "Errors", "", Kind.COUNTER),
    Metric("queue_depth", "Queue", "", digits=1),
    Metric("loop_age_s", "Age of the loop's last tick", "s", digits=2),
    Metric("resident_bytes", "Memory", "B"),
)
ENGINE_BY_NAME = {metric.name: metric for metric in ENGINE}

# Bits of throttle_reasons that a person should hear of: slowdown or power brake by hardware, slowdown by heat.
# A power cap by software (0x4) is normal at full load.
BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80
