"""Sends artifact files: whole, or one byte range, by sendfile where the server can."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.conf import settings
from django.http import FileResponse, HttpResponseBase

from apps.lib.errors import DomainError, NotFound

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def artifact_path(digest: str) -> Path:
    """Where the artifact of a digest lies: `artifacts/sha3/<aa>/<digest>.aifb` under FARRIER_HOME."""
    home: Path = settings.FARRIER.home
    return home / "artifacts" / "sha3" / digest[:2] / f"{digest}.aifb"


class RangeNotSatisfiable(DomainError):
    """The range lies outside the file, or is none that we serve; `total_bytes` tells the file's length."""

    status = 416

    def __init__(self, header: str, total_bytes: int) -> None:
        sentence = f"«{header}» is no single range within the file's {total_bytes} bytes."
        super().__init__("range_not_satisfiable", sentence)
        self.headers = {"Content-Range": f"bytes */{total_bytes}"}


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def parse_range(header: str, total_bytes: int) -> Span:
    """Read a Range header of one range (RFC 9110 §14); an end beyond the file is the file's end.

    Raises RangeNotSatisfiable, also for several ranges: nodes never ask for them.
    """
    match = _RANGE.fullmatch(header.strip())
    first, last = match.groups() if match else ("", "")
    if first:
        span = Span(int(first), min(int(last) + 1 if last else total_bytes, total_bytes))
    elif last:
        span = Span(max(total_bytes - int(last), 0), total_bytes)
    else:
        raise RangeNotSatisfiable(header, total_bytes)
    if span.length <= 0:
        raise RangeNotSatisfiable(header, total_bytes)
    return span


class _SpanFile(io.RawIOBase):
    """An open file that ends where its span does. Servers with sendfile take its descriptor: it stands at the start."""

    def __init__(self, file: IO[bytes], length: int) -> None:
        self._file = file
        self._left = length

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move within the whole file, as socket.sendfile does with the descriptor's file when it is done."""
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


class SpanResponse(FileResponse):
    """A FileResponse that trusts the Content-Length given to it, for a file that is sent in part."""

    block_size = 1 << 18

    def set_headers(self, filelike: object) -> None:
        """Do nothing: the base class would measure the whole file."""


def serve(path: Path, range_header: str) -> HttpResponseBase:
    """Return the file's answer: 200 without a Range header, 206 with one.

    Raises NotFound(artifact_missing) when the store has no such file, RangeNotSatisfiable.
    """
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise NotFound(
            "artifact_missing", f"The artifact store lacks {path.name[:16]}…; restore it from a backup."
        ) from None
    try:
        total_bytes = file.seek(0, io.SEEK_END)
        span = parse_range(range_header, total_bytes) if range_header else Span(0, total_bytes)
        file.seek(span.start)
    except BaseException:
        file.close()
        raise
    response = SpanResponse(
        _SpanFile(file, span.length), status=206 if range_header else 200, content_type="application/octet-stream"
    )
    response["Content-Length"] = str(span.length)
    response["Accept-Ranges"] = "bytes"
    if range_header:
        response["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{total_bytes}"
    return response
