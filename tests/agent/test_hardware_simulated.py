"""The simulated GPUs: their days, their faults, and the real pynvml over them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.agent.hardware.simulated.host import REAL_LOAD, rise_share
from node.agent.hardware.simulated.model import SLOWDOWN_C, Host, history, noise
from node.agent.hardware.simulated.scenario import parse
from protocol.metrics import GPU
from tests.agent.gpus import NOON_S, rig_of

DAY_S = 86_400.0


def temperatures(rig: object) -> np.ndarray:
    return np.array([pynvml.nvmlDeviceGetTemperatureV(gpu.handle, 0) for gpu in rig.gpus], float)


def mean_temperature(rig: object, seconds: int = 60) -> np.ndarray:
    found = []
    for _ in range(seconds):
        rig.clock.pass_s(1.0)
        found.append(temperatures(rig))
    return np.mean(found, axis=0)


# the model


def test_a_day_is_62_degrees_and_three_more_or_less() -> None:
    week = history("node-2", 5, NOON_S - 7 * DAY_S, NOON_S)
    assert set(week) == {metric.name for metric in GPU}
    assert {len(values) for values in week.values()} == {7 * 1_440}
    degrees = week["temperature_c"].reshape(7, 1_440)
    assert abs(degrees.mean() - 62) < 1.5
    assert degrees.min() > 57
    assert degrees.max() < 68
    by_day = degrees.mean(axis=0)  # from 14:00 on
    assert 4 < by_day[:60].mean() - by_day[720:780].mean() < 8  # the afternoon against the night
    assert (week["throttle_reasons"] == 0).all()
    assert (np.diff(week["ecc_corrected_total"]) >= 0).all()


@given(
    start=st.integers(0, 2_000),
    length=st.integers(1, 300),
    gpu=st.integers(0, 63),
    name=st.sampled_from(["node-1", "node-2", "x"]),
)
def test_whoever_asks_for_a_moment_gets_the_same_answer(start: int, length: int, gpu: int, name: str) -> None:
    whole = history(name, gpu, NOON_S, NOON_S + 2_400 * 60)
    part = history(name, gpu, NOON_S + 60.0 * start, NOON_S + 60.0 * (start + length))
    for metric, values in part.items():
        np.testing.assert_array_equal(values, whole[metric][start : start + length])


def test_hosts_and_seeds_differ_and_datetimes_do() -> None:
    moment = datetime(2026, 8, 1, tzinfo=UTC)
    one = history("node-1", 0, moment, moment + timedelta(hours=1))["temperature_c"]
    assert len(one) == 60
    assert not np.allclose(one, history("node-2", 0, moment, moment + timedelta(hours=1))["temperature_c"])
    assert not np.allclose(one, history("node-1", 0, moment, moment + timedelta(hours=1), seed=1)["temperature_c"])


def test_noise_is_of_about_unit_size_and_bounded() -> None:
    values = noise([1, 2, 3], np.arange(0, 3e6, 60.0), 300.0)
    assert np.abs(values).max() <= 3.0
    assert 0.6 < values.std() < 1.1
    assert abs(values.mean()) < 0.1
    assert abs(np.corrcoef(values)[0, 1]) < 0.1


@given(st.floats(-1e4, 1e4), st.floats(0, 1e3), st.floats(1, 1e3), st.floats(1, 600))
def test_a_rise_is_a_share_and_has_no_jump(at: float, begin: float, length: float, constant: float) -> None:
    end = begin + length
    share = rise_share(at, begin, end, constant)
    assert 0 <= share <= 1
    assert abs(rise_share(at + 0.01, begin, end, constant) - share) <= 0.011 / constant + 1e-9
    assert share > 0 or at < begin + 1e-6 or at > end


# live, over pynvml


def test_live_minutes_continue_the_history(tmp_path: Path) -> None:
    with rig_of(tmp_path) as rig:
        live = mean_temperature(rig, 120)
    told = [history("node-2", gpu, NOON_S, NOON_S + 120)["temperature_c"].mean() for gpu in range(8)]
    np.testing.assert_allclose(live, told, atol=0.35)


def test_pynvml_reads_what_the_library_says(tmp_path: Path) -> None:
    with rig_of(tmp_path) as rig:
        assert [gpu.index for gpu in rig.gpus] == list(range(8))
        assert len({gpu.uuid for gpu in rig.gpus}) == 8
        first = rig.gpus[0]
        assert (first.name, first.memory_bytes) == ("NVIDIA H100 80GB HBM3", 85_520_809_984)
        assert first.facts(simulated=True)["simulated"] is True
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml.nvmlDeviceGetPcieThroughput(first.handle, 0)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(8)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetClockInfo(first.handle, pynvml.NVML_CLOCK_VIDEO)


def test_a_fan_that_fails_warms_its_host_by_16_to_20_degrees_within_two_minutes(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "fan_off", "at_s": 60, "until_s": 600}) as rig:
        before = mean_temperature(rig, 59)
        rig.clock.pass_s(90)
        after = mean_temperature(rig, 60)
        assert (np.abs(after - before - 17.7) < 2.3).all()
        assert temperatures(rig).max() < SLOWDOWN_C
        assert {pynvml.nvmlDeviceGetFanSpeed(gpu.handle) for gpu in rig.gpus} == {0}
        assert not any(pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle) for gpu in rig.gpus)
        rig.clock.pass_s(600)
        assert (np.abs(mean_temperature(rig) - before) < 1.5).all()


def test_heat_beyond_the_limit_slows_the_board(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "fan_off", "gpus": [2], "at_s": 0, "rise_c": 30}) as rig:
        clocks = [pynvml.nvmlDeviceGetClockInfo(gpu.handle, pynvml.NVML_CLOCK_SM) for gpu in rig.gpus]
        rig.clock.pass_s(300)
        hot = rig.gpus[2].handle
        assert pynvml.nvmlDeviceGetTemperatureV(hot, 0) > SLOWDOWN_C
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(hot) == 0x60
        assert pynvml.nvmlDeviceGetClockInfo(hot, pynvml.NVML_CLOCK_SM) < 0.8 * clocks[2]
        assert pynvml.nvmlDeviceGetTemperatureV(rig.gpus[1].handle, 0) < 70


def test_a_brake_by_the_power_supply(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "throttle", "gpus": [0], "at_s": 10, "until_s": 20}) as rig:
        handle = rig.gpus[0].handle
        power = pynvml.nvmlDeviceGetPowerUsage(handle)
        rig.clock.pass_s(10)
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & 0x88 == 0x88
        assert pynvml.nvmlDeviceGetPowerUsage(handle) < 0.7 * power
        rig.clock.pass_s(10)
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0


def test_a_lost_gpu_is_lost_to_pynvml_alone(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "lost", "gpus": [5], "at_s": 10, "until_s": 20}) as rig:
        rig.clock.pass_s(10)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetTemperatureV(rig.gpus[5].handle, 0)
        assert pynvml.nvmlDeviceGetTemperatureV(rig.gpus[4].handle, 0) > 50
        rig.clock.pass_s(10)
        assert pynvml.nvmlDeviceGetTemperatureV(rig.gpus[5].handle, 0) > 50


def test_memory_errors_add_up_until_the_board_is_reset(tmp_path: Path) -> None:
    field = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
    with rig_of(tmp_path, {"fault": "ecc", "gpus": [1], "at_s": 0, "until_s": 150}) as rig:
        counts = []
        for _ in range(3):
            counts.append([pynvml.nvmlDeviceGetFieldValues(gpu.handle, [field])[0].value.ullVal for gpu in rig.gpus])
            rig.clock.pass_s(60)
        assert [count[1] for count in counts] == [1, 2, 3]
        assert {count[0] for count in counts} == {0}
        assert pynvml.nvmlDeviceGetFieldValues(rig.gpus[1].handle, [field])[0].value.ullVal == 0


def test_requests_warm_the_boards_slowly(tmp_path: Path) -> None:
    with rig_of(tmp_path) as rig:
        idle = mean_temperature(rig)
        power = pynvml.nvmlDeviceGetPowerUsage(rig.gpus[0].handle)
        rig.host.busy_share = 1.0
        rig.clock.pass_s(1.0)
        assert pynvml.nvmlDeviceGetPowerUsage(rig.gpus[0].handle) > power + 0.5 * REAL_LOAD * 560_000  # at once
        mean_temperature(rig, 150)
        warmed = mean_temperature(rig)
        assert np.abs(np.mean(warmed - idle) - 15 * REAL_LOAD) < 0.8


# the scenario file


def test_a_scenario_that_changes_is_followed_and_a_broken_one_is_not(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "lost", "gpus": [0], "at_s": 0}) as rig:
        rig.clock.pass_s(5)
        assert rig.host.gpu(0).is_lost
        (tmp_path / "scenario.json").write_text('[{"node": "node-2", "fault": "melts", "at_s": 0}]')
        rig.clock.pass_s(5)
        assert rig.host.gpu(0).is_lost
        assert "0.fault is malformed" in rig.host.scenario.error
        rig.script({"fault": "lost", "gpus": [1], "at": datetime.fromtimestamp(NOON_S, UTC).isoformat()})
        rig.clock.pass_s(5)
        assert [rig.host.gpu(index).is_lost for index in (0, 1)] == [False, True]
        assert not rig.host.scenario.error
        os.unlink(tmp_path / "scenario.json")
        rig.clock.pass_s(5)
        assert not rig.host.gpu(1).is_lost


def test_other_nodes_faults_are_theirs(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"node": "node-3", "fault": "lost", "at_s": 0}) as rig:
        rig.clock.pass_s(5)
        assert not rig.host.gpu(0).is_lost


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (b"{", "the file"),
        (b"{}", "the file"),
        (b'[{"node": "a", "fault": "lost"}]', "either at_s or at"),
        (b'[{"node": "a", "fault": "lost", "at_s": 1, "at": "2026-01-01T00:00:00Z"}]', "either at_s or at"),
        (b'[{"node": "a", "fault": "lost", "at": "2026-01-01T00:00:00"}]', "0.at"),
        (b'[{"node": "a", "fault": "lost", "at_s": 1, "gpu": 3}]', "0.gpu"),
        (b'[{"node": "a", "fault": "lost", "at_s": 1, "gpus": "some"}]', "0.gpus"),
    ],
)
def test_a_scenario_says_where_it_is_wrong(raw: bytes, where: str) -> None:
    with pytest.raises(ValueError, match=where):
        parse(raw)


def test_an_xid_is_told_once_and_79_takes_the_board_off_the_bus(tmp_path: Path) -> None:
    with rig_of(tmp_path, {"fault": "xid", "xid": 79, "gpus": [3], "at_s": 5}) as rig:
        events = pynvml.nvmlEventSetCreate()
        for gpu in rig.gpus:
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, events)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 0)
        rig.clock.pass_s(5)
        event = pynvml.nvmlEventSetWait_v2(events, 0)
        assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
        assert pynvml.nvmlDeviceGetUUID(event.device) == rig.gpus[3].uuid
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 0)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetPowerUsage(rig.gpus[3].handle)


def test_an_old_xid_is_not_told_again_after_a_restart(tmp_path: Path) -> None:
    at = datetime.fromtimestamp(NOON_S - 3_600, UTC).isoformat()
    with rig_of(tmp_path, {"fault": "xid", "xid": 48, "at": at}) as rig:
        assert rig.host.next_event() is None
        assert rig.host.gpu(0).recovery_action == 1


def test_names_and_uuids_are_for_good() -> None:
    assert Host("node-1").gpu_uuid(0) == Host("node-1").gpu_uuid(0) != Host("node-2").gpu_uuid(0)
