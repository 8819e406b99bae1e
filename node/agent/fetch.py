"""Fetching an artifact: manifest, then leaves, then chunks, each verified before the next is asked for.

Chunks come from a ChunkSource, are checked one by one on arrival, and are written in any order to a part that a later
try resumes. The finished file appears under its digest by a rename.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Protocol

from aifb import tree
from aifb.errors import AifbError
from aifb.tree import LeafTable
from aifb.trust import Deployment
from node.agent.cache import ArtifactCache
from node.agent.client import ControlPlane
from node.agent.errors import AgentError, Permanent, Temporary
from node.agent.files import sync_folder
from node.agent.trust import TrustStore
from protocol.failpoints import pass_by

log = logging.getLogger(__name__)

CONNECTIONS = 3
RUN_CHUNKS = 8  # consecutive chunks asked for in one request
STALL_S = 30.0
MIN_BYTES_PER_S = 64 << 10
RESERVE_BYTES = 256 << 20  # left free for logs, spool and the database of whoever shares the disk
_OUT_OF_RANGE = frozenset({"http_416", "range_not_satisfiable"})

Chunks = Generator[tuple[int, bytes], None, None]


class ChunkSource(Protocol):
    """Where artifacts come from. What it returns is unverified."""

    def manifest(self, digest: str) -> bytes:
        """The manifest's DSSE envelope."""

    def leaves(self, digest: str) -> bytes:
        """The 128-byte header and the leaf table."""

    def chunks(self, digest: str, table: LeafTable, first: int, count: int) -> Chunks:
        """Yield (index, bytes) of `count` consecutive chunks. Raises AifbError(truncated): the source ends early."""


class HttpRangeSource:
    """Artifacts by HTTP range requests from the control plane.

    A connection that sends less than `min_bytes_per_s` over `stall_s` is given up: a trickle must not hold a rollout.
    """

    def __init__(
        self, control_plane: ControlPlane, *, stall_s: float = STALL_S, min_bytes_per_s: int = MIN_BYTES_PER_S
    ) -> None:
        self._control_plane = control_plane
        self._stall_s = stall_s
        self._min_bytes_per_s = min_bytes_per_s

    def manifest(self, digest: str) -> bytes:
        """See ChunkSource."""
        return self._control_plane.manifest(digest)

    def leaves(self, digest: str) -> bytes:
        """See ChunkSource."""
        return self._control_plane.leaves(digest)

    def chunks(self, digest: str, table: LeafTable, first: int, count: int) -> Chunks:
        """See ChunkSource."""
        start, _ = table.chunk_span(first)
        last_offset, last_length = table.chunk_span(first + count - 1)
        try:
            with self._control_plane.data(digest, start, last_offset + last_length, stall_s=self._stall_s) as stream:
                yield from self._cut(self._hurried(stream), table, first, count)
        except Permanent as refused:
            if refused.code not in _OUT_OF_RANGE:
                raise
            raise AifbError("truncated", f"The source's file ends before chunk {first}: publish it again.") from None
        except Temporary as away:
            if away.code != "timeout":
                raise
            raise Temporary("stalled", f"The source sent nothing for {self._stall_s:g} s; trying again.") from None

    def _hurried(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        began, received = time.monotonic(), 0
        for part in stream:
            received += len(part)
            elapsed = time.monotonic() - began
            if elapsed > self._stall_s:
                if received < self._min_bytes_per_s * elapsed:
                    raise Temporary("stalled", f"The source sent {received} bytes in {elapsed:.0f} s; trying again.")
                began, received = time.monotonic(), 0
            yield part

    @staticmethod
    def _cut(stream: Iterator[bytes], table: LeafTable, first: int, count: int) -> Iterator[tuple[int, bytes]]:
        pending = bytearray()
        for index in range(first, first + count):
            _, length = table.chunk_span(index)
            while len(pending) < length:
                part = next(stream, b"")
                if not part:
                    raise AifbError("truncated", f"The source's file ends inside chunk {index}: publish it again.")
                pending += part
            yield index, bytes(pending[:length])
            del pending[:length]


class Fetcher:
    """Fetches artifacts of accepted assignments into the cache. One thread at a time per artifact."""

    def __init__(
        self,
        cache: ArtifactCache,
        trust: TrustStore,
        source: ChunkSource,
        *,
        connections: int = CONNECTIONS,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._cache = cache
        self._trust = trust
        self._source = source
        self._connections = connections
        self._reserve_bytes = reserve_bytes

    def fetch(self, deployment: Deployment, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Bring a deployment's artifact into the cache, resuming where an earlier try ended.

        Raises AifbError (what was received is refused), Temporary (stalled, unreachable, disk_full, cancelled, …) or
        Permanent (the control plane won't serve it).
        """
        digest = deployment.digest
        self._trust.accept_manifest(self._source.manifest(digest), deployment)
        if digest in self._cache.complete():
            return
        header, leaves = tree.split_table(self._source.leaves(digest))
        table = LeafTable.parse(header, leaves, bytes.fromhex(digest), deployment.length)
        with closing(self._open_part(digest, table)) as part:
            self._fill(part, table, is_cancelled)
            part.publish(header)

    def _open_part(self, digest: str, table: LeafTable) -> _Part:
        part = _Part(self._cache, digest, table)
        missing = sum(table.chunk_span(index)[1] for index in part.missing)
        free = shutil.disk_usage(self._cache.folder).free
        # blocks of the part may be allocated already; then this asks for more than is needed, never for less
        if free < missing + self._reserve_bytes:
            part.close()
            raise Temporary(
                "disk_full",
                f"{self._cache.folder} has {free >> 20} MiB free, the artifact needs {missing >> 20} MiB more and "
                f"{self._reserve_bytes >> 20} MiB stay reserved; free some space.",
            )
        return part

    def _fill(self, part: _Part, table: LeafTable, is_cancelled: Callable[[], bool]) -> None:
        """Rounds over what is missing; a round that brings nothing raises what went wrong in it."""
        with ThreadPoolExecutor(self._connections, thread_name_prefix="fetch") as pool:
            while part.missing:
                before = len(part.missing)
                errors = [
                    error
                    for error in pool.map(lambda run: self._take(run, part, table, is_cancelled), _runs(part.missing))
                    if error is not None
                ]
                if is_cancelled():
                    raise Temporary("cancelled", "The artifact is no longer wanted.")
                if len(part.missing) == before:
                    # a refusal says more than a connection that happened to break as well
                    raise next((error for error in errors if isinstance(error, AifbError)), errors[0])
                for error in errors:
                    log.warning("some chunks of %s are fetched again: %s", part.digest[:12], error)

    def _take(
        self, run: tuple[int, int], part: _Part, table: LeafTable, is_cancelled: Callable[[], bool]
    ) -> AgentError | AifbError | None:
        try:
            with closing(self._source.chunks(part.digest, table, *run)) as chunks:
                for index, chunk in chunks:
                    if is_cancelled():
                        return None
                    table.check(index, chunk)
                    part.write(index, chunk)
                    pass_by("mid_fetch")
        except (AgentError, AifbError) as error:
            return error
        return None


def _runs(missing: Sequence[int]) -> list[tuple[int, int]]:
    """Cut sorted chunk indexes into runs of neighbours: (first, count), at most RUN_CHUNKS each."""
    runs: list[tuple[int, int]] = []
    for index in missing:
        if runs and sum(runs[-1]) == index and runs[-1][1] < RUN_CHUNKS:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


class _Part:
    """A growing artifact and its map. Written by several threads, each chunk by one."""

    def __init__(self, cache: ArtifactCache, digest: str, table: LeafTable) -> None:
        self.digest = digest
        self._cache = cache
        self._table = table
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(cache.part(digest), flags, 0o600)
        self._map_fd = os.open(cache.map(digest), flags, 0o600)
        os.ftruncate(self._fd, table.header.total_bytes)
        os.ftruncate(self._map_fd, table.count)
        self._missing = {index for index in range(table.count) if not self._is_sound(index)}

    @property
    def missing(self) -> list[int]:
        """Indexes of the chunks that are not here yet, ascending."""
        with self._lock:
            return sorted(self._missing)

    def write(self, index: int, chunk: bytes) -> None:
        """Store a verified chunk."""
        offset, _ = self._table.chunk_span(index)
        _write_at(self._fd, chunk, offset)
        _write_at(self._map_fd, b"\x01", index)
        with self._lock:
            self._missing.discard(index)

    def publish(self, header: bytes) -> None:
        """Turn the complete part into the artifact."""
        _write_at(self._fd, header, 0)
        os.fsync(self._fd)
        pass_by("before_rename")
        self._cache.part(self.digest).replace(self._cache.path(self.digest))
        os.fchmod(self._fd, 0o440)  # not before: a part must stay writable for the next try
        sync_folder(self._cache.folder)
        self._cache.map(self.digest).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; what was written stays for the next try."""
        os.close(self._fd)
        os.close(self._map_fd)

    def _is_sound(self, index: int) -> bool:
        """Whether an earlier try wrote this chunk, and it is on the disk whole (after a power cut it may not be)."""
        if os.pread(self._map_fd, 1, index) != b"\x01":
            return False
        offset, length = self._table.chunk_span(index)
        try:
            self._table.check(index, os.pread(self._fd, length, offset))
        except AifbError:
            return False
        return True


def _write_at(fd: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    try:
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done
    except OSError as failed:
        raise Temporary("disk_full", f"The artifact can't be written: {failed.strerror}.") from None
