"""What must hold after every rollout, whatever was killed in its middle. Each breach is one sentence."""

import base64
import json
from collections import Counter
from datetime import datetime
from threading import Event, Thread
from typing import Any

from tests.crash.site import NODES, Site
from tests.crash.traffic import Account, Failure
from tests.crash.waiting import WaitedInVain, until

SETTLE_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 90.0
# A request that the gateway asks twice because its engine died in between has a row from each that worked on it.
TWICE_S = 2.0

_STUCK = """
SELECT 'rollout #' || number || ' is ' || phase || ' with a lease beyond its time' AS what FROM rollouts_rollout
WHERE lease_until IS NOT NULL AND lease_until > now() + interval '60 seconds'
UNION ALL
SELECT 'rollout #' || number || ' is ' || phase || ', due since ' || due_at FROM rollouts_rollout
WHERE phase NOT IN ('completed', 'rolled_back', 'aborted', 'superseded')
UNION ALL
SELECT 'stage ' || s.index || ' of ended rollout #' || r.number || ' is running' FROM rollouts_stage AS s
JOIN rollouts_rollout AS r ON r.id = s.rollout_id
WHERE s.state = 'running' AND r.phase IN ('completed', 'rolled_back', 'aborted', 'superseded')
UNION ALL
SELECT 'node ' || name || ' desires generation ' || desired_generation || ', compiled is ' || compiled_generation
FROM fleet_node WHERE desired_generation <> compiled_generation
UNION ALL
SELECT 'node ' || n.name || ' follows assignment ' || n.observed_sequence || ', signed is ' || a.sequence
FROM fleet_node AS n JOIN fleet_assignment AS a ON a.node_id = n.id
WHERE (n.observed_epoch, n.observed_sequence) <> (a.director_epoch, a.sequence)
UNION ALL
SELECT 'node ' || n.name || ' reports ' || coalesce(r.state, 'nothing') || ' of ' || d.role || ' ' || d.model_id
FROM fleet_desireddeployment AS d JOIN fleet_node AS n ON n.id = d.node_id
LEFT JOIN fleet_reporteddeployment AS r ON r.node_id = d.node_id AND r.deployment_id = d.id
WHERE r.state IS DISTINCT FROM 'running'
UNION ALL
SELECT 'outbox row ' || id || ' was leased until ' || lease_until FROM audit_outbox
WHERE done_at IS NULL AND lease_until < now() - interval '60 seconds'
"""

_STARTED = """
SELECT object_label, data ->> 'stage' AS stage, count(*) AS times FROM audit_event
WHERE verb = 'rollout.stage_started' GROUP BY 1, 2 HAVING count(*) > 1
"""

_UNAPPROVED = """
SELECT r.number FROM rollouts_stage AS s JOIN rollouts_rollout AS r ON r.id = s.rollout_id
WHERE s.kind = 'approval' AND s.state = 'passed' AND 1 <> (
    SELECT count(*) FROM rollouts_approval AS a JOIN rollouts_evidencesnapshot AS e ON e.id = a.snapshot_id
    WHERE e.stage_id = s.id AND a.approve AND a.user_id <> r.requested_by_id
)
"""

_COUNTED = """
SELECT request_id, count(*) AS rows, array_agg(extract(epoch FROM time)::float8) AS times
FROM inference_log WHERE request_id = ANY(%(ids)s) GROUP BY request_id
"""


def check_nothing_stuck(site: Site) -> None:
    """Rollouts have ended, leases, stages and nodes with them. What is still on its way has a minute."""
    try:
        until("nothing is stuck", lambda: not site.rows(_STUCK), SETTLE_TIMEOUT_S)
    except WaitedInVain as late:
        raise AssertionError("; ".join(row["what"] for row in site.rows(_STUCK))) from late


def check_promotions(site: Site) -> None:
    """No stage was promoted twice, none beyond an approval without one by somebody else than the requester."""
    assert site.rows(_STARTED) == []
    assert site.rows(_UNAPPROVED) == []


def check_audit(site: Site) -> str:
    """The chain of audit events verifies, and reaches every event; returns the verifier's summary."""
    unsealed = "SELECT id FROM audit_event WHERE NOT EXISTS (SELECT FROM audit_seal WHERE event_id = audit_event.id)"
    until("every audit event is sealed", lambda: not site.rows(unsealed), SETTLE_TIMEOUT_S)
    done = site.manage("audit_verify")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def check_rows(site: Site, account: Account, engine_deaths: list[float]) -> int:
    """Every answered request has exactly one row; returns how many have one more from an engine that died on them."""
    ids = account.answered
    assert len(set(ids)) == len(ids), "the gateway gave two requests one id"
    try:
        until("every answered request has its row", lambda: not _missing(site, ids), DRAIN_TIMEOUT_S)
    except WaitedInVain as late:
        missing = _missing(site, ids)
        raise AssertionError(f"{len(missing)} of {len(ids)} answered requests have no row: {missing[:5]}") from late
    twice = [row for row in site.rows(_COUNTED, ids=ids) if row["rows"] != 1]
    unexplained = [
        row
        for row in twice
        if row["rows"] > 2 or not any(abs(row["times"][0] - death) < TWICE_S for death in engine_deaths)
    ]
    assert not unexplained, f"{len(unexplained)} requests have several rows: {unexplained[:5]}"
    return len(twice)


def _missing(site: Site, ids: list[str]) -> list[str]:
    found = {row["request_id"] for row in site.rows(_COUNTED, ids=ids)}
    return [request for request in ids if request not in found]


def check_failures(site: Site, account: Account) -> Counter[str]:
    """Requests failed only at gateways that were killed, while they were away; returns how many, by outage."""
    found: Counter[str] = Counter()
    unexplained: list[Failure] = []
    for failure in account.failures:
        why = next(
            (
                outage.why
                for outage in site.outages
                if failure.gateway.endswith(f":{outage.port}")
                and failure.at <= outage.ended
                and failure.ended >= outage.begun
            ),
            None,
        )
        if why is None:
            unexplained.append(failure)
        else:
            found[why] += 1
    assert not unexplained, f"{len(unexplained)} requests failed with nothing to excuse it: {unexplained[:5]}"
    return found


class SequenceWatch:
    """Reads the assignment that each node has accepted, ten times a second, and remembers where it went backwards."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self.last: dict[int, tuple[int, int, datetime]] = {}
        self.seen = 0
        self.backwards: list[str] = []

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def check(self) -> int:
        """Stop; the pairs (director epoch, sequence), and `issued` within a pair, only ever rose. Returns how many."""
        self._stop.set()
        self._thread.join()
        assert not self.backwards, self.backwards
        return self.seen

    def _run(self) -> None:
        while not self._stop.is_set():
            for number in range(1, NODES + 1):
                stored = self._site.node_json(number, "trust/assignment.json")
                if stored is not None:
                    self._look(number, stored)
            self._stop.wait(0.1)

    def _look(self, number: int, stored: dict[str, Any]) -> None:
        statement = json.loads(base64.b64decode(stored["bundle"]["statement"]))
        mark = (statement["director_epoch"], statement["sequence"], datetime.fromisoformat(statement["issued"]))
        before = self.last.get(number)
        if before == mark:
            return
        if before is not None and mark < before:
            self.backwards.append(f"node-{number} went from {before} to {mark}")
        self.seen += 1
        self.last[number] = mark
