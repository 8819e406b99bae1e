"""What this host must offer before it serves: checked at every report, as conditions with a reason and a remedy."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path
from typing import Any

from protocol.messages import ConditionReport

MIN_FREE_BYTES = 1 << 30
WANTED_OPEN_FILES = 131_072
ENOUGH_OPEN_FILES = 4_096  # below this a gateway with its connections can't work


def condition(kind: str, is_true: bool | None, reason: str = "", message: str = "") -> ConditionReport:
    """A condition report; None is unknown."""
    status = "unknown" if is_true is None else "true" if is_true else "false"
    return ConditionReport(type=kind, status=status, reason=reason[:63], message=message[:1_000])


def conditions(home: Path) -> list[ConditionReport]:
    """The standing facts of this host, as they are in force now."""
    return [_disk_space(home), _open_files()]


def facts() -> dict[str, Any]:
    """What the node tells of its hardware when it enrols. No GPU is claimed where none was looked for."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": pages * page_bytes,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "device": "cpu",
    }


def raise_open_files() -> None:
    """Lift this process's soft limit to the hard one: children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _disk_space(home: Path) -> ConditionReport:
    free = shutil.disk_usage(home).free
    if free >= MIN_FREE_BYTES:
        return condition("DiskSpace", True, "enough", f"{free >> 20} MiB are free.")
    sentence = f"Only {free >> 20} MiB are free under the agent's home, wanted are {MIN_FREE_BYTES >> 20}; free some."
    return condition("DiskSpace", False, "low", sentence)


def _open_files() -> ConditionReport:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= ENOUGH_OPEN_FILES:
        return condition(
            "OpenFiles", True, "enough", f"Up to {soft} files may be open; {WANTED_OPEN_FILES} are wanted."
        )
    sentence = f"Only {soft} files may be open; run the agent with `ulimit -n {WANTED_OPEN_FILES}`."
    return condition("OpenFiles", False, "low", sentence)
