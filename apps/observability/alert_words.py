"""What an alert says: one sentence that names the fault and its likely place, and the figures behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from apps.observability.alert_models import RuleKind
from apps.observability.alert_plans import Member, Observation, RuleView
from apps.observability.alert_rules import XID_MEANING

BAND_SCALES = 4.0  # the expected band's half width in scales of the residual; the score that alerts is the same
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class _Phrase:
    """How a metric's excess is said: «runs 16 °C above its usual»."""

    verb: tuple[str, str]  # for one, for several
    unit: str
    digits: int
    cause: str  # what it looks like when most of the host's GPUs share it


_PHRASES = {
    "temperature_c": _Phrase(("runs", "run"), "°C", 0, "the host's cooling"),
    "memory_temperature_c": _Phrase(("runs its memory", "run their memory"), "°C", 0, "the host's cooling"),
    "power_w": _Phrase(("draws", "draw"), "W", 0, "the host's load or power supply"),
    "utilization_ratio": _Phrase(("is busy", "are busy"), "%", 0, "the host's load"),
}


def say(observation: Observation, rule: RuleView) -> tuple[str, str]:
    """Return the sentence of what is wrong where, and the sentence of its figures (empty where it has none)."""
    name = observation.entity.name
    if rule.kind == RuleKind.NODE_DOWN:
        return f"{name} has not polled since {_clock(observation.since)}", observation.text
    if rule.kind == RuleKind.NO_TELEMETRY:
        return f"{name} polls, but its GPU samples stopped at {_clock(observation.since)}", observation.text
    if rule.kind == RuleKind.SLO:
        share = f"{100 * (observation.share or 0.0):.0f} %"
        return f"{name} answers {share} of its requests within 500 ms; 95 % are promised", observation.text
    if rule.kind == RuleKind.HEARTBEAT:
        return "Alerting is alive", ""
    if rule.kind == RuleKind.ANOMALY:
        return _anomaly(observation, rule.metric), _figures(observation.members)
    return _fault(observation, rule.kind), observation.text


def _anomaly(observation: Observation, metric: str) -> str:
    phrase = _PHRASES[metric]
    members = observation.members
    excess = median(
        member.observed - member.expected
        for member in members
        if member.observed is not None and member.expected is not None
    )
    factor = 100.0 if phrase.unit == "%" else 1.0
    size = f"{abs(excess) * factor:.{phrase.digits}f} {phrase.unit}"
    side = "above" if excess >= 0 else "below"
    several = len(members) > 1
    what = f"{phrase.verb[several]} {size} {side} {'their' if several else 'its'} usual"
    if _is_host(observation):
        return (
            f"{observation.entity.name}: {len(members)} of {observation.gpus} GPUs {what}; "
            f"looks like {phrase.cause}, not a GPU"
        )
    return f"{gpus_of(members)} of {observation.entity.name} {what}{_peers(observation, 'do', 'does')}"


def _fault(observation: Observation, kind: str) -> str:
    """Return the sentence of a fault that GPUs or their driver report."""
    name, members = observation.entity.name, observation.members
    who = f"{gpus_of(members)} of {name}" if members else f"A GPU of {name}"
    several = len(members) > 1
    if kind == RuleKind.GPU_XID:
        codes = xids_in(" ".join(member.note for member in members)) or xids_in(observation.text)
        named = " and ".join(_xid(code) for code in codes) or "an Xid error"
        return f"{who} {'report' if several else 'reports'} {named}"
    if kind == RuleKind.GPU_LOST:
        return f"{who} {'are' if several else 'is'} lost: the driver no longer reaches {'them' if several else 'it'}"
    if kind == RuleKind.GPU_ECC:
        return f"{who} {'have' if several else 'has'} memory errors that ECC could not correct"
    if _is_host(observation):
        return f"{name}: {len(members)} of {observation.gpus} GPUs are slowed down; looks like the host, not a GPU"
    return f"{who} {'are' if several else 'is'} slowed down{_peers(observation, 'are', 'is')}"


def _is_host(observation: Observation) -> bool:
    """Tell whether so many of the host's GPUs share the fault that the host is the likelier cause."""
    count = len(observation.members)
    return count >= 2 and 2 * count >= observation.gpus


def _peers(observation: Observation, plural: str, singular: str) -> str:
    """Return what the other GPUs of the host do; nothing where there are none."""
    others = observation.gpus - len(observation.members)
    if others <= 0:
        return ""
    several = len(observation.members) > 1
    whose = "the other" if several else "its"
    count = _NUMBERS[others] if others < len(_NUMBERS) else str(others)
    if others == 1:
        return f"; {'the other' if several else 'its peer'} {singular} not"
    return f"; {whose} {count}{'' if several else ' peers'} {plural} not"


def gpus_of(members: Sequence[Member]) -> str:
    """Return «GPU 5», «GPUs 2 and 5», «GPUs 0, 2 and 5», «GPUs 0 to 7»."""
    numbers = sorted(member.index for member in members)
    if len(numbers) == 1:
        return f"GPU {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"GPUs {numbers[0]} to {numbers[-1]}"
    return f"GPUs {', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"


def _figures(members: Sequence[Member]) -> str:
    """Return what was expected and seen of the member that is furthest off."""
    worst = max(members, key=lambda member: abs(member.z or 0.0))
    if worst.expected is None or worst.observed is None:
        return ""
    unit = _PHRASES[worst.metric].unit if worst.metric in _PHRASES else ""
    half = BAND_SCALES * (worst.scale or 0.0)
    kind = f", {worst.kind.replace('_', ' ')}" if worst.kind not in ("", "none") else ""
    score = f", score {worst.z:.1f}" if worst.z is not None else ""
    return (
        f"GPU {worst.index}: expected {worst.expected - half:.0f}–{worst.expected + half:.0f} {unit} at this hour, "
        f"observed {worst.observed:.0f} {unit}{score}{kind}."
    )


def _xid(code: int) -> str:
    meaning = XID_MEANING.get(code, "")
    return f"Xid {code}" + (f" ({meaning})" if meaning else "")


def _clock(moment: datetime | None) -> str:
    return moment.strftime("%H:%M UTC") if moment else "an unknown time"


_GPUS = re.compile(r"\bGPUs? ((?:\d{1,3})(?:(?:, | and | to |–|-)\d{1,3})*)")
_RANGE = re.compile(r"(\d{1,3})(?: to |–|-)(\d{1,3})")


def indices_in(text: str) -> list[int]:
    """Return the GPU indices that a node's own message names: «GPUs 0 to 2 and 5: …» → [0, 1, 2, 5]."""
    found: set[int] = set()
    for part in _GPUS.findall(text):
        for first, last in _RANGE.findall(part):
            found.update(range(int(first), int(last) + 1))
        found.update(int(number) for number in re.findall(r"\d{1,3}", part))
    return sorted(found)


_DETAILS = re.compile(r"\bGPU (\d{1,3}) \(([^()]*)\)")


def details_in(text: str) -> dict[int, str]:
    """Return what a node's own message says of single GPUs: «GPU 3 (Xid 79), GPU 5 (Xid 48): …»."""
    return {int(index): detail for index, detail in _DETAILS.findall(text)}


def xids_in(text: str) -> list[int]:
    """Return the Xid codes that a node's own message names."""
    return sorted({int(code) for code in re.findall(r"\bXids? ?(\d{1,3})\b", text)})
