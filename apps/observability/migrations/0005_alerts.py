"""Alerts: rules, what is open, what was told, silences."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import apps.access.models
import apps.lib.ids


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0002_idempotency_status"),
        ("observability", "0004_detectors"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AlertRule",
            fields=[
                ("slug", apps.access.models.SlugField(max_length=63, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("node_down", "Node does not poll"),
                            ("no_telemetry", "Node polls, its samples stopped"),
                            ("gpu_xid", "Xid error"),
                            ("gpu_lost", "GPU lost"),
                            ("gpu_ecc", "Uncorrected ECC errors"),
                            ("anomaly", "Outside its expected band"),
                            ("throttled", "Slowed down"),
                            ("slo", "Too many slow answers"),
                            ("heartbeat", "Always firing"),
                        ],
                        max_length=16,
                    ),
                ),
                ("metric", models.CharField(blank=True, max_length=32)),
                ("severity", models.CharField(choices=[("page", "Page"), ("ticket", "Ticket")], max_length=8)),
                (
                    "for_s",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Seconds it must hold before it fires; empty: as the installation sets it.",
                        null=True,
                    ),
                ),
                (
                    "keep_firing_s",
                    models.PositiveIntegerField(default=0, help_text="Seconds it keeps firing after it cleared."),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("description", models.TextField()),
                ("advice", models.TextField(help_text="What on-call should do; shown on the alert's page.")),
                ("runbook_url", models.URLField(blank=True)),
            ],
            options={
                "db_table": "observability_alertrule",
                "ordering": ["slug"],
            },
        ),
        migrations.CreateModel(
            name="Silence",
            fields=[
                ("id", models.UUIDField(default=apps.lib.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ("matchers", models.JSONField()),
                ("reason", models.TextField()),
                ("starts_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("end_reason", models.TextField(blank=True)),
                (
                    "author",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "ended_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="access.team"),
                ),
            ],
            options={
                "db_table": "observability_silence",
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.UUIDField(default=apps.lib.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "entity_kind",
                    models.CharField(choices=[("node", "Node"), ("model", "Model"), ("team", "Team")], max_length=8),
                ),
                ("entity_id", models.UUIDField()),
                ("entity_name", models.CharField(max_length=120)),
                ("node_id", models.UUIDField(null=True)),
                ("labels", models.JSONField(default=dict)),
                ("severity", models.CharField(choices=[("page", "Page"), ("ticket", "Ticket")], max_length=8)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("firing", "Firing"),
                            ("no_data", "No data"),
                            ("resolved", "Resolved"),
                        ],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("revision", models.PositiveIntegerField(default=0)),
                ("pending_at", models.DateTimeField()),
                ("firing_at", models.DateTimeField(null=True)),
                ("no_data_at", models.DateTimeField(null=True)),
                ("resolved_at", models.DateTimeField(null=True)),
                ("bad_at", models.DateTimeField()),
                ("members", models.JSONField(default=list)),
                ("gpus", models.PositiveSmallIntegerField(default=0)),
                ("simulated", models.BooleanField(default=False)),
                ("summary", models.TextField()),
                ("reason", models.TextField(blank=True)),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acknowledged_note", models.TextField(blank=True)),
                (
                    "acknowledged_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "inhibited_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="observability.alert",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="access.team"),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="alerts", to="observability.alertrule"
                    ),
                ),
                (
                    "silenced_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="silenced",
                        to="observability.silence",
                    ),
                ),
            ],
            options={
                "verbose_name": "alert",
                "db_table": "observability_alert",
            },
        ),
        migrations.CreateModel(
            name="AlertNotice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "entity_kind",
                    models.CharField(choices=[("node", "Node"), ("model", "Model"), ("team", "Team")], max_length=8),
                ),
                ("entity_id", models.UUIDField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("firing", "Firing"),
                            ("no_data", "No data"),
                            ("resolved", "Resolved"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "severity",
                    models.CharField(choices=[("page", "Page"), ("ticket", "Ticket")], max_length=8),
                ),
                ("again", models.BooleanField(default=False)),
                ("at", models.DateTimeField()),
                (
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="observability.alert"
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="access.team"),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="observability.alertrule"
                    ),
                ),
            ],
            options={
                "db_table": "observability_alertnotice",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("rule", "entity_kind", "entity_id"), name="observability_notice_once"
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="silence",
            index=models.Index(fields=["expires_at"], name="observability_silence_expiry"),
        ),
        migrations.AddConstraint(
            model_name="silence",
            constraint=models.CheckConstraint(
                condition=models.Q(("expires_at__gt", models.F("starts_at"))), name="observability_silence_order"
            ),
        ),
        migrations.AddConstraint(
            model_name="silence",
            constraint=models.CheckConstraint(
                condition=models.Q(("reason", ""), _negated=True), name="observability_silence_reason"
            ),
        ),
        migrations.AddConstraint(
            model_name="silence",
            constraint=models.CheckConstraint(
                condition=models.Q(("matchers", {}), _negated=True), name="observability_silence_matchers"
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(
                condition=models.Q(("state", "resolved"), _negated=True),
                fields=["state"],
                name="observability_alert_open",
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["node_id", "-pending_at"], name="observability_alert_node"),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["team", "-pending_at"], name="observability_alert_team"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "resolved"), _negated=True),
                fields=("rule", "entity_kind", "entity_id"),
                name="observability_alert_one_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["pending", "firing", "no_data", "resolved"])),
                name="observability_alert_state",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", "firing"), _negated=True), ("firing_at__isnull", False), _connector="OR"
                ),
                name="observability_alert_fired",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("resolved_at__isnull", False), ("state", "resolved")),
                    models.Q(models.Q(("state", "resolved"), _negated=True), ("resolved_at__isnull", True)),
                    _connector="OR",
                ),
                name="observability_alert_resolved",
            ),
        ),
    ]
