"""`/metrics` for Prometheus: what the database says of rollouts, alerts, nodes, queues and ingest.

Every process gives the same figures, since all come from the database; a scrape costs eight queries at most, and what
was read is kept for five seconds. Behind a bearer token of its own; without FARRIER_METRICS_TOKEN there is no page.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Min, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from apps.audit.models import Outbox
from apps.audit.sealer import seal_lag_s
from apps.fleet.models import Node, NodePhase
from apps.lib.problems import problem
from apps.observability.models import Alert, TelemetryCursor
from apps.rollouts.models import PauseReason, Phase, Rollout

KEPT_S = 5.0
_lock = threading.Lock()
_kept: tuple[float, bytes] | None = None  # monotonic time of reading, text


def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape; 404 where no token is set, 401 without it."""
    token = settings.FARRIER.metrics_token
    if not token:
        return problem(404, "no_metrics", "There is no /metrics here; set FARRIER_METRICS_TOKEN to have one.")
    sent = request.headers.get("Authorization", "")
    if not hmac.compare_digest(sent.encode(), f"Bearer {token}".encode()):
        answer = problem(401, "bad_token", "Send «Authorization: Bearer …» with the value of FARRIER_METRICS_TOKEN.")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    return HttpResponse(_text(), content_type=CONTENT_TYPE_LATEST)


def _text() -> bytes:
    """Return the figures, read at most once in five seconds by a process, however many scrape it."""
    global _kept
    with _lock:
        if _kept is None or time.monotonic() - _kept[0] > KEPT_S:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(_Figures(timezone.now()))
            _kept = (time.monotonic(), generate_latest(registry))
        return _kept[1]


class _Figures(Collector):
    """One reading of the database, for one scrape."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._rollouts()
        yield from self._alerts()
        yield from self._nodes()
        yield from self._queues()
        yield from self._ingest()

    def _rollouts(self) -> Iterator[Metric]:
        grouped = Rollout.objects.values_list("phase", "pause_reason").annotate(n=Count("pk"), due=Min("due_at"))
        rows = list(grouped.order_by())
        counts = {str(phase): 0 for phase in Phase}
        for phase, _, number, _ in rows:
            counts[phase] += number
        yield _family("farrier_rollouts", "Rollouts by phase.", ["phase"], {(phase,): n for phase, n in counts.items()})
        decidable = (PauseReason.APPROVAL, PauseReason.INCONCLUSIVE)
        waiting = sum(n for phase, why, n, _ in rows if phase == Phase.PAUSED and why in decidable)
        yield _one("farrier_approvals_waiting", "Rollouts that wait for a person's decision.", waiting)
        due = [moment for phase, _, _, moment in rows if phase not in Rollout.TERMINAL]
        yield self._age("farrier_rollout_due_age_seconds", "Age of the longest due look at an open rollout.", due)

    def _alerts(self) -> Iterator[Metric]:
        muted = Q(silenced_by__isnull=False) | Q(inhibited_by__isnull=False)
        rows = (
            Alert.objects.exclude(state="resolved")
            .exclude(rule="heartbeat")
            .values_list("state", "severity")
            .annotate(n=Count("pk"), muted=Count("pk", filter=muted), unseen=Count("pk", filter=Q(owner=None)))
            .order_by()
        )
        zero = {(state, severity): 0 for state in ("pending", "firing", "no_data") for severity in ("page", "ticket")}
        counts, quiet, unowned = dict(zero), 0, 0
        for state, severity, number, silent, unseen in rows:
            counts[state, severity] = number
            quiet += silent
            unowned += unseen if state == "firing" else 0
        yield _family("farrier_alerts", "Open alerts.", ["state", "severity"], counts)
        yield _one("farrier_alerts_muted", "Open alerts that a silence or another alert mutes.", quiet)
        yield _one("farrier_alerts_unowned", "Firing alerts that nobody has taken.", unowned)

    def _nodes(self) -> Iterator[Metric]:
        uncompiled = ~Q(desired_generation=F("compiled_generation"))
        rows = list(
            Node.objects.values_list("phase")
            .annotate(n=Count("pk"), late=Count("pk", filter=uncompiled), seen=Min("last_seen_at"))
            .order_by()
        )
        counts = {(str(phase),): 0 for phase in NodePhase} | {(phase,): n for phase, n, _, _ in rows}
        yield _family("farrier_nodes", "Nodes by phase.", ["phase"], counts)
        yield _one("farrier_nodes_uncompiled", "Nodes whose assignment is to be signed.", sum(row[2] for row in rows))
        seen = [moment for phase, _, _, moment in rows if phase in Node.MAY_TALK]
        yield self._age("farrier_node_last_poll_age_seconds", "Age of the oldest last poll of a node in use.", seen)

    def _queues(self) -> Iterator[Metric]:
        waits = Q(done_at__isnull=True, parked_at__isnull=True)
        row = Outbox.objects.filter(Q(done_at__isnull=True)).aggregate(
            n=Count("pk", filter=waits), parked=Count("pk", filter=~waits), due=Min("due_at", filter=waits)
        )
        yield _one("farrier_outbox_waiting", "Messages to webhooks that wait to be sent.", row["n"])
        yield _one("farrier_outbox_parked", "Messages to webhooks that were given up.", row["parked"])
        yield self._age("farrier_outbox_due_age_seconds", "Age of the longest due message.", [row["due"]])
        lag_s = seal_lag_s(now=self.now)
        yield _one("farrier_audit_seal_lag_seconds", "Age of the oldest audit event outside the chain.", lag_s)

    def _ingest(self) -> Iterator[Metric]:
        row = TelemetryCursor.objects.aggregate(batches=Sum("seq"), dropped=Sum("dropped_rows"))
        # sums over the cursors that are kept: they fall when a boot a month old is forgotten, so no counters
        yield _one("farrier_telemetry_batches", "Telemetry batches stored, of boots of the last month.", row["batches"])
        yield _one("farrier_telemetry_dropped_rows", "Rows dropped as malformed or out of time.", row["dropped"])

    def _age(self, name: str, text: str, moments: Iterable[datetime | None]) -> Metric:
        """Return how long ago the earliest moment is, in seconds; 0 when there is none, or it lies ahead."""
        known = [moment for moment in moments if moment is not None]
        age_s = max(0.0, (self.now - min(known)).total_seconds()) if known else 0.0
        return _one(name, text, age_s)


def _one(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value or 0))


def _family(name: str, text: str, labels: list[str], values: dict[Any, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
