"""What the live process serves: nodes that wait for their next assignment. Hardly any middleware, thousands at once."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import psycopg
from django.db import connection
from django.utils import timezone
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from apps.fleet import signed
from apps.fleet.assignments import CHANNEL
from apps.fleet.waiting import NOTHING, Newest, SpentNonces, Waiters
from apps.lib.errors import DomainError
from protocol.messages import WaitResponse
from protocol.signing import NONCE_LIFE_S

log = logging.getLogger("farrier.live")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

WAIT_S = 25.0
SPREAD_S = 5.0  # waits end up to this much earlier, so that a herd spreads out
RECONNECT_S = 1.0
AWAY = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)

_NODE = """
SELECT n.public_key, n.credential_generation, n.credential_used, n.credential_expires_at, n.phase, a.sequence, a.issued
FROM fleet_node AS n LEFT JOIN fleet_assignment AS a ON a.node_id = n.id
WHERE n.id = %s
"""
_NEWEST = "SELECT node_id, sequence, issued FROM fleet_assignment WHERE node_id = ANY(%s)"


class Live:
    """The ASGI application. Reads only; LISTENs on a connection of its own."""

    def __init__(self) -> None:
        self.waiters = Waiters(self._read_newest)
        self.listening = False
        self._nonces = SpentNonces(NONCE_LIFE_S)
        self._pool: AsyncConnectionPool | None = None
        self._resources = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope (ASGI 3)."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            answer = await self._route(scope, receive)
        except DomainError as refused:
            answer = _problem(refused)
        except AWAY as away:
            log.warning("%s: %s", scope["path"], away)
            answer = _problem(DomainError("database_away", "The database does not answer; try again.", status=503))
        if answer is not None:
            await _send(send, *answer)

    # lifespan

    async def start(self) -> None:
        """Open the pool, start listening and refreshing."""
        self._pool = AsyncConnectionPool(
            conninfo(), min_size=1, max_size=4, timeout=10.0, open=False, kwargs={"autocommit": True}
        )
        await self._pool.open()
        self._resources.push_async_callback(self._pool.close)
        for work in (self._listen(), self.waiters.run(AWAY)):
            task = asyncio.create_task(work)
            self._resources.push_async_callback(_end, task)

    async def stop(self) -> None:
        """Close what `start` opened."""
        await self._resources.aclose()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _listen(self) -> None:
        """Ring at every notification; after a lost connection ring too, for what was missed meanwhile."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(conninfo(), autocommit=True) as listener:
                    await listener.execute(f"LISTEN {CHANNEL}")
                    self.listening = True
                    self.waiters.ring()
                    async for _ in listener.notifies():
                        self.waiters.ring()
            except AWAY as away:
                log.warning("lost the database, trying again: %s", away)
            finally:
                self.listening = False
            await asyncio.sleep(RECONNECT_S)

    # requests

    async def _route(self, scope: Scope, receive: Receive) -> tuple[int, str, bytes] | None:
        path, method = scope["path"], scope["method"]
        if method != "GET":
            raise DomainError("method_not_allowed", f"{path} takes GET, not {method}.", status=405)
        if path == "/livez":
            return 200, "text/plain", b"ok\n"
        if path == "/readyz":
            if not self.listening:
                raise DomainError("not_listening", "The database does not answer; is it running?", status=503)
            return 200, "text/plain", b"ok\n"
        if path == "/agent/v1/wait":
            return await self._wait(scope, receive)
        raise DomainError("not_found", "There is nothing at this address.", status=404)

    async def _wait(self, scope: Scope, receive: Receive) -> tuple[int, str, bytes] | None:
        """Hold the request until the node's sequence is above `after`, or time is up; None: the node hung up.

        Above, not other: a node that is ahead of a restored database must not come back at once, again and again.
        """
        after = _after(scope)
        rings = self.waiters.rings
        node_id, newest = await self._authenticate(scope)
        if newest.sequence <= after:
            waiting = self.waiters.add(node_id, after, seen_rings=rings)
            try:
                moved = await _first(waiting.moved, receive, WAIT_S - random.uniform(0, SPREAD_S))  # noqa: S311
            finally:
                self.waiters.remove(waiting)
            if moved is _GONE:
                return None
            newest = moved if isinstance(moved, Newest) else newest
        body = WaitResponse(sequence=newest.sequence, issued=newest.issued).model_dump_json()
        return 200, "application/json", body.encode()

    async def _authenticate(self, scope: Scope) -> tuple[UUID, Newest]:
        """Return the node that signed the request and its assignment. A wait reads only: its nonce lives in memory."""
        target = scope["raw_path"].decode("ascii") + (f"?{query}" if (query := scope["query_string"].decode()) else "")
        asked = signed.parse("GET", target, b"", _headers(scope))
        now = timezone.now()
        credential, newest = await self._read_node(asked.node_id)
        signed.check(asked, credential, now)
        if not self._nonces.spend(asked.node_id, asked.nonce, now.timestamp()):
            raise signed.NotAuthentic("nonce_replayed", "This very request was made before; sign every request anew.")
        return asked.node_id, newest

    async def _read_node(self, node_id: UUID) -> tuple[signed.Credential | None, Newest]:
        rows = await self._fetch(_NODE, node_id)
        if not rows:
            return None, NOTHING
        key, generation, used, expires, phase, sequence, issued = rows[0]
        return signed.Credential(key, generation, used, expires, phase), Newest(sequence or 0, issued)

    async def _read_newest(self, node_ids: Sequence[UUID]) -> Mapping[UUID, Newest]:
        rows = await self._fetch(_NEWEST, list(node_ids))
        return {node_id: Newest(sequence, issued) for node_id, sequence, issued in rows}

    async def _fetch(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        if self._pool is None:
            raise PoolTimeout("not started")
        async with self._pool.connection() as reader:
            return await (await reader.execute(query.encode(), parameters)).fetchall()


_GONE = object()


async def _first(moved: asyncio.Future[Newest], receive: Receive, timeout_s: float) -> Newest | object | None:
    """Wait for news, for the far side to hang up (_GONE), or for time to be up (None)."""
    hung_up = asyncio.create_task(_hung_up(receive))
    both: set[asyncio.Future[Any]] = {moved, hung_up}
    try:
        await asyncio.wait(both, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if moved.done():
            return moved.result()
        return _GONE if hung_up.done() else None
    finally:
        hung_up.cancel()


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _after(scope: Scope) -> int:
    text = parse_qs(scope["query_string"].decode("latin-1")).get("after", [""])[0]
    if not text.isdecimal() or len(text) > 19:
        raise DomainError("bad_after", "«after» must be the sequence of the newest assignment that the node holds.")
    return int(text)


def _headers(scope: Scope) -> dict[str, str]:
    """The request's own headers, spelled as protocol.signing spells them (ASGI gives them in lower case)."""
    found = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    return {"-".join(part.capitalize() for part in name.split("-")): value for name, value in found}


def _problem(refused: DomainError) -> tuple[int, str, bytes]:
    body = {
        "title": refused.code.replace("_", " "),
        "status": refused.status,
        "detail": refused.sentence,
        "code": refused.code,
        **getattr(refused, "extra", {}),
    }
    return refused.status, "application/problem+json", json.dumps(body).encode()


async def _send(send: Send, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def conninfo() -> str:
    """Django's own database, under a test its test database."""
    wanted = connection.settings_dict
    return make_conninfo(
        dbname=wanted["NAME"],
        user=wanted["USER"],
        password=wanted["PASSWORD"],
        host=wanted["HOST"],
        port=wanted["PORT"] or None,
        keepalives_idle="10",
        keepalives_interval="5",
        keepalives_count="3",
    )
