"""What the GPUs' samples mean for the node: pure rules from what was seen to standing conditions.

Only what a board or its driver says of itself is judged here; whether 79 °C is unusual for this board at this hour is
for the control plane, which knows its days.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from node.agent.preflight import condition
from protocol.messages import ConditionReport
from protocol.metrics import BAD_THROTTLE

HOT_C = 85.0
COOL_C = 82.0  # hot until it is below
THROTTLED_AFTER_S = 10.0  # a blink is no news
THROTTLED_UNTIL_S = 60.0
XID_STANDS_S = 600.0  # at least; longer while the driver asks for a recovery
# Those after which somebody must see to the GPU or its host (NVIDIA's catalogue: reset, restart, workflow, mechanical).
BAD_XIDS = frozenset(
    {46, 48, 54, 62, 64, 74, 78, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158}
)


@dataclass(frozen=True)
class Look:
    """One GPU as the agent's loop finds it."""

    temperature_c: float = math.nan
    ecc_uncorrected: float = math.nan
    throttle: int = 0  # bits since the look before
    xids: tuple[int, ...] = ()  # since the look before
    recovery_action: float = 0.0
    gone: str = ""


@dataclass(frozen=True)
class Memory:
    """What is remembered of one GPU between looks. Times are monotonic seconds."""

    is_hot: bool = False
    temperature_c: float = math.nan
    throttled_from_s: float | None = None
    throttled_last_s: float = -math.inf
    throttle: int = 0
    xid: int = 0
    xid_s: float = -math.inf
    ecc_uncorrected: float = 0.0
    gone: str = ""

    def is_throttled(self) -> bool:
        """Whether the slowdown has lasted long enough to be told."""
        begin_s = self.throttled_from_s
        return begin_s is not None and self.throttled_last_s - begin_s >= THROTTLED_AFTER_S


def remember(before: Memory, look: Look, now_s: float) -> Memory:
    """Take one more look into account; values that weren't measured leave what was known."""
    temperature_c = before.temperature_c if math.isnan(look.temperature_c) else look.temperature_c
    bits = look.throttle & BAD_THROTTLE
    begin_s, last_s = before.throttled_from_s, before.throttled_last_s
    if bits:
        begin_s, last_s = now_s if begin_s is None else begin_s, now_s
    elif now_s - last_s > THROTTLED_UNTIL_S:
        begin_s = None
    bad = [xid for xid in look.xids if xid in BAD_XIDS]
    xid, xid_s = (max(bad), now_s) if bad else (before.xid, before.xid_s)
    if not bad and now_s - xid_s > XID_STANDS_S and look.recovery_action == 0 and not look.gone:
        xid = 0
    return Memory(
        is_hot=temperature_c >= (COOL_C if before.is_hot else HOT_C),
        temperature_c=temperature_c,
        throttled_from_s=begin_s,
        throttled_last_s=last_s,
        throttle=bits or (before.throttle if begin_s is not None else 0),
        xid=xid,
        xid_s=xid_s,
        ecc_uncorrected=before.ecc_uncorrected if math.isnan(look.ecc_uncorrected) else look.ecc_uncorrected,
        gone=look.gone,
    )


def reports(gpus: Mapping[int, Memory], *, is_simulated: bool, script: str = "") -> list[ConditionReport]:
    """The conditions of a host with these GPUs, by index; each names the GPUs that it is about.

    `script` says what simulated GPUs are made to suffer just now, or why a scenario isn't followed.
    """
    hot = {index: f"{gpu.temperature_c:.0f} °C" for index, gpu in gpus.items() if gpu.is_hot}
    slowed = {index: f"reasons {gpu.throttle:#x}" for index, gpu in gpus.items() if gpu.is_throttled()}
    xids = {index: f"Xid {gpu.xid}" for index, gpu in gpus.items() if gpu.xid}
    lost = {index: gpu.gone for index, gpu in gpus.items() if gpu.gone}
    ecc = {index: f"{gpu.ecc_uncorrected:.0f} errors" for index, gpu in gpus.items() if gpu.ecc_uncorrected > 0}
    found = [
        _about("GpuHot", hot, "over_limit", f"at or above {HOT_C:.0f} °C; look at the host's cooling"),
        _about("GpuThrottled", slowed, "slowed_down", "slowed down by heat or power"),
        _about(
            "GpuXid", xids, "driver_error", "an error that a person must look at; reset the GPU or restart the host"
        ),
        _about("GpuLost", lost, "not_answering", "no answer from the driver; restart the host"),
        _about(
            "GpuEcc", ecc, "uncorrected", "memory errors that could not be corrected; drain the node, reset the GPU"
        ),
    ]
    if is_simulated:
        text = "The GPUs of this node are simulated: no figure of theirs was measured."
        reason = "drill" if script else "simulated"
        found.append(condition("HardwareSimulated", True, reason, f"{text} {script}".rstrip()))
    return found


def sampled(error: str, unreadable: Iterable[tuple[int, str]], silent_s: float) -> ConditionReport:
    """Whether the GPUs are sampled at all."""
    closed = [f"GPU {index}: {why}" for index, why in unreadable]
    if error:
        return condition("GpusSampled", False, "nvml_failed", error)
    if silent_s > 10.0:
        return condition("GpusSampled", False, "stuck", f"No GPU was sampled for {silent_s:.0f} s.")
    if closed:
        return condition("GpusSampled", False, "not_opened", f"The driver doesn't open {'; '.join(closed)}.")
    return condition("GpusSampled", True, "sampled")


def _about(kind: str, which: Mapping[int, str], reason: str, what: str) -> ConditionReport:
    if not which:
        return condition(kind, False, "none")
    named = ", ".join(f"GPU {index} ({detail})" for index, detail in sorted(which.items()))
    return condition(kind, True, reason, f"{named}: {what}.")
