"""Sampling through the real pynvml: what drivers lack, GPUs that go, calls that never return, the schedule."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest

from node.agent.hardware import monitor
from node.agent.hardware.devices import find
from node.agent.hardware.engines import EngineHealth, resident_bytes
from node.agent.hardware.monitor import Hardware
from node.agent.hardware.packed import PackedWriter, read_packed
from node.agent.hardware.reading import COLUMN, GpuGone, Reader
from node.agent.hardware.sampler import LOST_AGAIN_S, Sampler, Seen, XidEvents
from node.agent.home import Home
from node.agent.settings import HardwareMode
from protocol.metrics import ENGINE, GPU
from tests.agent.gpus import Rig, restored, rig_of, without
from tests.agent.node import until

COUNTERS = {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Eight simulated GPUs and a spool."""
    Home(tmp_path / "home").prepare()
    with rig_of(tmp_path) as made:
        yield made


def spool_of(rig: Rig) -> Path:
    return rig.folder / "home" / "spool"


def sampler_of(rig: Rig, **changes: Any) -> Sampler:
    readers = [Reader(gpu) for gpu in rig.gpus]
    seen = {gpu.uuid: Seen() for gpu in rig.gpus}
    writer = PackedWriter(spool_of(rig), "gpu", simulated=True)
    fields: dict[str, Any] = {"interval_s": 1.0, "now": rig.clock, "clock": rig.clock}
    return Sampler(readers, seen, XidEvents(readers), writer, **(fields | changes))


def written(rig: Rig, kind: str = "gpu") -> np.ndarray:
    """All rows in the spool."""
    parts = [read_packed(path) for path in sorted(spool_of(rig).glob(f"{kind}-*.log"))]
    return np.concatenate([part.rows for part in parts if part is not None])


def value(row: list[float], name: str) -> float:
    return row[COLUMN[name]]


# one GPU


def test_every_metric_is_read_in_its_unit(rig: Rig) -> None:
    reader = Reader(rig.gpus[0])
    first = reader.read(rig.clock())
    assert {name for name in COLUMN if math.isnan(value(first, name))} == COUNTERS | {"xid"}
    rig.clock.pass_s(2.0)
    row = reader.read(rig.clock())
    assert 0.5 < value(row, "utilization_ratio") < 1
    assert 55 < value(row, "temperature_c") < value(row, "memory_temperature_c") < 90
    assert 300 < value(row, "power_w") < 700
    assert 1.5e9 < value(row, "sm_clock_hz") < 2e9
    assert 30e9 < value(row, "memory_used_bytes") < 80e9
    assert 3e9 < value(row, "pcie_rx_bytes_per_s") < 6e9
    assert (value(row, "pcie_link_generation"), value(row, "pcie_link_width")) == (5, 16)
    assert 0.2 < value(row, "fan_ratio") <= 1


def test_what_the_driver_refreshes_slowly_is_not_asked_for_at_every_look(rig: Rig, monkeypatch: Any) -> None:
    asked: list[str] = []
    for name in ("nvmlDeviceGetSamples", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"):
        plain: Callable[..., Any] = getattr(pynvml, name)
        monkeypatch.setattr(pynvml, name, lambda *given, plain=plain, name=name: asked.append(name) or plain(*given))
    reader = Reader(rig.gpus[0])
    rows = []
    for _ in range(20):
        rows.append(reader.read(rig.clock()))
        rig.clock.pass_s(0.1)
    assert asked.count("nvmlDeviceGetPowerUsage") == 20
    assert 4 <= asked.count("nvmlDeviceGetSamples") <= 6  # two kinds
    assert "nvmlDeviceGetUtilizationRates" not in asked
    assert not any(math.isnan(value(row, "utilization_ratio")) for row in rows)


def test_utilisation_is_the_mean_of_what_the_driver_saw_since(rig: Rig) -> None:
    kept: list[tuple[int, int]] = [(number, 10) for number in range(0, 30_000_000, 500_000)]

    def samples(_handle: Any, _kind: Any, after: Any, value_type: Any, count: Any, found: Any) -> int:
        fresh = [sample for sample in kept if sample[0] > after.value]
        for place, (at_us, percent) in enumerate(fresh if found is not None else ()):
            found[place].timeStamp, found[place].sampleValue.uiVal = at_us, percent
        count._obj.value, value_type._obj.value = len(fresh), pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        return int(pynvml.NVML_SUCCESS if fresh else pynvml.NVML_ERROR_NOT_FOUND)

    pynvml.nvmlLib.nvmlDeviceGetSamples = samples
    pynvml._nvmlGetFunctionPointer_cache.clear()
    reader = Reader(rig.gpus[0])

    def utilization() -> float:
        rig.clock.pass_s(1.0)
        return value(reader.read(rig.clock()), "utilization_ratio")

    kept[-2:] = [(29_000_000, 20), (29_500_000, 40)]
    assert utilization() == pytest.approx(0.3)  # at first the last second only
    kept += [(30_000_000, 0), (30_500_000, 100), (31_000_000, 80)]
    assert utilization() == pytest.approx(0.6)
    assert utilization() > 0.5  # nothing new: what the driver says of this moment


def test_an_older_driver_is_asked_by_older_names(rig: Rig) -> None:
    newer = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSamples"]
    without(*newer, "nvmlDeviceGetFanSpeed")
    row = Reader(rig.gpus[0]).read(rig.clock())
    # neither name is there, and nothing else suffers
    assert math.isnan(value(row, "temperature_c"))
    assert math.isnan(value(row, "fan_ratio"))
    assert value(row, "power_w") > 0
    assert value(row, "utilization_ratio") > 0
    pynvml.nvmlLib.nvmlDeviceGetTemperature = lambda _h, _sensor, out: setattr(out._obj, "value", 61) or 0
    pynvml.nvmlLib.nvmlDeviceGetCurrentClocksThrottleReasons = lambda _h, out: setattr(out._obj, "value", 0x40) or 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
    row = Reader(rig.gpus[0]).read(rig.clock())
    assert (value(row, "temperature_c"), value(row, "throttle_reasons")) == (61, 0x40)


def test_a_failure_of_one_call_is_no_stale_value(rig: Rig, monkeypatch: Any) -> None:
    reader = Reader(rig.gpus[0])
    reader.read(rig.clock())
    failing = lambda *_: pynvml.NVML_ERROR_UNKNOWN  # noqa: E731
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetTemperatureV", failing, raising=False)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    rig.clock.pass_s(0.1)
    assert math.isnan(value(reader.read(rig.clock()), "temperature_c"))
    monkeypatch.undo()
    pynvml._nvmlGetFunctionPointer_cache.clear()
    rig.clock.pass_s(0.1)
    assert value(reader.read(rig.clock()), "temperature_c") > 50


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_gpu_that_needs_a_reset_is_gone(rig: Rig, monkeypatch: Any, code: int) -> None:
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetPowerUsage", lambda *_: code, raising=False)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    with pytest.raises(GpuGone):
        Reader(rig.gpus[0]).read(rig.clock())


def test_traffic_is_unknown_after_a_counter_began_anew(rig: Rig) -> None:
    reader = Reader(rig.gpus[0])
    for _ in range(3):
        reader.read(rig.clock())
        rig.clock.pass_s(1.0)
    assert value(reader.read(rig.clock()), "pcie_rx_bytes_per_s") > 0
    rig.host._pcie_bytes[:] = 0.0
    rig.clock.pass_s(1.0)
    assert math.isnan(value(reader.read(rig.clock()), "pcie_rx_bytes_per_s"))


# rounds


def test_a_round_is_one_row_a_gpu_at_one_time(rig: Rig) -> None:
    sampler = sampler_of(rig)
    sampler.round()
    sampler.writer.publish()
    rows = written(rig)
    assert list(rows["key"]) == list(range(8))
    assert set(rows["time_unix_us"]) == {round(rig.clock() * 1e6)}
    assert (rows["xid"] == 0).all()
    assert list(rows.dtype.names[2:]) == [metric.name for metric in GPU]


def test_a_lost_gpu_costs_its_peers_nothing_and_comes_back(rig: Rig, monkeypatch: Any) -> None:
    rig.script({"fault": "lost", "gpus": [5], "at_s": 10, "until_s": 40})
    sampler = sampler_of(rig)
    asked: list[int] = []
    plain = pynvml.nvmlDeviceGetTemperatureV
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetTemperatureV",
        lambda handle, sensor: asked.append(pynvml.nvmlDeviceGetUUID(handle)) or plain(handle, sensor),
    )  # fmt: skip
    for _ in range(60):
        sampler.round()
        rig.clock.pass_s(1.0)
    sampler.writer.publish()
    rows = written(rig)
    counts = np.bincount(rows["key"], minlength=8)
    assert {int(count) for index, count in enumerate(counts) if index != 5} == {60}
    assert 20 <= counts[5] <= 60 - 30 + LOST_AGAIN_S
    # while it was lost it was asked every ten seconds only
    assert asked.count(rig.gpus[5].uuid) - counts[5] <= 4


def test_an_xid_is_told_even_if_the_gpu_has_nothing_else_to_say(rig: Rig) -> None:
    rig.script({"fault": "xid", "xid": 79, "gpus": [3], "at_s": 1}, {"fault": "xid", "xid": 13, "gpus": [4], "at_s": 1})
    sampler = sampler_of(rig)
    for _ in range(3):
        sampler.round()
        rig.clock.pass_s(1.0)
    sampler.writer.publish()
    rows = written(rig)
    told = {int(row["key"]): (int(row["xid"]), math.isnan(row["temperature_c"])) for row in rows[rows["xid"] > 0]}
    assert told == {3: (79, True), 4: (13, False)}
    assert (rows["xid"] > 0).sum() == 2


def test_a_lost_gpu_that_can_not_even_be_named_keeps_nobody_elses_xids(rig: Rig, monkeypatch: Any) -> None:
    rig.script(*({"fault": "xid", "xid": 79, "gpus": [gpu], "at_s": gpu} for gpu in (1, 2)))
    sampler = sampler_of(rig)
    is_lost = lambda *_: pynvml.NVML_ERROR_GPU_IS_LOST  # noqa: E731
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetUUID", is_lost, raising=False)
    waiting = pynvml.nvmlLib.nvmlEventSetWait_v2
    pynvml._nvmlGetFunctionPointer_cache.clear()
    for moment in range(5):
        # as drivers do: the wait itself fails for a moment
        monkeypatch.setattr(pynvml.nvmlLib, "nvmlEventSetWait_v2", is_lost if moment == 2 else waiting, raising=False)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        rig.clock.pass_s(1.0)
        sampler.round()
    sampler.writer.publish()
    rows = written(rig)
    assert [(row["key"], row["xid"]) for row in rows[rows["xid"] > 0]] == [(1, 79), (2, 79)]


def test_a_gpu_that_was_lost_at_the_start_tells_its_xids_once_it_is_back(rig: Rig) -> None:
    rig.script({"fault": "lost", "gpus": [1], "at_s": 0, "until_s": 15})
    sampler = sampler_of(rig)
    for _ in range(25):
        sampler.round()
        rig.clock.pass_s(1.0)
    rig.script({"fault": "xid", "xid": 31, "gpus": [1], "at_s": 25})
    for _ in range(3):
        rig.clock.pass_s(1.0)
        sampler.round()
    sampler.writer.publish()
    rows = written(rig)
    assert [(row["key"], row["xid"]) for row in rows[rows["xid"] > 0]] == [(1, 31)]


def test_a_slow_gpu_is_read_rarely(rig: Rig, monkeypatch: Any) -> None:
    plain = pynvml.nvmlDeviceGetPowerUsage

    def slow(handle: Any) -> int:
        if pynvml.nvmlDeviceGetUUID(handle) == rig.gpus[2].uuid:
            rig.clock.pass_s(1.0)
        return int(plain(handle))

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", slow)
    sampler = sampler_of(rig)
    for _ in range(30):
        sampler.round()
        rig.clock.pass_s(1.0)
    sampler.writer.publish()
    counts = np.bincount(written(rig)["key"])
    assert counts[1] == 30
    assert counts[2] <= 5


class Schedule:
    """Time for a sampler whose rounds take `round_s` and which sleeps as long as it asks to, or longer."""

    def __init__(self, rounds: int, round_s: float, oversleep_s: float) -> None:
        self.now_s, self.starts = 1_000.0, []
        self._left, self._round_s, self._oversleep_s = rounds, round_s, oversleep_s

    def clock(self) -> float:
        return self.now_s

    def is_set(self) -> bool:
        return self._left == 0

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds + self._oversleep_s
        return False

    def round(self) -> None:
        self.starts.append(self.now_s)
        self.now_s += self._round_s
        self._left -= 1


@pytest.mark.parametrize(
    ("round_s", "oversleep_s", "rate_hz", "left_out"),
    [(0.002, 0.0, 10.0, 0), (0.002, 0.03, 10.0, 0), (0.25, 0.0, 10 / 3, 2), (0.0, 0.09, 10.0, 0)],
)
def test_lateness_does_not_add_up(
    rig: Rig, monkeypatch: Any, round_s: float, oversleep_s: float, rate_hz: float, left_out: int
) -> None:
    schedule = Schedule(100, round_s, oversleep_s)
    sampler = sampler_of(rig, interval_s=0.1, clock=schedule.clock)
    monkeypatch.setattr(sampler, "_stop", schedule)
    monkeypatch.setattr(sampler, "round", schedule.round)
    sampler._run()
    grid = (np.array(schedule.starts) - 1_000.0) % 0.1
    assert np.minimum(grid, 0.1 - grid).max() <= oversleep_s + 1e-6
    assert (schedule.starts[-1] - schedule.starts[0]) / 99 == pytest.approx(1 / rate_hz, rel=0.02)
    assert sampler.left_out == pytest.approx(left_out * 100, abs=2)


def test_a_round_that_fails_is_not_the_last(rig: Rig, monkeypatch: Any) -> None:
    schedule = Schedule(20, 0.002, 0.0)
    sampler = sampler_of(rig, interval_s=0.1, clock=schedule.clock)

    def failing() -> None:
        schedule.round()
        raise OSError("the spool is gone")

    monkeypatch.setattr(sampler, "_stop", schedule)
    monkeypatch.setattr(sampler, "round", failing)
    sampler._run()
    assert len(schedule.starts) == 20


# the whole hardware


def hardware_of(rig: Rig, **changes: Any) -> Hardware:
    return Hardware(rig.settings(**changes), Home(rig.folder / "home"))


def test_a_call_that_never_returns_holds_one_gpu_only(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(monitor, "STUCK_S", 0.3)
    returns = threading.Event()
    plain = pynvml.nvmlDeviceGetPowerUsage

    def hanging(handle: Any) -> int:
        if pynvml.nvmlDeviceGetUUID(handle) == rig.gpus[6].uuid:
            returns.wait(60)
        return int(plain(handle))

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", hanging)
    hardware = hardware_of(rig, sample_interval_s=0.02)
    hardware.start()

    def conditions() -> dict[str, Any]:
        hardware._judged_s = -math.inf
        hardware.tick(time.monotonic(), [])
        return {condition.type: condition for condition in hardware.conditions()}

    try:
        until(lambda: conditions()["GpuLost"].status == "true", "the GPU is told lost", 20)
        assert "GPU 6 (its driver call" in conditions()["GpuLost"].message
        peer = hardware._seen[rig.gpus[0].uuid]
        before = peer.at_s
        until(lambda: peer.at_s > before + 0.1, "its peers go on", 20)
        returns.set()
        until(lambda: conditions()["GpuLost"].status == "false", "it came back", 20)
    finally:
        returns.set()
        hardware.stop()
    rows = written(rig)
    assert len({(int(row["time_unix_us"])) for row in rows}) > 5


def test_conditions_and_facts_of_a_simulated_host(rig: Rig) -> None:
    hardware = hardware_of(rig)
    assert [gpu["simulated"] for gpu in hardware.facts()["gpus"]] == [True] * 8
    hardware.tick(time.monotonic() + 2.0, [])
    found = {condition.type: condition.status for condition in hardware.conditions()}
    assert found == {
        "GpusSampled": "true", "GpuHot": "false", "GpuThrottled": "false", "GpuXid": "false", "GpuLost": "false",
        "GpuEcc": "false", "HardwareSimulated": "true",
    }  # fmt: skip


def test_a_drill_is_called_one(rig: Rig) -> None:
    hardware = hardware_of(rig)
    rig.script({"fault": "fan_off", "at_s": 5, "until_s": 8}, {"fault": "ecc", "gpus": [1, 2], "at_s": 5})

    def said() -> tuple[str, str]:
        hardware.tick(next(ticks), [])
        (condition,) = (c for c in hardware.conditions() if c.type == "HardwareSimulated")
        return condition.reason, condition.message

    host = hardware.devices.simulated
    assert host is not None
    host.now, host.started_s = rig.clock, rig.clock()
    ticks = iter(time.monotonic() + 2.0 * number for number in range(1, 9))
    assert said()[0] == "simulated"
    rig.clock.pass_s(6)
    assert said()[0] == "drill"
    assert said()[1].endswith("Scripted just now: fan_off of all GPUs, ecc of GPU 1, 2.")
    rig.clock.pass_s(3)
    assert said()[1].endswith("Scripted just now: ecc of GPU 1, 2.")
    (rig.folder / "scenario.json").write_text("{")
    rig.clock.pass_s(3)
    assert "is not followed" in said()[1]


def test_a_host_without_a_driver_has_no_gpus_unless_somebody_says_so(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    with restored(), rig_of(tmp_path) as rig:
        pynvml.nvmlLib = None

        def absent() -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        pynvml._LoadNvmlLibrary = absent
        for mode in (HardwareMode.AUTO, HardwareMode.NONE):
            hardware = Hardware(rig.settings(hardware=mode), home)
            hardware.start()
            hardware.tick(time.monotonic() + 2.0, [])
            assert (hardware.facts(), hardware.conditions()) == ({"gpus": []}, [])
        asked = Hardware(rig.settings(hardware=HardwareMode.NVML), home)
        asked.tick(time.monotonic() + 2.0, [])
        (said,) = asked.conditions()
        assert (said.type, said.status, said.reason) == ("GpusSampled", "false", "nvml_failed")


def test_a_driver_that_does_not_fit_its_module_is_told(rig: Rig, monkeypatch: Any) -> None:
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    monkeypatch.setattr(pynvml.nvmlLib, "nvmlInitWithFlags", lambda _: mismatch, raising=False)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    found = find(rig.settings(hardware=HardwareMode.AUTO), rig.clock)
    assert "mismatch" in found.error


def test_a_gpu_that_can_not_be_opened_leaves_the_others(rig: Rig, monkeypatch: Any) -> None:
    plain = pynvml.nvmlLib.nvmlDeviceGetHandleByIndex_v2

    def opening(index: Any, handle: Any) -> int:
        return int(pynvml.NVML_ERROR_UNKNOWN) if index.value == 2 else int(plain(index, handle))

    monkeypatch.setattr(pynvml.nvmlLib, "nvmlDeviceGetHandleByIndex_v2", opening, raising=False)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    hardware = hardware_of(rig, hardware=HardwareMode.AUTO)
    assert [gpu.index for gpu in hardware.devices.gpus] == [0, 1, 3, 4, 5, 6, 7]
    hardware.tick(time.monotonic() + 2.0, [])
    told = {condition.type: condition for condition in hardware.conditions()}
    assert (told["GpusSampled"].status, told["GpusSampled"].reason) == ("false", "not_opened")
    assert told["GpuLost"].message.startswith("GPU 2 (Unknown Error): ")


def test_engines_are_sampled_from_what_they_say(rig: Rig) -> None:
    hardware = hardware_of(rig)
    engines = [EngineHealth(f"deployment-{n}", 1 << 30, 10 * n, n, 2.0, 0.25) for n in (2, 1)]
    hardware.tick(time.monotonic() + 2.0, engines)
    hardware.publish()
    (path,) = spool_of(rig).glob("eng-*.log")
    part = read_packed(path)
    assert part is not None
    assert part.keys == ("deployment-1", "deployment-2")
    assert list(part.rows.dtype.names[2:]) == [metric.name for metric in ENGINE]
    assert list(part.rows["requests_total"]) == [10, 20]
    assert np.isnan(part.rows["resident_bytes"]).all()  # no such process
    assert resident_bytes(os.getpid()) > 1e6
