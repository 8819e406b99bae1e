"""Named places where a test may stop a process dead.

`FARRIER_FAILPOINTS=name,name:3` makes the process kill itself with SIGKILL when it passes `name` (or passes it for the
third time). `FARRIER_FAILPOINTS=/a/folder` arms whole systems while they run: the first process that passes `name`
while the folder holds a file of that name takes the file (it leaves `name.died-<pid>`) and dies; whoever is started in
its place finds nothing armed. Only tests set either; in production the variable is absent and `pass_by` costs two
look-ups.
"""

from __future__ import annotations

import os
import signal


def _parse(spec: str) -> dict[str, int]:
    armed: dict[str, int] = {}
    for part in filter(None, spec.split(",")):
        name, _, count = part.partition(":")
        armed[name.strip()] = int(count or "1")
    return armed


_spec = os.environ.get("FARRIER_FAILPOINTS", "")
_folder = _spec if os.path.isabs(_spec) else None
_armed = {} if _folder else _parse(_spec)


def pass_by(name: str) -> None:
    """Die here if a test has armed this failpoint; else do nothing."""
    if _folder is not None:
        if _take(_folder, name):
            os.kill(os.getpid(), signal.SIGKILL)
        return
    left = _armed.get(name)
    if left is None:
        return
    if left > 1:
        _armed[name] = left - 1
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _take(folder: str, name: str) -> bool:
    """Whether this very process got the file; a rename has one winner."""
    path = os.path.join(folder, name)
    try:
        os.rename(path, f"{path}.died-{os.getpid()}")
    except FileNotFoundError:
        return False
    return True
