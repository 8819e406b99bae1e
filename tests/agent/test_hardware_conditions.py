"""The rules from samples to conditions, look by look."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.agent.hardware.conditions import (
    THROTTLED_AFTER_S,
    THROTTLED_UNTIL_S,
    XID_STANDS_S,
    Look,
    Memory,
    remember,
    reports,
    sampled,
)
from protocol.messages import ConditionReport

POWER_CAP, HW_SLOWDOWN, HW_THERMAL = 0x4, 0x8, 0x40


def after(*looks: tuple[float, dict[str, Any]]) -> Memory:
    memory = Memory()
    for now_s, fields in looks:
        memory = remember(memory, Look(**fields), now_s)
    return memory


def told(memory: Memory, index: int = 3) -> dict[str, ConditionReport]:
    return {report.type: report for report in reports({index: memory}, is_simulated=False)}


def true(memory: Memory) -> set[str]:
    return {kind for kind, report in told(memory).items() if report.status == "true"}


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([], set()),
        ([{"temperature_c": 84.0}], set()),
        ([{"temperature_c": 85.0}], {"GpuHot"}),
        ([{"temperature_c": 85.0}, {"temperature_c": 83.0}], {"GpuHot"}),  # not back yet
        ([{"temperature_c": 85.0}, {"temperature_c": 81.0}], set()),
        ([{"temperature_c": 85.0}, {"temperature_c": math.nan}], {"GpuHot"}),  # no news is no cooling
        ([{"xids": (13,)}], set()),  # an application's fault
        ([{"xids": (43, 31, 94)}], set()),
        ([{"xids": (79,)}], {"GpuXid"}),
        ([{"xids": (13, 48)}, {}], {"GpuXid"}),
        ([{"ecc_uncorrected": 1.0}], {"GpuEcc"}),
        ([{"ecc_uncorrected": 1.0}, {"ecc_uncorrected": math.nan}], {"GpuEcc"}),
        ([{"ecc_uncorrected": 1.0}, {"ecc_uncorrected": 0.0}], set()),  # the board was reset
        ([{"gone": "GPU is lost"}], {"GpuLost"}),
        ([{"gone": "GPU is lost"}, {}], set()),
        ([{"throttle": POWER_CAP}] * 60, set()),  # normal at full load
        ([{"throttle": HW_SLOWDOWN}] * 9, set()),  # a blink
        ([{"throttle": HW_SLOWDOWN}] * 11, {"GpuThrottled"}),
        ([{"throttle": HW_SLOWDOWN}] * 11 + [{}] * 30, {"GpuThrottled"}),
        ([{"throttle": HW_SLOWDOWN}] * 11 + [{}] * 62, set()),
        ([{"throttle": HW_THERMAL}] * 11 + [{"temperature_c": 90.0}], {"GpuThrottled", "GpuHot"}),
    ],
)
def test_rules(looks: list[dict[str, Any]], expected: set[str]) -> None:
    assert true(after(*enumerate(looks))) == expected


def test_an_xid_stands_as_long_as_the_driver_asks_for_a_recovery() -> None:
    xid = (0.0, {"xids": (95,)})
    assert "GpuXid" in true(after(xid, (XID_STANDS_S, {})))
    assert "GpuXid" not in true(after(xid, (XID_STANDS_S + 1, {})))
    assert "GpuXid" in true(after(xid, (XID_STANDS_S + 1, {"recovery_action": 1.0})))
    assert "GpuXid" in true(after(xid, (XID_STANDS_S + 1, {"gone": "GPU is lost"})))


def test_each_names_the_gpus_it_is_about() -> None:
    found = reports(
        {
            0: after((0.0, {"temperature_c": 91.0})),
            1: Memory(),
            7: after((0.0, {"temperature_c": 86.4, "xids": (79,)})),
        },
        is_simulated=True,
    )
    said = {report.type: (report.reason, report.message) for report in found if report.status == "true"}
    assert said["GpuHot"] == (
        "over_limit",
        "GPU 0 (91 °C), GPU 7 (86 °C): at or above 85 °C; look at the host's cooling.",
    )
    assert said["GpuXid"][1].startswith("GPU 7 (Xid 79): ")
    assert "HardwareSimulated" in said
    assert {report.type for report in found if report.status == "false"} == {"GpuThrottled", "GpuLost", "GpuEcc"}


@pytest.mark.parametrize(
    ("error", "unreadable", "silent_s", "reason"),
    [
        ("NVML can't be used.", [], 0.0, "nvml_failed"),
        ("", [(2, "Unknown Error")], 0.0, "not_opened"),
        ("", [], 11.0, "stuck"),
        ("", [], 9.0, "sampled"),
    ],
)
def test_whether_gpus_are_sampled(error: str, unreadable: list[tuple[int, str]], silent_s: float, reason: str) -> None:
    report = sampled(error, unreadable, silent_s)
    assert (report.reason, report.status) == (reason, "true" if reason == "sampled" else "false")


looks = st.builds(
    Look,
    temperature_c=st.floats(0, 120) | st.just(math.nan),
    ecc_uncorrected=st.floats(0, 1e6) | st.just(math.nan),
    throttle=st.integers(0, 0x1FF),
    xids=st.lists(st.integers(0, 200), max_size=3).map(tuple),
    recovery_action=st.sampled_from([0.0, 1.0]),
    gone=st.sampled_from(["", "GPU is lost"]),
)


@given(st.lists(st.tuples(looks, st.floats(0.5, 100)), max_size=20))
def test_whatever_was_seen_a_healthy_hour_clears_it(seen: list[tuple[Look, float]]) -> None:
    memory, now_s = Memory(), 0.0
    for look, passed_s in seen:
        now_s += passed_s
        memory = remember(memory, look, now_s)
        assert len(reports(dict.fromkeys(range(64), memory), is_simulated=True)) == 6
    healthy = Look(temperature_c=62.0, ecc_uncorrected=0.0)
    for passed_s in (THROTTLED_UNTIL_S + 1, XID_STANDS_S):
        now_s += passed_s
        memory = remember(memory, healthy, now_s)
    assert true(memory) == set()


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_slowdown_is_told_only_after_it_has_lasted(seen: list[bool]) -> None:
    memory, lasted_s = Memory(), 0.0
    for now_s, is_slow in enumerate(seen):
        memory = remember(memory, Look(throttle=HW_SLOWDOWN * is_slow), float(now_s))
        lasted_s = lasted_s + 1 if is_slow or lasted_s else 0.0
        if "GpuThrottled" in true(memory):
            assert lasted_s > THROTTLED_AFTER_S
