"""Alerts: the rules that raise them, what is open, what receivers were told, who silenced what."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from apps.access.models import SlugField, Team
from apps.lib.ids import uuid7


class Severity(models.TextChoices):
    """Whether a person must act now (page) or in working hours (ticket)."""

    PAGE = "page", "Page"
    TICKET = "ticket", "Ticket"


class RuleKind(models.TextChoices):
    """How a rule judges; what each reads is in alert_inputs.py."""

    NODE_DOWN = "node_down", "Node does not poll"
    NO_TELEMETRY = "no_telemetry", "Node polls, its samples stopped"
    GPU_XID = "gpu_xid", "Xid error"
    GPU_LOST = "gpu_lost", "GPU lost"
    GPU_ECC = "gpu_ecc", "Uncorrected ECC errors"
    ANOMALY = "anomaly", "Outside its expected band"
    THROTTLED = "throttled", "Slowed down"
    SLO = "slo", "Too many slow answers"
    HEARTBEAT = "heartbeat", "Always firing"


class AlertRule(models.Model):
    """What raises an alert. The set is the product's (alert_rules.py); an installation edits what each one does."""

    slug = SlugField(primary_key=True)
    kind = models.CharField(max_length=16, choices=RuleKind.choices)
    metric = models.CharField(max_length=32, blank=True)  # of protocol.metrics, for anomalies
    severity = models.CharField(max_length=8, choices=Severity.choices)
    for_s = models.PositiveIntegerField(
        null=True, blank=True, help_text="Seconds it must hold before it fires; empty: as the installation sets it."
    )
    keep_firing_s = models.PositiveIntegerField(default=0, help_text="Seconds it keeps firing after it cleared.")
    enabled = models.BooleanField(default=True)
    description = models.TextField()
    advice = models.TextField(help_text="What on-call should do; shown on the alert's page.")
    runbook_url = models.URLField(blank=True)

    class Meta:
        db_table = "observability_alertrule"
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class AlertState(models.TextChoices):
    PENDING = "pending", "Pending"  # holds, not yet for long enough
    FIRING = "firing", "Firing"
    NO_DATA = "no_data", "No data"  # what it judges by has stopped: neither holding nor cleared
    RESOLVED = "resolved", "Resolved"


class EntityKind(models.TextChoices):
    NODE = "node", "Node"
    MODEL = "model", "Model"
    TEAM = "team", "Team"


class Silence(models.Model):
    """Alerts that match every one of `matchers` are shown but nobody is told, until it expires or is ended."""

    MATCHABLE = ("rule", "node", "zone", "model", "severity")

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    matchers = models.JSONField()  # {"rule": "gpu-temperature", "node": "node-2"}
    author = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    reason = models.TextField()
    starts_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    ended_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    end_reason = models.TextField(blank=True)

    class Meta:
        db_table = "observability_silence"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(expires_at__gt=models.F("starts_at")), name="observability_silence_order"
            ),
            models.CheckConstraint(condition=~models.Q(reason=""), name="observability_silence_reason"),
            models.CheckConstraint(condition=~models.Q(matchers={}), name="observability_silence_matchers"),
        ]
        indexes = [models.Index(fields=["expires_at"], name="observability_silence_expiry")]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in sorted(self.matchers.items()))


class Alert(models.Model):
    """One thing that is wrong with one entity. Its identity is rule + entity; it carries no value.

    A rule on GPUs has one alert a node, whose members come and go. What fires again after it resolved is a new row.
    """

    TRANSITIONS = {
        AlertState.PENDING: frozenset({AlertState.FIRING, AlertState.NO_DATA, AlertState.RESOLVED}),
        AlertState.FIRING: frozenset({AlertState.NO_DATA, AlertState.RESOLVED}),
        # back to where it came from: what never fired must hold for its time anew
        AlertState.NO_DATA: frozenset({AlertState.PENDING, AlertState.FIRING, AlertState.RESOLVED}),
        AlertState.RESOLVED: frozenset[str](),
    }
    STATE_FIELD = "state"
    OPEN = frozenset({AlertState.PENDING, AlertState.FIRING, AlertState.NO_DATA})

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    rule = models.ForeignKey(AlertRule, on_delete=models.PROTECT, related_name="alerts")
    entity_kind = models.CharField(max_length=8, choices=EntityKind.choices)
    entity_id = models.UUIDField()  # plain: an alert outlives what it speaks of
    entity_name = models.CharField(max_length=120)
    node_id = models.UUIDField(null=True)  # the node that it is about, or that a slow model is slow on
    labels = models.JSONField(default=dict)  # what silences match: rule, node, zone, model, severity
    severity = models.CharField(max_length=8, choices=Severity.choices)
    state = models.CharField(max_length=8, choices=AlertState.choices, default=AlertState.PENDING)
    revision = models.PositiveIntegerField(default=0)

    pending_at = models.DateTimeField()  # since when it holds, by our clock; anew after missing data
    firing_at = models.DateTimeField(null=True)
    no_data_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    bad_at = models.DateTimeField()  # when it was last seen to hold
    members = models.JSONField(default=list)  # the GPUs that it is about: uuid, index, observed, expected, scale, z
    gpus = models.PositiveSmallIntegerField(default=0)  # how many the node has
    simulated = models.BooleanField(default=False)  # said wherever the alert is shown
    summary = models.TextField()  # one sentence: what is wrong, where
    reason = models.TextField(blank=True)  # the figures behind it

    acknowledged_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_note = models.TextField(blank=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+")
    inhibited_by = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    silenced_by = models.ForeignKey(Silence, null=True, on_delete=models.SET_NULL, related_name="silenced")

    class Meta:
        db_table = "observability_alert"
        verbose_name = "alert"
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "entity_kind", "entity_id"],
                condition=~models.Q(state="resolved"),
                name="observability_alert_one_open",
            ),
            models.CheckConstraint(condition=models.Q(state__in=AlertState.values), name="observability_alert_state"),
            models.CheckConstraint(
                condition=~models.Q(state="firing") | models.Q(firing_at__isnull=False),
                name="observability_alert_fired",
            ),
            models.CheckConstraint(
                condition=models.Q(state="resolved", resolved_at__isnull=False)
                | (~models.Q(state="resolved") & models.Q(resolved_at__isnull=True)),
                name="observability_alert_resolved",
            ),
        ]
        indexes = [
            models.Index(fields=["state"], name="observability_alert_open", condition=~models.Q(state="resolved")),
            models.Index(fields=["node_id", "-pending_at"], name="observability_alert_node"),
            models.Index(fields=["team", "-pending_at"], name="observability_alert_team"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_id} on {self.entity_name}"


class AlertNotice(models.Model):
    """What receivers were last told of one identity (rule + entity), over all its alerts."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="+")
    entity_kind = models.CharField(max_length=8, choices=EntityKind.choices)
    entity_id = models.UUIDField()
    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="+")  # the one that it was about
    state = models.CharField(max_length=8, choices=AlertState.choices)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    again = models.BooleanField(default=False)  # a silence lay over it: tell anew when it ends
    at = models.DateTimeField()

    class Meta:
        db_table = "observability_alertnotice"
        constraints = [
            models.UniqueConstraint(fields=["rule", "entity_kind", "entity_id"], name="observability_notice_once")
        ]


def check_matchers(matchers: object) -> dict[str, str]:
    """Return matchers as `{name: value}`. Raises ValidationError for unknown names, empty values, none at all."""
    if not isinstance(matchers, dict) or not matchers:
        raise ValidationError("A silence needs at least one matcher, such as node=node-2.")
    for name, value in matchers.items():
        if name not in Silence.MATCHABLE:
            raise ValidationError(f"«{name}» can't be matched; these can: {', '.join(Silence.MATCHABLE)}.")
        if not isinstance(value, str) or not value or len(value) > 120:
            raise ValidationError(f"The matcher {name} needs a value of at most 120 characters.")
    return dict(matchers)
