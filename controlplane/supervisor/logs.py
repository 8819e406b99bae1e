"""Process logs: each child writes its own file, we follow it onto the terminal with a prefix and rotate it by size.

Files instead of pipes, so that a child (or an engine that a node agent left behind) never loses its log, or dies of a
broken pipe, because the supervisor was killed.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import IO

ROTATE_BYTES = 10 * 1024 * 1024
KEEP = 3
READ_BYTES = 256 * 1024
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# Colours and other control characters of the children: ours is the only hand on the terminal.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Terminal:
    """Prefixed, coloured lines; silent for good once the reader of our output has gone away."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.colour = self._stream.isatty() and "NO_COLOR" not in os.environ
        self._width = 10
        self._hues: dict[str, int] = {}
        self._open = True

    def line(self, name: str, text: str) -> None:
        """Print one log line of process `name`."""
        self._width = max(self._width, len(name))
        prefix = f"{name:<{self._width}} │"
        if self.colour:
            hue = self._hues.setdefault(name, COLOURS[len(self._hues) % len(COLOURS)])
            prefix = f"\x1b[{hue}m{prefix}\x1b[0m"
        self.write(f"{prefix} {text}")

    def say(self, text: str) -> None:
        """Print a line of the supervisor's own."""
        self.write(f"\x1b[1m{text}\x1b[0m" if self.colour else text)

    def write(self, text: str) -> None:
        """Print as it is."""
        if not self._open:
            return
        try:
            print(text, file=self._stream, flush=True)
        except (BrokenPipeError, ValueError):
            self._open = False  # `make up | head`: go on without a reader


class LogFile:
    """The log of one process: opened for appending by the child, followed and rotated by us."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o640)
        self._offset = path.stat().st_size
        self._partial = b""

    def open_for_child(self) -> IO[bytes]:
        """A file object whose descriptor the child inherits. O_APPEND lets us cut the file while it is open."""
        return self.path.open("ab")

    def new_lines(self) -> list[str]:
        """Whole lines that were written since the last call."""
        with self.path.open("rb") as log:
            log.seek(self._offset)
            data = log.read(READ_BYTES)
        self._offset += len(data)
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [CONTROL.sub("", line.decode(errors="replace")) for line in whole]

    def tail(self, count: int) -> list[str]:
        """The last lines in the file."""
        with self.path.open("rb") as log:
            log.seek(max(0, self.path.stat().st_size - 16 * 1024))
            text = log.read().decode(errors="replace")
        return [CONTROL.sub("", line) for line in text.splitlines()[-count:]]

    def rotate_if_large(self) -> None:
        """Copy away and cut: the child keeps its descriptor. Lines written between copy and cut are lost."""
        if self._offset < ROTATE_BYTES:
            return
        for number in range(KEEP - 1, 0, -1):
            older = self.path.with_suffix(f".log.{number}")
            if older.exists():
                older.replace(self.path.with_suffix(f".log.{number + 1}"))
        shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
        os.truncate(self.path, 0)
        self._offset = 0
