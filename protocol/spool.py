"""Rows that must outlive a crash: length-delimited protobuf messages in small files; one process writes, another ships.

A file is `<prefix>-<unix_ms>-<pid>-<n>.open` while its writer appends and `.log` once it is complete. Every append is
one `write` without a buffer of our own, so a process that is killed loses nothing it had appended; a reader takes the
complete messages of a file and leaves a torn tail. (A machine that loses power may lose the last seconds: telemetry
isn't worth an fsync a row.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

MAX_MESSAGE_BYTES = 1 << 20
ROTATE_AFTER_S = 1.0
ROTATE_AFTER_BYTES = 256 * 1024

M = TypeVar("M", bound=Message)


class SpoolError(Exception):
    """A spool file holds something that isn't a message; `code` is stable."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def encode_varint(value: int) -> bytes:
    """Protobuf's base-128 varint of a non-negative integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _decode_varint(raw: bytes, at: int) -> tuple[int, int] | None:
    """(value, next position), or None where the bytes end inside the varint."""
    value = shift = 0
    while at < len(raw):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            break
    if at < len(raw):
        raise SpoolError("spool_corrupt", f"a message length at byte {at} is longer than a varint of 32 bits")
    return None


def read_messages(path: Path | str, cls: type[M]) -> Iterator[M]:
    """Every complete message of a spool file, oldest first; a torn tail (the writer was killed) ends the reading.

    Raises SpoolError `spool_corrupt` where the bytes can't be what a SpoolWriter of `cls` wrote.
    """
    raw = Path(path).read_bytes()
    at = 0
    while (head := _decode_varint(raw, at)) is not None:
        size, start = head
        if size > MAX_MESSAGE_BYTES:
            limit = f"at most {MAX_MESSAGE_BYTES} are possible"
            raise SpoolError("spool_corrupt", f"{path}: a message of {size} bytes at byte {at}, {limit}")
        if start + size > len(raw):
            return
        message = cls()
        try:
            message.ParseFromString(raw[start : start + size])
        except DecodeError as error:
            raise SpoolError("spool_corrupt", f"{path}: no {cls.__name__} at byte {at}: {error}") from error
        yield message
        at = start + size


class SpoolWriter:
    """Appends messages to `<directory>/<prefix>-…`. One writer, one thread.

    `append` never raises on a full disk: telemetry must not fail a request. Rows that could not be written are counted
    in `lost` and the file is cut back to its last whole message.
    """

    def __init__(
        self,
        directory: Path | str,
        prefix: str,
        *,
        rotate_after_s: float = ROTATE_AFTER_S,
        rotate_after_bytes: int = ROTATE_AFTER_BYTES,
    ) -> None:
        self.directory = Path(directory)
        self.prefix = prefix
        self.rotate_after_s = rotate_after_s
        self.rotate_after_bytes = rotate_after_bytes
        self.written = 0
        self.lost = 0
        self._fd: int | None = None
        self._path = self.directory
        self._bytes = 0
        self._opened_at = 0.0
        self._files = 0

    def append(self, message: Message) -> bool:
        """Write one message; False if it was lost (no space, directory gone)."""
        raw = message.SerializeToString()
        return self._append(encode_varint(len(raw)) + raw)

    def _append(self, record: bytes, rows: int = 1) -> bool:
        """Write bytes that hold `rows` rows by one system call."""
        try:
            fd = self._fd if self._fd is not None else self._open()
            done = os.write(fd, record)
            if done != len(record):
                os.ftruncate(fd, self._bytes)
                os.lseek(fd, self._bytes, os.SEEK_SET)
                raise OSError(f"{done} of {len(record)} bytes written")
        except OSError:
            self.lost += rows
            return False
        self._bytes += len(record)
        self.written += rows
        self.rotate_if_due()
        return True

    def rotate_if_due(self) -> None:
        """Publish the current file if it is old or large enough.

        Call it from a timer too, so that the last row before a quiet hour is shipped as well.
        """
        if self._fd is None:
            return
        if self._bytes >= self.rotate_after_bytes or time.monotonic() - self._opened_at >= self.rotate_after_s:
            self.close()

    def close(self) -> None:
        """Publish the current file, if there is one. The writer can be used on."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        os.close(fd)
        if self._bytes == 0:
            self._path.unlink(missing_ok=True)
            return
        self._path.rename(self._path.with_suffix(".log"))

    def _open(self) -> int:
        unix_ms = time.time_ns() // 1_000_000
        self._files += 1
        # names sort by time, because the shipper takes them in name order
        self._path = self.directory / f"{self.prefix}-{unix_ms:013d}-{os.getpid()}-{self._files}.open"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._bytes = 0
        self._opened_at = time.monotonic()
        return self._fd


def recover_orphans(directory: Path | str) -> list[Path]:
    """Publish the `.open` files whose writer died: renamed to `.log`, so that their complete rows are shipped too."""
    published = []
    for path in sorted(Path(directory).glob("*-*-*-*.open")):
        try:
            written_s = path.stat().st_mtime
            if _is_writer_alive(int(path.stem.split("-")[-2]), written_s):
                continue
            target = path.with_suffix(".log")
            path.rename(target)
        except FileNotFoundError:
            continue  # its writer has just published it
        published.append(target)
    return published


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third (state) on, None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command name may hold spaces and brackets; the state follows its last ")"
    return stat.rpartition(")")[2].split()


def _is_writer_alive(pid: int, file_time_s: float) -> bool:
    """Whether `pid` runs and is old enough to have made a file last written at `file_time_s` (pids are reused)."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return False
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    started_s = time.time() - uptime_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started_s <= file_time_s + 1.0
