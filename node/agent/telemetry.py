"""Shipping rows home: spool files become numbered batches, and a batch is on disk before it is sent.

A batch that was made never changes: a resend after a crash is byte for byte the same, and the control plane stores it
once. Rows leave the spool only when the batches that hold them are on disk, so a crash in between makes neither a gap
nor a duplicate. While the control plane is away batches pile up, up to a day and a size; beyond that the oldest are
emptied (their number stays, so that the sequence has no hole) and the lost rows are counted aloud.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.agent.client import ControlPlane
from node.agent.errors import Permanent, Temporary
from node.agent.files import read_json, sync_folder, write_atomically, write_json
from node.agent.hardware.packed import Packed, Samples, is_packed, joined, read_packed, row_count, to_message
from node.agent.home import Home
from protocol.failpoints import pass_by
from protocol.messages import TELEMETRY_MAX_BYTES, TELEMETRY_MAX_ROWS, TELEMETRY_MAX_SAMPLES
from protocol.spool import SpoolError, read_messages, recover_orphans
from protocol.telemetry_pb2 import ComparisonRow, GpuSamples, InferenceRow, TelemetryBatch

log = logging.getLogger(__name__)

MAX_AGE_S = 24 * 3_600.0
MAX_OUTBOX_BYTES = 1 << 30  # a day of eight GPUs at 100 ms takes 0.6 GB
MAX_HOMELESS_BYTES = 64 << 20  # of samples that wait until the node has enrolled
ORPHANS_EVERY_S = 30.0
MAX_FILES_A_ROUND = 500
BATCH_BYTES = TELEMETRY_MAX_BYTES - (64 << 10)  # leaves room for the batch's own fields
ROW_BYTES = 250  # about what a row takes
SAMPLE_BYTES = 80
MAX_PIECES = 10  # packed messages in a batch: each is one of the few fields that it may have beside its rows
_BATCH = re.compile(r"(\d{8})_([0-9a-f-]{36})_(\d{12})\.pb")
_BAD_BATCH = frozenset({400, 413, 422})  # statuses that speak of this one batch, not of the node or the address
Row = InferenceRow | ComparisonRow


@dataclass(frozen=True)
class Boot:
    """One life of the agent: a fresh id for the control plane, a rising number for the order on disk."""

    number: int
    id: str


@dataclass(frozen=True, order=True)
class BatchName:
    """File name of a batch; batches sort by boot, then by sequence."""

    boot_number: int
    boot_id: str
    seq: int

    @classmethod
    def parse(cls, name: str) -> BatchName | None:
        """Read a file name; None for any other file."""
        found = _BATCH.fullmatch(name)
        return cls(int(found[1]), found[2], int(found[3])) if found else None

    def __str__(self) -> str:
        return f"{self.boot_number:08d}_{self.boot_id}_{self.seq:012d}.pb"


class Outbox:
    """Batches on disk, each beside a note of the spool files that went into it."""

    def __init__(self, home: Home, boot: Boot) -> None:
        self._folder = home.outbox
        self._spool = home.spool
        self._boot = boot
        self._next_seq = 1
        self.dropped_rows = 0
        self._recover()

    def pending(self) -> list[BatchName]:
        """Batches that are not acknowledged yet, in the order in which they must be sent."""
        names = (BatchName.parse(entry.name) for entry in self._folder.iterdir())
        return sorted(name for name in names if name is not None)

    def read(self, name: BatchName) -> bytes:
        """A batch as it was made."""
        return (self._folder / str(name)).read_bytes()

    def acknowledge(self, name: BatchName) -> None:
        """Forget a batch that the control plane has stored for good."""
        self._note(name).unlink(missing_ok=True)
        (self._folder / str(name)).unlink(missing_ok=True)

    def add(
        self,
        node: str,
        rows: list[Row],
        sources: list[Path],
        clock_offset_s: float,
        samples: Iterable[Packed] = (),
    ) -> int:
        """Turn all rows of some spool files into batches, then delete the files; returns the number of batches.

        Raises OSError (no space): the files stay, and no batch of theirs does.
        """
        parts = _cut(rows, samples)
        names = [BatchName(self._boot.number, self._boot.id, self._next_seq + number) for number in range(len(parts))]
        note = {"sources": [source.name for source in sources], "parts": len(parts)}
        try:
            for name, part in zip(names, parts, strict=True):
                batch = TelemetryBatch(node=node, boot_id=name.boot_id, seq=name.seq, clock_offset_s=clock_offset_s)
                part.fill(batch)
                write_json(self._note(name), note)
                write_atomically(self._folder / str(name), batch.SerializeToString(deterministic=True))
                pass_by("batch_written")
        except OSError:
            for name in names:
                self.acknowledge(name)
            raise
        self._next_seq += len(parts)
        for source in sources:
            source.unlink(missing_ok=True)
        sync_folder(self._spool)
        return len(parts)

    def empty(self, name: BatchName, why: str) -> None:
        """Give up a batch's rows but keep its place in the sequence."""
        batch = TelemetryBatch.FromString(self.read(name))
        lost = count_rows(batch)
        if not lost:
            return
        self.dropped_rows += lost
        log.error("%d rows of telemetry are lost (batch %d of boot %s): %s", lost, name.seq, name.boot_id, why)
        del batch.inference[:], batch.comparison[:], batch.gpu[:], batch.engine[:]
        write_atomically(self._folder / str(name), batch.SerializeToString(deterministic=True))

    def limit(self, now_s: float, max_bytes: int = MAX_OUTBOX_BYTES) -> None:
        """Empty batches older than a day, and the oldest ones beyond the size limit."""
        total = 0
        for name in reversed(self.pending()):
            stat = (self._folder / str(name)).stat()
            total += stat.st_size
            if total > max_bytes:
                self.empty(name, f"the outbox holds more than {max_bytes >> 20} MiB")
            elif now_s - stat.st_mtime > MAX_AGE_S:
                self.empty(name, "it could not be delivered for a day")

    def _note(self, name: BatchName) -> Path:
        return (self._folder / str(name)).with_suffix(".json")

    def _recover(self) -> None:
        """After a crash: finish deletions that were due, and undo groups of batches that were not all written."""
        groups: dict[tuple[str, ...], list[BatchName]] = {}
        parts: dict[tuple[str, ...], int] = {}
        for name in self.pending():
            note: dict[str, Any] | None = read_json(self._note(name))
            if note is not None:
                key = tuple(note["sources"])
                groups.setdefault(key, []).append(name)
                parts[key] = int(note["parts"])
        for sources, names in groups.items():
            left = [self._spool / source for source in sources if (self._spool / source).exists()]
            if left and len(names) < parts[sources] and len(left) == len(sources):
                # none of them was sent: sending waits until their sources are gone
                for name in names:
                    self.acknowledge(name)
                continue
            for source in left:
                source.unlink(missing_ok=True)
        batches = set(map(str, self.pending()))
        for note_file in self._folder.glob("*.json"):
            if note_file.with_suffix(".pb").name not in batches:
                note_file.unlink(missing_ok=True)


@dataclass
class Part:
    """What goes into one batch."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Packed] = field(default_factory=list)
    size_bytes: int = 0

    def fill(self, batch: TelemetryBatch) -> None:
        """Put its content into a batch."""
        batch.inference.extend(row for row in self.rows if isinstance(row, InferenceRow))
        batch.comparison.extend(row for row in self.rows if isinstance(row, ComparisonRow))
        for message in map(to_message, self.samples):
            if isinstance(message, GpuSamples):
                batch.gpu.append(message)
            else:
                batch.engine.append(message)

    def takes(self, piece: Packed) -> bool:
        """Whether these samples fit in as well."""
        count = sum(map(len, self.samples)) + len(piece)
        has_room = len(self.samples) < MAX_PIECES and count <= TELEMETRY_MAX_SAMPLES
        return has_room and self.size_bytes + piece.byte_size() <= BATCH_BYTES


def _cut(rows: list[Row], samples: Iterable[Packed]) -> list[Part]:
    """Everything in parts of at most TELEMETRY_MAX_ROWS, TELEMETRY_MAX_SAMPLES and BATCH_BYTES."""
    parts: list[Part] = []
    for row in rows:
        row_bytes = row.ByteSize() + 8
        is_full = (
            not parts or len(parts[-1].rows) == TELEMETRY_MAX_ROWS or parts[-1].size_bytes + row_bytes > BATCH_BYTES
        )
        if is_full:
            parts.append(Part())
        parts[-1].rows.append(row)
        parts[-1].size_bytes += row_bytes
    for whole in joined(samples):
        for start in range(0, len(whole), TELEMETRY_MAX_SAMPLES):
            piece = whole.cut(start, start + TELEMETRY_MAX_SAMPLES)
            if not parts or not parts[-1].takes(piece):
                parts.append(Part())
            parts[-1].samples.append(piece)
            parts[-1].size_bytes += piece.byte_size()
    return parts


def count_rows(batch: TelemetryBatch) -> int:
    """How many rows of all kinds a batch holds."""
    samples: list[Samples] = [*batch.gpu, *batch.engine]
    return len(batch.inference) + len(batch.comparison) + sum(map(row_count, samples))


class Shipper:
    """Moves rows from spool to outbox to control plane. Used by one thread."""

    def __init__(
        self, home: Home, outbox: Outbox, control_plane: ControlPlane, *, now: Callable[[], float] = time.time
    ) -> None:
        self._home = home
        self._outbox = outbox
        self._control_plane = control_plane
        self._now = now
        self._orphans_at_s = 0.0
        self.shipped_rows = 0
        self.compute_s = 0.0  # how long this node's engines have computed for the requests collected so far

    @property
    def dropped_rows(self) -> int:
        """Rows given up since the agent started."""
        return self._outbox.dropped_rows

    def has_full_batch(self) -> bool:
        """Whether the spool holds about as many rows, or samples, as a batch may have."""
        sizes = {False: 0, True: 0}
        for path in self._home.spool.glob("*.log"):
            sizes[is_packed(path)] += path.stat().st_size
        return sizes[False] >= TELEMETRY_MAX_ROWS * ROW_BYTES or sizes[True] >= TELEMETRY_MAX_SAMPLES * SAMPLE_BYTES

    def collect(self) -> bool:
        """Make batches of what lies in the spool; True when there may be more."""
        credential = self._control_plane.credential
        if credential is None:
            self._limit_homeless()
            return False
        if time.monotonic() >= self._orphans_at_s:
            recover_orphans(self._home.spool)
            self._orphans_at_s = time.monotonic() + ORPHANS_EVERY_S
        files = sorted(self._home.spool.glob("*.log"), key=_by_time)
        rows: list[Row] = []
        samples: list[Packed] = []
        sources: list[Path] = []
        for path in files[:MAX_FILES_A_ROUND]:
            if is_packed(path):
                samples += self._samples_of(path)
            else:
                rows += self._rows_of(path)
            sources.append(path)
            if len(rows) >= TELEMETRY_MAX_ROWS or sum(map(len, samples)) >= TELEMETRY_MAX_SAMPLES:
                break
        if sources:
            self._outbox.add(credential.node, rows, sources, self._control_plane.clock_offset_s, samples)
            self.compute_s += sum(_compute_s(row) for row in rows)
        return len(sources) < len(files)

    def ship(self) -> int:
        """Send what is pending, in order; returns the rows that were acknowledged.

        Raises Temporary when the control plane is away or a Permanent that concerns more than one batch.
        """
        self._outbox.limit(self._now())
        rows = 0
        for name in self._outbox.pending():
            raw = self._outbox.read(name)
            try:
                ack = self._control_plane.telemetry(raw)
            except Permanent as refused:
                if refused.status not in _BAD_BATCH:
                    raise
                # the next rows must not wait behind a batch that will never be taken
                self._outbox.empty(name, f"the control plane refuses it ({refused.code}): {refused.sentence}")
                ack = self._control_plane.telemetry(self._outbox.read(name))
            pass_by("before_telemetry_ack")
            if str(ack.boot_id) != name.boot_id or ack.seq < name.seq:
                raise Temporary("telemetry_gap", f"Batch {name.seq} was sent, but {ack.seq} is the last one stored.")
            rows += count_rows(TelemetryBatch.FromString(raw))
            self._outbox.acknowledge(name)
        self.shipped_rows += rows
        return rows

    def _rows_of(self, path: Path) -> list[Row]:
        kind: type[InferenceRow] | type[ComparisonRow] = ComparisonRow if path.name.startswith("cmp-") else InferenceRow
        rows: list[Row] = []
        try:
            rows.extend(read_messages(path, kind))
        except SpoolError as bad:
            self._outbox.dropped_rows += 1
            log.error("the rest of a spool file is lost: %s", bad)
        return rows

    def _samples_of(self, path: Path) -> list[Packed]:
        try:
            found = read_packed(path)
        except SpoolError as bad:
            self._outbox.dropped_rows += 1
            log.error("a file of samples is lost: %s", bad)
            return []
        return [found] if found is not None and len(found) else []

    def _limit_homeless(self) -> None:
        """A node that waits to be let in keeps its newest samples only."""
        total = 0
        for path in sorted(filter(is_packed, self._home.spool.glob("*.log")), key=_by_time, reverse=True):
            total += path.stat().st_size
            if total > MAX_HOMELESS_BYTES:
                self._outbox.dropped_rows += sum(map(len, self._samples_of(path)))
                path.unlink()


def _by_time(path: Path) -> str:
    return path.name.partition("-")[2]


def _compute_s(row: Row) -> float:
    """This request's share of the time that its batch was computed."""
    return row.compute_us / max(row.batch_size, 1) / 1e6 if isinstance(row, InferenceRow) else 0.0
