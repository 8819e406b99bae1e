"""Samples on disk: rows of one fixed size behind a head that says what they are, one system call a round.

They travel as columns, which the control plane copies into its store without looking at a row: here too no row becomes
an object that it needn't be. A file is `FPS1`, the head's length (u32), the head as JSON
(kind, keys, columns, simulated), then rows: time_unix_us (i64), key (u8: a position in `keys`), one f32 a column, all
little-endian without padding. It lives in the spool beside the files of messages and is named and rotated like them; a
torn tail (the writer was killed) is a part of a row and is left.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.metrics import ENGINE, GPU, Metric
from protocol.spool import SpoolError, SpoolWriter
from protocol.telemetry_pb2 import Column, EngineSamples, GpuSamples

MAGIC = b"FPS1"
MAX_HEAD_BYTES = 64 << 10
MAX_KEYS = 64
ROTATE_AFTER_S = 30.0  # the shipper asks for the file long before
GPU_PREFIX, ENGINE_PREFIX = "gpu", "eng"
_COLUMNS: dict[str, tuple[Metric, ...]] = {GPU_PREFIX: GPU, ENGINE_PREFIX: ENGINE}
_LENGTH = struct.Struct("<I")
Samples = GpuSamples | EngineSamples


@dataclass(frozen=True)
class Packed:
    """Rows of one kind about the same things: `rows` is a structured array (time_unix_us, key, one a column)."""

    kind: str
    keys: tuple[str, ...]
    simulated: bool
    rows: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, start: int, end: int) -> Packed:
        """Some of its rows."""
        return Packed(self.kind, self.keys, self.simulated, self.rows[start:end])

    def byte_size(self) -> int:
        """About what the message takes."""
        return int(self.rows.nbytes) + sum(len(key) + 4 for key in self.keys) + 40 * len(self.rows.dtype.names or ())


class PackedWriter(SpoolWriter):
    """Appends rows to `<directory>/<kind>-…`. One thread writes; any may `publish`."""

    def __init__(self, directory: Path, kind: str, *, simulated: bool = False) -> None:
        super().__init__(directory, kind, rotate_after_s=ROTATE_AFTER_S)
        self._simulated = simulated
        self._keys: tuple[str, ...] = ()
        self._guard = threading.Lock()
        self._row = struct.Struct(f"<qB{len(_COLUMNS[kind])}f")

    def append_rows(self, keys: Sequence[str], rows: Sequence[tuple[float, ...]]) -> bool:
        """Write rows of (time_unix_us, position in `keys`, value, …); False if they were lost."""
        if not rows:
            return True
        with self._guard:
            if tuple(keys) != self._keys:
                self.close()
                self._keys = tuple(keys)
            raw = b"".join(self._row.pack(*row) for row in rows)
            has_head = self._fd is not None and self._bytes > 0
            head = b"" if has_head else self._head()
            return self._append(head + raw, len(rows))

    def publish(self) -> None:
        """Let the shipper have what was written so far."""
        with self._guard:
            self.close()

    def _head(self) -> bytes:
        columns = [metric.name for metric in _COLUMNS[self.prefix]]
        head = {"kind": self.prefix, "keys": self._keys, "simulated": self._simulated, "columns": columns}
        text = json.dumps(head).encode()
        return MAGIC + _LENGTH.pack(len(text)) + text


def is_packed(path: Path) -> bool:
    """Whether a spool file holds packed samples, by its name."""
    return path.name.partition("-")[0] in _COLUMNS


def read_packed(path: Path) -> Packed | None:
    """The whole rows of a file; None where its writer was killed inside the head.

    Raises SpoolError `spool_corrupt` for what a PackedWriter can't have written.
    """
    raw = path.read_bytes()
    start = len(MAGIC) + _LENGTH.size
    if len(raw) < start:
        return None
    (length,) = _LENGTH.unpack_from(raw, len(MAGIC))
    if raw[: len(MAGIC)] != MAGIC or length > MAX_HEAD_BYTES:
        raise SpoolError("spool_corrupt", f"{path} doesn't begin like a file of samples")
    if len(raw) < start + length:
        return None
    try:
        head: dict[str, Any] = json.loads(raw[start : start + length])
        kind, keys, columns = str(head["kind"]), tuple(map(str, head["keys"])), list(map(str, head["columns"]))
        dtype = np.dtype([("time_unix_us", "<i8"), ("key", "u1"), *((name, "<f4") for name in columns)])
        is_simulated = bool(head["simulated"])
    except (ValueError, KeyError, TypeError) as bad:
        raise SpoolError("spool_corrupt", f"{path}: its head is malformed: {bad}") from bad
    if kind not in _COLUMNS or len(keys) > MAX_KEYS:
        raise SpoolError("spool_corrupt", f"{path}: samples of «{kind[:20]}» about {len(keys)} things")
    whole = (len(raw) - start - length) // dtype.itemsize
    return Packed(kind, keys, is_simulated, np.frombuffer(raw, dtype, whole, start + length))


def joined(parts: Iterable[Packed]) -> list[Packed]:
    """The same rows in as few pieces as possible: what is alike is put together, in its order."""
    alike: dict[tuple[object, ...], list[Packed]] = {}
    for part in parts:
        alike.setdefault((part.kind, part.keys, part.simulated, part.rows.dtype), []).append(part)
    return [
        Packed(first.kind, first.keys, first.simulated, np.concatenate([part.rows for part in group]))
        for group in alike.values()
        for first in group[:1]
    ]


def to_message(part: Packed) -> Samples:
    """The rows as they travel: a column after the other."""
    columns = [
        Column(name=name, values=np.ascontiguousarray(part.rows[name]).tobytes())
        for name in part.rows.dtype.names or ()
        if name not in ("time_unix_us", "key")
    ]
    times = np.ascontiguousarray(part.rows["time_unix_us"]).tobytes()
    keys = np.ascontiguousarray(part.rows["key"]).tobytes()
    if part.kind == ENGINE_PREFIX:
        return EngineSamples(deployments=part.keys, time_unix_us=times, deployment=keys, columns=columns)
    return GpuSamples(gpus=part.keys, simulated=part.simulated, time_unix_us=times, gpu=keys, columns=columns)


def row_count(samples: Samples) -> int:
    """How many rows a message holds."""
    return len(samples.time_unix_us) // 8
