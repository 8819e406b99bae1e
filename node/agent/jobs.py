"""The slow work of the loop, in threads of its own: fetching artifacts, verifying and starting engines."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from aifb.errors import AifbError
from aifb.trust import Deployment
from node.agent.attempts import Attempts
from node.agent.board import Board
from node.agent.cache import ArtifactCache
from node.agent.errors import AgentError, Permanent, Temporary
from node.agent.fetch import Fetcher
from node.agent.planner import Key, key_of
from node.agent.slots import Slots
from node.agent.trust import TrustStore

log = logging.getLogger(__name__)


class Jobs:
    """At most one fetch and one start at a time; what they do is seen in the next snapshot, `done` wakes the loop."""

    def __init__(
        self,
        fetcher: Fetcher,
        cache: ArtifactCache,
        trust: TrustStore,
        slots: Slots,
        board: Board,
        *,
        done: Callable[[], None],
        utc: Callable[[], datetime],
    ) -> None:
        self._fetcher = fetcher
        self._cache = cache
        self._trust = trust
        self._slots = slots
        self._board = board
        self._done = done
        self._utc = utc
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Event] = {}
        self._starting: set[Key] = set()
        self._pools = [ThreadPoolExecutor(1, thread_name_prefix=name) for name in ("fetch-job", "start-job")]
        self.fetches = Attempts(1.0, 60.0)
        self.starts = Attempts(1.0, 60.0, is_first_immediate=True)
        self.no_start_before_s = 0.0

    def fetching(self) -> frozenset[str]:
        """Digests that are being fetched."""
        with self._lock:
            return frozenset(self._fetching)

    def starting(self) -> frozenset[Key]:
        """Engines whose artifact is being verified and handed over."""
        with self._lock:
            return frozenset(self._starting)

    def fetch(self, deployment: Deployment) -> None:
        """Begin to fetch, unless it is being fetched already."""
        with self._lock:
            if deployment.digest in self._fetching:
                return
            cancelled = self._fetching[deployment.digest] = threading.Event()
        self._pools[0].submit(self._fetch, deployment, cancelled)

    def cancel_fetch(self, digest: str) -> None:
        """Stop a fetch soon; what has arrived stays until it is evicted."""
        with self._lock:
            if digest in self._fetching:
                self._fetching[digest].set()

    def start(self, deployment: Deployment) -> None:
        """Begin to verify and start, unless that is under way."""
        with self._lock:
            if key_of(deployment) in self._starting:
                return
            self._starting.add(key_of(deployment))
        self._pools[1].submit(self._start, deployment)

    def close(self) -> None:
        """Cancel fetches and begin nothing any more; what is going on is not waited for."""
        with self._lock:
            for cancelled in self._fetching.values():
                cancelled.set()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, deployment: Deployment, cancelled: threading.Event) -> None:
        key = key_of(deployment)
        try:
            self._fetcher.fetch(deployment, cancelled.is_set)
            self.fetches.forgive(key)
            log.info("%s %d is fetched and verified", deployment.model, deployment.version)
        except AifbError as refused:
            self._refuse(deployment, refused)
            self.fetches.note(key, refused.code, refused.sentence, time.monotonic())
        except AgentError as failed:
            if not cancelled.is_set():
                log.warning("%s %d is not fetched yet: %s", deployment.model, deployment.version, failed)
                is_refusal = isinstance(failed, Permanent)
                self.fetches.note(key, failed.code, failed.sentence, time.monotonic(), is_refusal=is_refusal)
        except Exception as bug:
            log.exception("fetching %s %d failed", deployment.model, deployment.version)
            self.fetches.note(key, "agent_failed", f"The agent failed while it fetched: {bug!r}.", time.monotonic())
        finally:
            with self._lock:
                del self._fetching[deployment.digest]
            self._done()

    def _start(self, deployment: Deployment) -> None:
        key = key_of(deployment)
        try:
            self._verify_and_spawn(deployment)
        except AifbError as refused:
            self._refuse(deployment, refused)
            self.starts.note(key, refused.code, refused.sentence, time.monotonic())
        except Temporary as away:
            log.warning("%s %d is not started yet: %s", deployment.model, deployment.version, away)
            self.no_start_before_s = time.monotonic() + 1.0
        except AgentError as failed:
            log.error("%s %d can't be started: %s", deployment.model, deployment.version, failed)
            self.starts.note(key, failed.code, failed.sentence, time.monotonic())
        except Exception as bug:
            log.exception("starting %s %d failed", deployment.model, deployment.version)
            self.starts.note(key, "agent_failed", f"The agent failed while it started it: {bug!r}.", time.monotonic())
        finally:
            with self._lock:
                self._starting.discard(key)
            self._done()

    def _verify_and_spawn(self, deployment: Deployment) -> None:
        """Open, verify what was opened, and hand over that very descriptor."""
        manifest = self._trust.manifest(deployment)
        if manifest is None:
            raise Temporary("no_manifest", "The artifact's manifest is not here yet.")
        try:
            fd = self._cache.open_verified(deployment.digest)
        except FileNotFoundError:
            raise Temporary("not_cached", "The artifact is not here yet.") from None
        try:
            self._slots.spawn(deployment, manifest.lineage, fd, time.monotonic())
        finally:
            os.close(fd)

    def _refuse(self, deployment: Deployment, refused: AifbError) -> None:
        self._board.refuse(refused.code, refused.sentence, at=self._utc(), digest=deployment.digest)
