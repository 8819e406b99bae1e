"""Two batches of a new day at once: both find a place, whoever makes it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from apps.observability import store

ENSURE = "SELECT observability_ensure_day('gpu_sample', %s)"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'"


@pytest.fixture
def connect() -> Any:
    """Open connections of one's own to the test database."""
    parameters = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    return lambda: psycopg.connect(**{name: parameters[name] for name in names if parameters.get(name)})


@pytest.mark.django_db(transaction=True)
def test_a_day_is_made_once_by_two_at_once(connect: Any) -> None:
    if store.is_timescale():
        pytest.skip("TimescaleDB makes its own chunks")
    day = (datetime.now(UTC) + timedelta(days=6)).date()
    raised: list[BaseException] = []
    with connect() as first, connect() as second, connect() as observer:
        observer.autocommit = True
        first.execute(ENSURE, [day])

        def wait_for_first() -> None:
            try:
                second.execute(ENSURE, [day])
                second.commit()
            except psycopg.Error as error:
                raised.append(error)

        waiting = threading.Thread(target=wait_for_first)
        waiting.start()
        pid = second.info.backend_pid
        while waiting.is_alive() and observer.execute(WAITS, [pid]).fetchone() == (0,):
            waiting.join(0.01)
        first.commit()
        waiting.join()
        try:
            assert raised == []
        finally:
            observer.execute(f"DROP TABLE gpu_sample_p{day:%Y%m%d}")
