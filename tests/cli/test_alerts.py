"""`farrier alerts`, as a process of its own."""

from __future__ import annotations

import json
from datetime import datetime
from uuid import uuid4

from apps.access.models import Team
from apps.observability.alert_models import Alert
from apps.observability.alert_rules import ensure_rules
from tests.cli.conftest import Farrier


def test_open_alerts_are_listed(farrier: Farrier, team: Team, now: datetime) -> None:
    assert "what" in farrier("alerts").stdout
    ensure_rules()
    node = uuid4()
    Alert.objects.create(
        team=team, rule_id="node-down", entity_kind="node", entity_id=node, entity_name="node-2", node_id=node,
        severity="page", state="firing", pending_at=now, firing_at=now, bad_at=now, simulated=True,
        labels={"rule": "node-down", "node": "node-2"}, summary="node-2 has not polled since 03:04 UTC",
    )  # fmt: skip
    shown = farrier("alerts").stdout
    assert "node-2 has not polled since 03:04 UTC (simulated)" in shown
    assert "nobody" in shown
    rows = json.loads(farrier("alerts", "--state", "firing", "--node", "node-2", "--json").stdout)
    assert [row["rule"] for row in rows] == ["node-down"]
    assert json.loads(farrier("alerts", "--state", "resolved", "--json").stdout) == []
    refused = farrier("alerts", "--state", "angry")
    assert (refused.returncode, "is none of open, pending" in refused.stderr) == (1, True)
