"""Waiting for news: the live process as nodes see it, over real sockets and a real NOTIFY."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
import uvicorn

from apps.fleet import assignments
from apps.fleet.models import Node
from apps.fleet.waiting import NOTHING, Newest, SpentNonces, Waiters
from controlplane.live import Live, conninfo

pytestmark = pytest.mark.django_db(transaction=True)


class Server(uvicorn.Server):
    """uvicorn in a thread of this test."""

    def install_signal_handlers(self) -> None:
        """Leave signals to pytest."""


@pytest.fixture
def live() -> Iterator[tuple[Live, str]]:
    """The live application and the address where it listens."""
    app = Live()
    server = Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started and app.listening)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield app, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def until(true: Any, seconds: float = 20.0) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def ask(agent: Any, address: str, after: int, **bent: Any) -> httpx2.Response:
    target = f"/agent/v1/wait?after={after}"
    return httpx2.get(address + target, headers=agent.headers("GET", target, b"", **bent), timeout=30)


@pytest.fixture
def agent(enrolled: Any) -> Any:
    return enrolled("node-1")


def test_news_that_are_there_come_at_once(live, agent):
    now = datetime.now(UTC)
    assignments.compile_assignments(now)
    answer = ask(agent, live[1], 0)
    assert answer.status_code == 200
    assert answer.json()["sequence"] == 1
    assert datetime.fromisoformat(answer.json()["issued"]) == now


def test_a_compiled_assignment_wakes_its_node_and_no_other(live, agent, enrolled):
    app, address = live
    assignments.compile_assignments(datetime.now(UTC))
    other = enrolled("node-2")
    answers: dict[str, httpx2.Response] = {}

    def hold(name: str, who: Any, after: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: ask(who, address, after)}))
        thread.start()
        return thread

    threads = [hold("same", agent, 1), hold("news", other, 0)]
    until(lambda: len(app.waiters) == 2)
    assignments.compile_assignments(datetime.now(UTC))
    threads[1].join()
    assert answers["news"].json()["sequence"] == 1
    assert len(app.waiters) == 1
    Node.objects.filter(name="node-1").update(observed_epoch=1, observed_sequence=7)
    assignments.compile_assignments(datetime.now(UTC))
    threads[0].join()
    assert answers["same"].json()["sequence"] == 8


def test_a_lost_connection_is_made_again_and_nothing_is_missed(live, agent, settings):
    app, address = live
    answers: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: answers.append(ask(agent, address, 0)))
    thread.start()
    until(lambda: len(app.waiters) == 1)
    with psycopg.connect(conninfo(), autocommit=True) as surgeon:
        surgeon.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
    assignments.compile_assignments(datetime.now(UTC))
    thread.join()
    assert answers[0].json()["sequence"] == 1
    until(lambda: app.listening)


def test_a_node_that_hangs_up_is_forgotten(live, agent):
    app, address = live
    target = "/agent/v1/wait?after=0"
    with contextlib.suppress(httpx2.ReadTimeout):
        httpx2.get(address + target, headers=agent.headers("GET", target, b""), timeout=0.5)
    until(lambda: len(app.waiters) == 0)


@pytest.mark.parametrize(
    ("bent", "status", "expected"),
    [
        ({"protocol": 0}, 426, "protocol_too_old"),
        ({"generation": 3}, 403, "generation_stale"),
        ({"time": "1.0"}, 401, "clock_skew"),
        ({"node": str(uuid4())}, 401, "unknown_node"),
    ],
)
def test_strangers_and_stale_ones_are_refused_as_by_the_web(live, agent, bent, status, expected):
    answer = ask(agent, live[1], 0, **bent)
    assert (answer.status_code, answer.json()["code"]) == (status, expected)


def test_refusals(live, agent):
    _, address = live
    nonce = "cd" * 16
    assignments.compile_assignments(datetime.now(UTC))
    assert ask(agent, address, 0, nonce=nonce).status_code == 200
    assert ask(agent, address, 0, nonce=nonce).json()["code"] == "nonce_replayed"
    assert httpx2.get(f"{address}/agent/v1/wait?after=0").json()["code"] == "bad_signature_headers"
    assert httpx2.get(f"{address}/agent/v1/wait?after=x").json()["code"] == "bad_after"
    assert httpx2.post(f"{address}/agent/v1/wait").status_code == 405
    assert httpx2.get(f"{address}/else").status_code == 404
    assert httpx2.get(f"{address}/livez").text == "ok\n"
    assert httpx2.get(f"{address}/readyz").text == "ok\n"


def test_three_thousand_waiters_are_answered_by_one_query(db):
    """In one event loop: a ring reads once for all, and each gets its own news."""
    reads: list[int] = []
    nodes = [uuid4() for _ in range(3_000)]

    async def read(ids):
        reads.append(len(ids))
        return {node: Newest(2, None) for node in ids if node != nodes[0]}

    async def scenario():
        waiters = Waiters(read)
        held = [waiters.add(node, 1, seen_rings=waiters.rings) for node in nodes]
        running = asyncio.create_task(waiters.run(()))
        waiters.ring()
        waiters.ring()
        answers = await asyncio.gather(*(waiting.moved for waiting in held[1:]))
        assert {answer.sequence for answer in answers} == {2}
        assert not held[0].moved.done()
        for waiting in held:
            waiters.remove(waiting)
        assert len(waiters) == 0
        running.cancel()

    asyncio.run(scenario())
    assert reads == [3_000]


def test_a_ring_between_reading_and_waiting_is_not_lost():
    async def read(ids):
        return {node: Newest(1, None) for node in ids}

    async def scenario():
        waiters = Waiters(read)
        running = asyncio.create_task(waiters.run(()))
        seen = waiters.rings
        waiters.ring()
        await asyncio.sleep(0)  # the ring is served while nobody waits
        waiting = waiters.add(uuid4(), 0, seen_rings=seen)
        assert (await asyncio.wait_for(waiting.moved, 2)).sequence == 1
        running.cancel()

    asyncio.run(scenario())


def test_one_node_holds_few_requests():
    async def scenario():
        waiters = Waiters(lambda ids: asyncio.sleep(0, {}))
        node = uuid4()
        held = [waiters.add(node, 5, seen_rings=0) for _ in range(6)]
        assert [waiting.moved.done() for waiting in held] == [True, True, False, False, False, False]
        assert held[0].moved.result() == (5, None)
        assert len(waiters) == 4

    asyncio.run(scenario())


def test_nonces_are_spent_once_and_forgotten_late():
    spent, node = SpentNonces(180.0), uuid4()
    assert spent.spend(node, b"n", 1_000.0)
    assert not spent.spend(node, b"n", 1_179.0)
    assert not spent.spend(node, b"n", 1_181.0)
    assert spent.spend(uuid4(), b"n", 1_181.0)
    assert spent.spend(node, b"n", 2_000.0)
    assert NOTHING == (0, None)
