"""The rules that every installation starts with, and which Xid errors are worth waking somebody for."""

from __future__ import annotations

from apps.observability.alert_models import AlertRule, RuleKind, Severity

KEEP_FIRING_S = 120  # two minutes' samples: a value at the band's edge does not open and close an alert

# NVIDIA's catalogue by recommended action (research: Xid policy). What is neither here nor below is recorded only.
XID_PAGE = frozenset({46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158})
XID_TICKET = frozenset({13, 31, 54, 69, 78, 94})
XID_RECORD = frozenset({43, 45, 63, 92, 121, 137, 154})
XID_MEANING = {
    13: "an application's fault",
    31: "an application's fault",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "micro-controller halted",
    64: "a memory row could not be remapped",
    69: "an application's fault",
    74: "NVLink error",
    78: "firmware error",
    79: "fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's firmware does not answer",
    120: "the GPU's firmware failed",
}


def xid_severity(code: int) -> Severity | None:
    """Return how urgent an Xid is, None for those that are recorded only. An unknown one is a ticket."""
    if code in XID_PAGE:
        return Severity.PAGE
    return None if code in XID_RECORD or code <= 0 else Severity.TICKET


DEFAULTS = (
    AlertRule(
        slug="node-down",
        kind=RuleKind.NODE_DOWN,
        severity=Severity.PAGE,
        for_s=60,  # after an outage of ours, nodes get a minute to be heard again before anybody is paged
        description="The node has missed three polls.",
        advice="Check the host's power and network, then its agent. Its engines go on serving without us.",
    ),
    AlertRule(
        slug="no-telemetry",
        kind=RuleKind.NO_TELEMETRY,
        severity=Severity.TICKET,
        for_s=60,
        description="The node polls, but no GPU sample of it has come for three minutes.",
        advice="Look at the agent's log for sampler or spool errors; restart the agent.",
    ),
    AlertRule(
        slug="gpu-xid",
        kind=RuleKind.GPU_XID,
        severity=Severity.PAGE,
        for_s=0,
        keep_firing_s=600,  # the driver says an Xid once; it is not over because it is not repeated
        description="The driver reported an Xid error.",
        advice="Cordon the node; reset the GPU once drained. A second time after a reboot: have it inspected.",
    ),
    AlertRule(
        slug="gpu-lost",
        kind=RuleKind.GPU_LOST,
        severity=Severity.PAGE,
        for_s=0,
        keep_firing_s=KEEP_FIRING_S,
        description="The driver no longer reaches a GPU.",
        advice="Drain the node and reboot it. If the GPU stays away, reseat or replace it.",
    ),
    AlertRule(
        slug="gpu-ecc",
        kind=RuleKind.GPU_ECC,
        severity=Severity.PAGE,
        for_s=0,
        keep_firing_s=600,
        description="Memory errors that ECC could not correct.",
        advice="Drain the node and reset the GPU; run the field diagnostics if they come back.",
    ),
    AlertRule(
        slug="gpu-temperature",
        kind=RuleKind.ANOMALY,
        metric="temperature_c",
        severity=Severity.TICKET,
        keep_firing_s=KEEP_FIRING_S,
        description="A GPU is hotter than its season lets expect. A page as soon as clocks are slowed down for it.",
        advice="Drain the node and check its airflow: fans, filters, the inlet's temperature.",
    ),
    AlertRule(
        slug="gpu-memory-temperature",
        kind=RuleKind.ANOMALY,
        metric="memory_temperature_c",
        severity=Severity.TICKET,
        keep_firing_s=KEEP_FIRING_S,
        description="A GPU's memory is hotter than its season lets expect.",
        advice="Check the airflow; on a single GPU, its heat sink.",
    ),
    AlertRule(
        slug="gpu-power",
        kind=RuleKind.ANOMALY,
        metric="power_w",
        severity=Severity.TICKET,
        keep_firing_s=KEEP_FIRING_S,
        description="A GPU draws more or less power than its season lets expect.",
        advice="Compare with its load: a changed load is no fault. Else look for a power cap or a failing supply.",
    ),
    AlertRule(
        slug="gpu-throttled",
        kind=RuleKind.THROTTLED,
        severity=Severity.TICKET,
        keep_firing_s=KEEP_FIRING_S,
        description="The hardware slows a GPU's clocks down, for heat or for power.",
        advice="Check cooling and power supply; drain the node while its latency suffers.",
    ),
    AlertRule(
        slug="model-slo",
        kind=RuleKind.SLO,
        severity=Severity.PAGE,
        for_s=60,  # its window is five minutes long already
        keep_firing_s=KEEP_FIRING_S,
        description="Fewer than 95 % of a model's answers in five minutes came within 500 ms.",
        advice="See which nodes are slow, and whether a rollout or a load change came before it.",
    ),
    AlertRule(
        slug="heartbeat",
        kind=RuleKind.HEARTBEAT,
        severity=Severity.TICKET,
        for_s=0,
        description="Always firing: whoever stops hearing it knows that alerting itself is down.",
        advice="Nothing: it is meant to fire.",
    ),
)

# Which alert speaks for a node when several fire: the greater one mutes the smaller (node down > Xid > GPU > latency).
RANK = {
    "node-down": 100,
    "gpu-xid": 90,
    "gpu-lost": 85,
    "gpu-ecc": 80,
    "no-telemetry": 70,
    "gpu-temperature": 60,
    "gpu-throttled": 55,
    "gpu-memory-temperature": 50,
    "gpu-power": 45,
    "model-slo": 10,
    "heartbeat": 0,
}
HEAT = frozenset({"gpu-temperature", "gpu-throttled", "gpu-memory-temperature"})  # one cause seen three ways


def ensure_rules() -> list[AlertRule]:
    """Return every rule by slug; what this installation lacks (a new release's) is added, what it edited stays."""
    known = list(AlertRule.objects.all())
    missing = {rule.slug for rule in DEFAULTS} - {rule.slug for rule in known}
    if missing:
        AlertRule.objects.bulk_create([rule for rule in DEFAULTS if rule.slug in missing], ignore_conflicts=True)
        known = list(AlertRule.objects.all())
    return known
