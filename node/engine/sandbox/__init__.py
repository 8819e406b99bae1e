"""What an engine gives up before it looks at an artifact: paths, programs, processes, connections.

Order: LD_PRELOAD is refused by the fork server, the engine binds its sockets, enters here, and only then maps the
artifact it inherited and starts threads. So even the parsing of an artifact happens inside.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from node.engine.errors import SandboxError
from node.engine.sandbox import landlock, seccomp

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
# torch chooses its kernels by these at the first operator that needs to know
_PROCESSOR_FILE = Path("/proc/cpuinfo")
_PROCESSOR_TREES = (Path("/sys/devices/system/cpu"),)
_SYSTEM_PRELOAD = Path("/etc/ld.so.preload")


@dataclass(frozen=True)
class Sandbox:
    """What holds in this process: Landlock's ABI (0: the kernel has none), and whether the call filter is loaded."""

    landlock: int
    seccomp: bool


NO_SANDBOX = Sandbox(landlock=0, seccomp=False)


def refuse_preloads() -> None:
    """Raise SandboxError `preload_refused` where the dynamic linker was told to load foreign code first."""
    named = [name for name in _PRELOADS if os.environ.get(name)]
    if _SYSTEM_PRELOAD.exists() and _SYSTEM_PRELOAD.read_text().strip():
        named.append(str(_SYSTEM_PRELOAD))
    if named:
        raise SandboxError(
            "preload_refused",
            f"{', '.join(named)} would load foreign code into every engine; start the node agent without it",
        )


def enter(*, write_dirs: Iterable[Path]) -> Sandbox:
    """Give up everything an engine doesn't need; `write_dirs` stay writable (files only, no programs, no links).

    Where the kernel has no Landlock, or the system no libseccomp, the answer says so and the other part still holds.
    Raises SandboxError if a part that is there can't be put in force: an engine that says it is sandboxed must be.
    """
    version = landlock.abi()
    try:
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        # neither a debugger of the same user nor a core file gets at the weights
        _prctl(_PR_SET_DUMPABLE, 0)
        if version:
            rules = landlock.trees([*code_trees(), *_PROCESSOR_TREES], landlock.READ_TREE)
            rules |= landlock.trees(write_dirs, landlock.WRITE_TREE)
            rules[_PROCESSOR_FILE] = landlock.READ_FILE
            landlock.restrict(rules, abi_version=version)
        if seccomp.is_available():
            seccomp.restrict()
    except OSError as error:
        raise SandboxError("sandbox_failed", f"the engine's sandbox could not be entered: {error}") from error
    return Sandbox(landlock=version, seccomp=seccomp.is_available())


def code_trees() -> list[Path]:
    """Directories that stay readable: the interpreter's and our own code, for modules that are imported late.

    They hold no secrets. The project's root is not among them: the node's state may lie beneath it.
    """
    paths = sysconfig.get_paths()
    trees = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    packages = [sys.modules[name] for name in ("node", "aifb", "protocol") if name in sys.modules]
    trees += [Path(entry) for package in packages for entry in package.__path__]
    return sorted({tree.resolve() for tree in trees})


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
