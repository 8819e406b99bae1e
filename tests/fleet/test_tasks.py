"""The fleet's ticks as the worker runs them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from apps.fleet import assignments
from apps.fleet.models import Assignment, Node, Nonce
from tests.fleet import builders
from workers import fleet


@pytest.mark.django_db(transaction=True)
def test_a_node_whose_row_is_held_is_signed_as_soon_as_it_is_free(world, now):
    """A poll holds one node; the others are signed at once, and the task comes back for it."""
    held, free = (builders.enrol(world, name, now)[0] for name in ("node-1", "node-2"))
    locked, release = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            Node.objects.select_for_update().get(pk=held.pk)
            locked.set()
            release.wait(20)
        connection.close()

    poll = threading.Thread(target=hold)
    poll.start()
    locked.wait(20)
    assert assignments.compile_assignments(now) == assignments.Compiled(signed=1, busy=1, refused=0)
    assert set(Assignment.objects.values_list("node_id", flat=True)) == {free.pk}
    release.set()
    poll.join()
    fleet.compile_assignments()
    assert Assignment.objects.count() == 2


def test_a_worker_without_the_key_leaves_signing_to_one_that_has_it(world, now, settings):
    builders.enrol(world, "node-1", now)
    settings.FARRIER = settings.FARRIER.model_copy(update={"director_key": None})
    fleet.compile_assignments()
    assert not Assignment.objects.exists()


def test_spent_nonces_go(enrolled):
    agent = enrolled("node-1")
    agent.get("/agent/v1/root?after=0")
    Nonce.objects.update(at=datetime.now(UTC) - timedelta(minutes=4))
    fleet.forget_nonces()
    assert not Nonce.objects.exists()
