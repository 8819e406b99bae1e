"""The cursor under a network that loses, doubles and reorders, nodes that restart and clocks that step.

Whatever happens: a row is stored at most once, an acknowledged one exactly once, what a batch drops is counted, and
when all has come through the rollups are what the rows make. On the real database, with the clock in our hands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from django.db import close_old_connections, connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from apps.fleet.models import Node
from apps.observability import ingest, rollups, services, store
from apps.observability.models import DirtyMinute, TelemetryCursor
from protocol.telemetry_pb2 import TelemetryBatch
from tests.observability.batches import batch, give_gpus, gpu_block, send

RETENTION = timedelta(hours=48)
LIES_S = (-90_000.0, -700.0, -3.0, 0.0, 3.0, 700.0)  # by how much a sample's time is off what it should be
settings.register_profile("cursor", max_examples=25, stateful_step_count=40)
settings.register_profile("nightly", max_examples=500, stateful_step_count=100)


@dataclass
class Sample:
    number: int  # its value: what it is known by in the table
    taken_s: float  # node clock


@dataclass
class Boot:
    """One boot of the node: batches are numbered within it, and those not acknowledged are kept."""

    boot_id: UUID
    sent: dict[int, tuple[TelemetryBatch, list[Sample]]]
    acknowledged: int = 0  # what the node knows to be stored
    stored: int = 0  # what is

    @property
    def waiting(self) -> bool:
        return self.acknowledged < len(self.sent)


class Deliveries(RuleBasedStateMachine):
    """A node that follows the protocol, and all that may come between it and the control plane."""

    node: ClassVar[Node]
    uuid: ClassVar[str]
    start: ClassVar[datetime]

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.savepoint()
        self.now = self.start
        self.skew_s = 0.0  # how far the node's clock is ahead; the agent has measured it
        self.spool: list[Sample] = []
        self.count = 0
        self.boots = [Boot(uuid4(), {})]
        self.stored: dict[int, datetime] = {}  # what the table must have: when each sample was taken, on our clock
        self.dropped = 0

    def teardown(self) -> None:
        try:
            self._all_arrives()
        finally:
            transaction.savepoint_rollback(self.savepoint)

    # ---- what may happen --------------------------------------------------------------------------------------------

    @rule(lies_s=st.lists(st.sampled_from(LIES_S), min_size=1, max_size=6))
    def measure(self, lies_s: list[float]) -> None:
        for lie_s in lies_s:
            self.count += 1
            self.spool.append(Sample(self.count, self.now.timestamp() + self.skew_s + lie_s))

    @rule(rows=st.integers(0, 5))
    def pack(self, rows: int) -> None:
        taken, self.spool = self.spool[:rows], self.spool[rows:]
        boot = self.boots[-1]
        seq = len(boot.sent) + 1
        message = TelemetryBatch(
            node=str(self.node.pk), boot_id=str(boot.boot_id), seq=seq, clock_offset_s=-self.skew_s
        )
        if taken:
            times, values = [s.taken_s for s in taken], [s.number for s in taken]
            message.gpu.append(gpu_block([self.uuid], times, power_w=values))
        boot.sent[seq] = (message, taken)

    @precondition(lambda self: any(boot.sent for boot in self.boots))
    @rule(which=st.data(), answer_lost=st.booleans(), crashes=st.booleans())
    def deliver(self, which: Any, answer_lost: bool, crashes: bool) -> None:
        """Any batch that was ever sent, in any order; the web may die before its commit, the answer on its way."""
        boot = which.draw(st.sampled_from([boot for boot in self.boots if boot.sent]))
        seq = which.draw(st.sampled_from(sorted(boot.sent)))
        if crashes:
            inner = transaction.savepoint()
            self._store(boot, seq)
            transaction.savepoint_rollback(inner)
            return
        answered = self._store(boot, seq)
        self._expect(boot, seq, answered)
        if not answer_lost:
            assert answered >= boot.acknowledged, "the control plane has forgotten what it acknowledged"
            boot.acknowledged = answered

    @rule()
    def restart(self) -> None:
        """A new boot counts from one; batches of the old one go on under their own numbers."""
        self.boots.append(Boot(uuid4(), {}))

    @rule(step_s=st.sampled_from([-86_400.0, -5.0, 0.25, 30.0, 86_400.0]))
    def clock_steps(self, step_s: float) -> None:
        self.skew_s += step_s

    # partitions are made for a week ahead of the database's own clock
    @precondition(lambda self: self.now < self.start + timedelta(days=5))
    @rule(seconds=st.sampled_from([1, 20, 61, 3_700, 80_000]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @precondition(lambda _: not store.is_timescale())  # whose refresh takes no part in a transaction
    @rule()
    def refresh(self) -> None:
        rollups.refresh(self.now)

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def every_row_is_there_once(self) -> None:
        assert sorted(self._table()) == sorted((number, time) for number, time in self.stored.items())

    @invariant()
    def what_was_dropped_is_counted(self) -> None:
        assert sum(TelemetryCursor.objects.values_list("dropped_rows", flat=True)) == self.dropped

    def _store(self, boot: Boot, seq: int) -> int:
        """Hand a batch over; the number up to which all is stored, as the node learns it."""
        try:
            return services.store_batch(self.node, boot.sent[seq][0], now=self.now).seq
        except services.SequenceGap as gap:
            return int(gap.extra["stored_seq"])

    def _expect(self, boot: Boot, seq: int, answered: int) -> None:
        """Note what this delivery must have put into the table: nothing, unless it was the next in order."""
        if seq != boot.stored + 1:
            assert answered == boot.stored
            return
        assert answered == seq
        boot.stored = seq
        message, rows = boot.sent[seq]
        for sample in rows:
            at = datetime.fromtimestamp(sample.taken_s, UTC) + timedelta(seconds=message.clock_offset_s)
            if self.now - RETENTION <= at <= self.now + ingest.AHEAD:
                self.stored[sample.number] = at
            else:
                self.dropped += 1

    def _table(self) -> list[tuple[int, datetime]]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT power_w::integer, time FROM gpu_sample")
            return cursor.fetchall()

    def _all_arrives(self) -> None:
        """The network heals: each boot sends what isn't acknowledged, in order, until it is."""
        if self.spool:
            self.pack(len(self.spool))
        for boot in self.boots:
            while boot.waiting:
                answered = self._store(boot, boot.acknowledged + 1)
                self._expect(boot, boot.acknowledged + 1, answered)
                assert answered > boot.acknowledged
                boot.acknowledged = answered
        self.every_row_is_there_once()
        self.what_was_dropped_is_counted()
        if not store.is_timescale():
            self._rollups_are_right()

    def _rollups_are_right(self) -> None:
        while rollups.refresh(self.now + timedelta(hours=1)):
            continue
        assert not DirtyMinute.objects.exists()
        minutes: dict[datetime, list[int]] = {}
        for number, time in self.stored.items():
            minutes.setdefault(rollups.floor(time, rollups.MINUTE), []).append(number)
        with connection.cursor() as cursor:
            cursor.execute("SELECT time, samples, power_w_sum::integer FROM gpu_minute")
            found = {time: (samples, total) for time, samples, total in cursor.fetchall()}
        assert found == {minute: (len(numbers), sum(numbers)) for minute, numbers in minutes.items()}


def test_whatever_the_network_does(enrolled: Callable[[str], Any]) -> None:
    agent = enrolled("node-1")
    Deliveries.node = Node.objects.get(pk=agent.node)
    (Deliveries.uuid,) = give_gpus(agent, 1)
    Deliveries.start = datetime.now(UTC)
    asked = settings.get_current_profile_name()
    profile = settings.get_profile("nightly" if asked == "nightly" else "cursor")
    run_state_machine_as_test(
        Deliveries,
        settings=settings(profile, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True),
    )


@pytest.mark.django_db(transaction=True)
def test_one_batch_over_many_connections_at_once_is_stored_once(enrolled: Callable[[str], Any]) -> None:
    agent = enrolled("node-1")
    gpus = give_gpus(agent)
    messages = [
        batch(agent, seq, gpu=[gpu_block(gpus, [datetime.now(UTC).timestamp()], power_w=seq)]) for seq in range(1, 6)
    ]
    answers: list[tuple[int, int]] = []

    def deliver() -> None:
        try:
            for seq, message in enumerate(messages, start=1):
                answers.append((seq, send(agent, message).status_code))
        finally:
            close_old_connections()
            connection.close()

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count((1, 200)) == 6
    assert {status for _, status in answers} <= {200, 409}
    with connection.cursor() as cursor:
        cursor.execute("SELECT power_w::integer, count(*) FROM gpu_sample GROUP BY 1 ORDER BY 1")
        assert cursor.fetchall() == [(seq, 1) for seq in range(1, 6)]
