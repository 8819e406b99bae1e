"""Nodes that wait for news, in one event loop: whoever's assignment moved is answered, in one query for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

log = logging.getLogger(__name__)
WAITS_A_NODE = 4  # of one node at a time; the oldest is answered when a fifth comes
REREAD_S = 5.0


class Newest(NamedTuple):
    """A node's stored assignment; (0, None) before its first."""

    sequence: int
    issued: datetime | None


NOTHING = Newest(0, None)
Read = Callable[[Sequence[UUID]], Awaitable[Mapping[UUID, Newest]]]


class Waiting:
    """One request that is held until its node's sequence is above `after`."""

    def __init__(self, node_id: UUID, after: int) -> None:
        self.node_id = node_id
        self.after = after
        self.moved: asyncio.Future[Newest] = asyncio.get_running_loop().create_future()

    def tell(self, newest: Newest) -> None:
        """Answer the request, if it hasn't been answered or given up yet."""
        if not self.moved.done():
            self.moved.set_result(newest)


class Waiters:
    """All waiting requests of this process. `read` returns the stored assignments of the given nodes."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._by_node: dict[UUID, deque[Waiting]] = {}
        self._rung = asyncio.Event()
        self.rings = 0

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._by_node.values())

    def ring(self) -> None:
        """Have every waiting node's assignment read again soon; many rings in a row are one."""
        self.rings += 1
        self._rung.set()

    def add(self, node_id: UUID, after: int, *, seen_rings: int) -> Waiting:
        """Hold a request. `seen_rings` is what `rings` was before its caller read the assignment: later rings count."""
        waiting = Waiting(node_id, after)
        held = self._by_node.setdefault(node_id, deque())
        held.append(waiting)
        if len(held) > WAITS_A_NODE:
            oldest = held.popleft()
            oldest.tell(Newest(oldest.after, None))
        if self.rings != seen_rings:
            self._rung.set()
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """Forget a request that was answered or has gone."""
        held = self._by_node.get(waiting.node_id, deque())
        if waiting in held:
            held.remove(waiting)
        if not held:
            self._by_node.pop(waiting.node_id, None)

    async def refresh(self) -> None:
        """Read all waiting nodes' assignments in one query, and answer the requests that they concern."""
        if not self._by_node:
            return
        newest = await self._read(list(self._by_node))
        for node_id, held in list(self._by_node.items()):
            current = newest.get(node_id, NOTHING)
            for waiting in list(held):
                if current.sequence > waiting.after:
                    waiting.tell(current)

    async def run(self, away: tuple[type[Exception], ...]) -> None:
        """Refresh at every ring and every five seconds, for ever. `away` are the errors of an absent database."""
        while True:
            # when nothing rings read anyway: a notification may have been lost
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rung.wait(), REREAD_S)
            self._rung.clear()
            try:
                await self.refresh()
            except away as gone:
                log.warning("waiting nodes could not be looked up: %s", gone)


class SpentNonces:
    """Nonces seen in the last one to two lifetimes, in memory: enough for reads that change nothing."""

    def __init__(self, life_s: float) -> None:
        self._life_s = life_s
        self._young: set[tuple[UUID, bytes]] = set()
        self._old: set[tuple[UUID, bytes]] = set()
        self._turned_s = 0.0

    def spend(self, node_id: UUID, nonce: bytes, now_s: float) -> bool:
        """Return whether the nonce is fresh, and remember it."""
        if now_s - self._turned_s >= self._life_s:
            self._old = self._young if now_s - self._turned_s < 2 * self._life_s else set()
            self._young, self._turned_s = set(), now_s
        key = (node_id, nonce)
        if key in self._young or key in self._old:
            return False
        self._young.add(key)
        return True
