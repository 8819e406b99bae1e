"""The chain: complete under concurrent writers, in commit order, and nobody changes the past unseen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from apps.access.actors import SYSTEM
from apps.access.models import Team
from apps.audit import keys, sealer
from apps.audit.models import Checkpoint, Event, RestoreEpoch, Seal
from apps.audit.transitions import record
from apps.audit.verify import Report, verify_chain
from apps.lib.errors import Conflict

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def audit_key(home: Path) -> None:
    path = keys.key_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(keys.new_key_pem())


def seal_all() -> int:
    """Seal until every event is in the chain; return how many were sealed.

    The rule looks at the whole cluster, so a test in another database may hold this one back for a while.
    """
    sealed, deadline = sealer.seal_events(limit=4), time.monotonic() + 120
    while Event.objects.filter(seal__isnull=True).exists():
        assert time.monotonic() < deadline, "some transaction stays open"
        time.sleep(0.05)
        sealed += sealer.seal_events(limit=4)
    return sealed


@pytest.fixture
def chain(team: Team, now: datetime) -> Team:
    """Ten sealed events and a checkpoint."""
    for number in range(9):
        record(team, "test.happened", actor=SYSTEM, now=now, data={"number": number})
    assert seal_all() == 10
    sealer.sign_checkpoint(now=now)
    return team


def verify() -> Report:
    return verify_chain(keys.signing_key().public_key())


def codes() -> set[str]:
    return {finding.code for finding in verify().findings}


@contextmanager
def as_intruder() -> Iterator[Callable[[str], None]]:
    """SQL of somebody who owns the tables and has switched the triggers off."""
    with connection.cursor() as cursor:
        for table in ("audit_event", "audit_seal"):
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield cursor.execute
        for table in ("audit_event", "audit_seal"):
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def in_thread(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_untouched_chain_is_intact(chain: Team) -> None:
    report = verify()
    assert (report.intact, report.links, report.checkpoints) == (True, 10, 1)


def test_sealing_while_many_write(team: Team) -> None:
    done = threading.Event()

    def write(writer: int) -> None:
        for number in range(40):
            with transaction.atomic():
                record(team, "test.happened", actor=SYSTEM, data={"writer": writer, "number": number})
                if number % 7 == 3:
                    transaction.set_rollback(True)

    def seal() -> None:
        while not done.is_set():
            sealer.seal_events(limit=10)

    writers = [in_thread(lambda w=w: write(w)) for w in range(4)]  # type: ignore[misc]
    sealers = [in_thread(seal) for _ in range(2)]
    for thread in writers:
        thread.join()
    done.set()
    for thread in sealers:
        thread.join()
    seal_all()
    assert verify().intact
    assert Event.objects.filter(seal__isnull=True).count() == 0
    written = [e.data["number"] for e in Event.objects.filter(data__writer=2).order_by("seal__position")]
    assert written == [number for number in range(40) if number % 7 != 3]


def test_an_open_transaction_holds_back_what_comes_after_it(team: Team) -> None:
    seal_all()
    written, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            record(team, "test.slow", actor=SYSTEM)
            written.set()
            go_on.wait(20)

    thread = in_thread(slow)
    assert written.wait(20)
    record(team, "test.quick", actor=SYSTEM)
    assert sealer.seal_events() == 0
    go_on.set()
    thread.join()
    assert seal_all() == 2
    assert list(Event.objects.order_by("seal__position").values_list("verb", flat=True)[1:]) == [
        "test.slow", "test.quick",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_event SET reason = 'other'",
        "DELETE FROM audit_event",
        "UPDATE audit_seal SET position = position + 100",
        "DELETE FROM audit_seal",
    ],
)
def test_rows_can_not_be_altered_by_ordinary_means(chain: Team, statement: str) -> None:
    with pytest.raises(DatabaseError, match="Cannot update or delete"), connection.cursor() as cursor:
        cursor.execute(statement)
    assert verify().intact


AT_5 = "(SELECT event_id FROM audit_seal WHERE position = 5)"
TAMPERING = {
    "edited": ([f"UPDATE audit_event SET reason = 'other' WHERE id = {AT_5}"], {"changed_event"}),
    "time": ([f"UPDATE audit_event SET at = at + interval '1 microsecond' WHERE id = {AT_5}"], {"changed_event"}),
    "deleted": (
        [
            f"CREATE TEMP TABLE gone AS SELECT {AT_5} AS id",
            "DELETE FROM audit_seal WHERE position = 5",
            "DELETE FROM audit_event WHERE id IN (SELECT id FROM gone)",
            "DROP TABLE gone",
        ],
        {"missing_link"},
    ),
    "swapped": (
        [
            "UPDATE audit_seal SET position = -4 WHERE position = 4",
            "UPDATE audit_seal SET position = 4 WHERE position = 5",
            "UPDATE audit_seal SET position = 5 WHERE position = -4",
        ],
        {"changed_event", "out_of_order"},
    ),
    "cut off": (["DELETE FROM audit_seal WHERE position > 7"], {"truncated"}),
    "checkpoint": (["UPDATE audit_checkpoint SET at = at + interval '1 hour'"], {"bad_checkpoint"}),
}


@pytest.mark.parametrize(("statements", "expected"), TAMPERING.values(), ids=TAMPERING)
def test_tampering_is_found(chain: Team, statements: list[str], expected: set[str]) -> None:
    with as_intruder() as execute:
        for statement in statements:
            execute(statement)
    assert codes() == expected


def test_a_whole_chain_rewritten_after_an_edit_is_found(chain: Team) -> None:
    with as_intruder() as execute:
        execute(
            "UPDATE audit_event SET reason = 'other' WHERE id = (SELECT event_id FROM audit_seal WHERE position = 5)"
        )
        execute("DELETE FROM audit_seal")
    seal_all()
    assert codes() == {"rewritten"}


def test_an_end_cut_off_with_its_checkpoints_is_found_by_the_shipped_ones(chain: Team) -> None:
    shipped = keys.read_checkpoints(keys.checkpoint_file())
    with as_intruder() as execute:
        execute("DELETE FROM audit_checkpoint")
        execute("DELETE FROM audit_seal WHERE position > 7")
        execute("DELETE FROM audit_event WHERE id NOT IN (SELECT event_id FROM audit_seal)")
    assert verify().intact
    report = verify_chain(keys.signing_key().public_key(), shipped=shipped)
    assert [finding.code for finding in report.findings] == ["truncated"]


def test_an_event_slipped_in_behind_the_sealer_is_found(chain: Team) -> None:
    first = Event.objects.order_by("id").first()
    assert first is not None
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO audit_event (xid, at, actor_kind, actor_label, verb, object_type, object_id, object_label, "
            "from_state, to_state, reason, data) "
            "SELECT xid, at, actor_kind, 'forger', verb, object_type, object_id, object_label, '', '', '', '{}' "
            "FROM audit_event WHERE id = %s",
            [first.pk],
        )
    record(chain, "test.later", actor=SYSTEM)
    while not Seal.objects.filter(event__verb="test.later").exists():
        sealer.seal_events()
    assert codes() == {"unsealed_event"}


def test_the_command_tells_by_its_exit(chain: Team) -> None:
    out = StringIO()
    call_command("audit_verify", stdout=out)
    assert "intact: 10 links, 1 checkpoints" in out.getvalue()
    with as_intruder() as execute:
        execute("UPDATE audit_event SET verb = 'nothing.happened' WHERE verb = 'team.created'")
    with pytest.raises(CommandError, match="tampered"):
        call_command("audit_verify", stderr=StringIO())


def test_checkpoints_are_signed_only_when_the_chain_grew(chain: Team, now: datetime) -> None:
    assert sealer.sign_checkpoint(now=now) is None
    record(chain, "test.more", actor=SYSTEM)
    seal_all()
    checkpoint = sealer.sign_checkpoint(now=now)
    assert checkpoint is not None
    assert checkpoint.position == 11
    assert len(keys.read_checkpoints(keys.checkpoint_file())) == Checkpoint.objects.count() == 2


def test_after_a_restore_order_begins_anew_and_nothing_is_lost(chain: Team) -> None:
    record(chain, "test.unsealed_at_backup", actor=SYSTEM)
    assert sealer.mark_restored(reason="drill") == 1
    seal_all()
    assert verify().intact
    assert list(Seal.objects.order_by("position").values_list("restore_epoch", "event__verb"))[-2:] == [
        (0, "test.unsealed_at_backup"), (1, "audit.restored"),
    ]  # fmt: skip


def test_transaction_ids_that_went_back_stop_the_sealer_until_it_is_told(chain: Team) -> None:
    # a restored cluster counts from the start: as if the sealed events had come from far ahead
    with as_intruder() as execute:
        execute("UPDATE audit_event SET xid = xid + 1000000000")
        execute("DELETE FROM audit_seal")
        execute("DELETE FROM audit_checkpoint")
    assert sealer.mark_restored(reason="drill") == 1
    seal_all()
    assert verify().intact
    with as_intruder() as execute:
        execute("UPDATE audit_seal SET restore_epoch = 0")
        execute("DELETE FROM audit_seal WHERE position = (SELECT max(position) FROM audit_seal)")
        execute("DELETE FROM audit_restoreepoch")
    assert not RestoreEpoch.objects.exists()
    with pytest.raises(Conflict) as refused:
        sealer.seal_events()
    assert refused.value.code == "restore_not_marked"


def test_falling_behind_is_measured_and_told(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    seal_all()
    now = datetime.now(UTC)
    assert sealer.watch_lag(now=now) == 0.0
    record(team, "test.happened", actor=SYSTEM, now=now - timedelta(seconds=90))
    assert sealer.watch_lag(now=now) == pytest.approx(90.0)
    assert sealer.watch_lag(now=now) == pytest.approx(90.0)
    assert "90 s behind" in caplog.text
    assert Event.objects.filter(verb="audit.lagging").count() == 1
    seal_all()
    assert sealer.watch_lag(now=now) == 0.0
