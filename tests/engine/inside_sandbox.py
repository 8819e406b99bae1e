"""A program that enters the engine's sandbox, tries what must fail and what must work, and prints how it went."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.engine.sandbox import enter


def _thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def _passwd_in_thread() -> None:
    """Rules bind threads that were started later, too."""
    caught: list[OSError] = []

    def read() -> None:
        try:
            Path("/etc/passwd").read_bytes()
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    for error in caught:
        raise error


def _make_executable_memory() -> None:
    """A convolution: oneDNN generates its kernel at run time."""
    torch.set_num_threads(2)
    torch.nn.Conv2d(3, 16, 3)(torch.randn(8, 3, 64, 64))


def _late_import() -> None:
    import colorsys  # noqa: F401 - a module of the standard library that nobody has imported yet


def _connect(client: socket.socket, path: Path) -> None:
    client.connect(str(path))


def _rename(folder: Path) -> None:
    (folder / "a.open").write_text("row")
    (folder / "a.open").rename(folder / "a.log")
    (folder / "a.log").unlink()


def main() -> None:
    spool, other, listening = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    before = socket.socket(socket.AF_UNIX)
    artifact = other / "artifact"
    inherited = os.open(artifact, os.O_RDONLY)
    sandbox = enter(write_dirs=[spool])
    attempts: dict[str, Callable[[], Any]] = {
        "read /etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
        "read /etc/passwd by ..": lambda: Path(f"{spool}{'/..' * 20}/etc/passwd").read_bytes(),
        "read /etc/passwd in a thread": _passwd_in_thread,
        "list /": lambda: os.listdir("/"),
        "read the artifact by its path": artifact.read_bytes,
        "write elsewhere": lambda: (other / "new").write_text("x"),
        "write to our code": lambda: os.open(__file__, os.O_WRONLY | os.O_APPEND),
        "make a folder in the spool": (spool / "sub").mkdir,
        "link out of the spool": lambda: os.symlink("/etc/passwd", spool / "link"),
        "hard link into the spool": lambda: os.link(artifact, spool / "copy"),
        "make a device": lambda: os.mknod(spool / "device", 0o600 | 0o020000, os.makedev(1, 3)),
        "make a socket": lambda: socket.socket(socket.AF_UNIX),
        "make an internet socket": lambda: socket.socket(socket.AF_INET),
        "connect an old socket": lambda: _connect(before, listening),
        "bind an old socket": lambda: before.bind(str(spool / "s")),
        "exec": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "start a program": lambda: subprocess.run(["/bin/true"]),
        "fork": os.fork,
        "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "signal the parent": lambda: os.kill(os.getppid(), 0),
        "trace the parent": lambda: (Path("/proc") / str(os.getppid()) / "mem").open("rb"),
        "change the root": lambda: os.chroot("/"),
        "read inherited": lambda: os.read(inherited, 4),
        "write to the spool": lambda: _rename(spool),
        "start a thread": _thread,
        "run an event loop": lambda: asyncio.run(asyncio.sleep(0)),
        "compute": _make_executable_memory,
        "signal itself": lambda: os.kill(os.getpid(), 0),
        "import late": _late_import,
    }
    outcomes: dict[str, str] = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError as error:
            outcomes[name] = type(error).__name__
        else:
            outcomes[name] = "done"
    status = Path("/proc/self/status")
    try:
        status.read_text()
        outcomes["read /proc"] = "done"
    except OSError as error:
        outcomes["read /proc"] = type(error).__name__
    sys.stdout.write(json.dumps({"landlock": sandbox.landlock, "seccomp": sandbox.seccomp, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
