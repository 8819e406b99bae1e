"""`make down`, `make status`, `make reset`: what another terminal can do to a running supervisor."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.supervisor import procfs
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.launch import end_leftovers, run_quietly
from controlplane.supervisor.layout import MARKER, Layout
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.postgres import cluster_folder
from controlplane.supervisor.processes import agent_shutdown, agent_status
from controlplane.supervisor.statefile import Lock, StateFile

STOP_PATIENCE_S = 180.0
NODE_PATIENCE_S = 20.0


def down(layout: Layout, terminal: Terminal) -> None:
    """Stop a running supervisor and wait for it; then end engines that a killed one left behind."""
    holder = Lock(layout.lock).holder()
    if holder is not None:
        _stop_supervisor(layout, holder, terminal)
        return
    state_file = StateFile(layout.states)
    end_leftovers(state_file, terminal)
    shut_down_nodes(layout, terminal)
    terminal.say("Farrier is not running.")


def _stop_supervisor(layout: Layout, holder: procfs.ProcessId, terminal: Terminal) -> None:
    terminal.say(f"Stopping Farrier (process {holder.pid}).")
    os.kill(holder.pid, signal.SIGTERM)
    begun = time.monotonic()
    before: set[str] = set()
    while procfs.is_alive(holder):
        waited_s = time.monotonic() - begun
        if waited_s > STOP_PATIENCE_S:
            raise SupervisorError(
                "stop_timeout",
                f"Process {holder.pid} is still stopping after {waited_s:.0f} s: see {layout.logs}; "
                f"`kill -9 {holder.pid}` ends it and all it started.",
            )
        running = {
            row.name for row in StateFile(layout.states).read() if row.state not in ("stopped", "done", "failed")
        }
        for name in sorted(before - running):
            terminal.say(f"  ■ {name}")
        before = running
        time.sleep(0.1)
    terminal.say(f"Stopped in {time.monotonic() - begun:.1f} s. The data is kept: `make up` goes on from here.")


def shut_down_nodes(layout: Layout, terminal: Terminal) -> None:
    """End engines, gateways and comparators of every node home. They outlive their agents by design."""
    for home in layout.node_homes():
        environment = {**os.environ, "FARRIER_HOME": str(layout.home)}
        if (problem := run_quietly(agent_shutdown(home), layout.root, environment)) is not None:
            terminal.say(f"  ✘ {home.name}: its shutdown said: {problem}")


@dataclass(frozen=True)
class StatusRow:
    """A line of `make status`."""

    name: str
    state: str
    pid: str
    uptime: str
    memory: procfs.Memory | None
    restarts: int
    note: str


def status_rows(layout: Layout) -> list[StatusRow]:
    """State, age and memory (PSS) of every process, of the nodes' engines too; empty when nothing runs."""
    if Lock(layout.lock).holder() is None:
        return []
    tree = procfs.children_of_all()
    rows = []
    for row in StateFile(layout.states).read():
        alive = row.identity if row.identity is not None and procfs.is_alive(row.identity) else None
        state = row.state if alive or not row.pid else "gone"
        # An agent's engines have rows of their own, whoever their parent is by now.
        pids = procfs.descendants(alive.pid, tree) if alive and row.owns_session else [alive.pid] if alive else []
        rows.append(_row(row.name, state, alive, pids, row.restarts, row.detail))
    return rows + _node_rows(layout)


def _row(
    name: str, state: str, process: procfs.ProcessId | None, pids: list[int], restarts: int = 0, note: str = ""
) -> StatusRow:
    if process is None:
        return StatusRow(name, state, "", "", None, restarts, note)
    age = duration(procfs.age_s(process))
    return StatusRow(name, state, str(process.pid), age, procfs.memory_of(pids), restarts, note)


def _node_rows(layout: Layout) -> list[StatusRow]:
    """What each node's agent keeps running, as its own `status` tells."""
    asked = [
        (home, subprocess.Popen(agent_status(home), cwd=layout.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        for home in layout.node_homes()
    ]
    rows = []
    for home, process in asked:
        answer, _ = process.communicate(timeout=NODE_PATIENCE_S)
        if process.returncode != 0:
            rows.append(StatusRow(home.name, "unknown", "", "", None, 0, "its agent's status can't be read"))
            continue
        told: dict[str, Any] = json.loads(answer)
        parts = [(name, found) for name, found in told["processes"].items() if name != "agent"]
        parts += [(f"{engine['model']} v{engine['version']}", engine) for engine in told["engines"]]
        for name, found in parts:
            identity = procfs.identify(found["pid"]) if found["is_alive"] else None
            state = found.get("state", "ready") if identity else "gone"
            rows.append(_row(f"{home.name} {name}", state, identity, [identity.pid] if identity else []))
    return rows


def duration(seconds: float) -> str:
    """«42 s», «3 min», «5 h 12 min», «2 d 3 h»."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def format_status(rows: list[StatusRow]) -> str:
    """The table as text, numbers right-aligned."""
    head = ("process", "state", "pid", "up for", "memory", "restarts", "note")
    cells = [head, *((r.name, r.state, r.pid, r.uptime, str(r.memory or ""), str(r.restarts), r.note) for r in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    aligned_right = {2, 3, 4, 5}
    lines = []
    for row in cells:
        parts = [
            c.rjust(w) if i in aligned_right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    lines.append(f"together {sum((row.memory for row in rows if row.memory), procfs.Memory())}")
    return "\n".join(lines)


def reset(layout: Layout, terminal: Terminal, confirm: Callable[[str], bool]) -> bool:
    """Delete all state, after asking. Raises SupervisorError while it runs or when the folder isn't ours."""
    if Lock(layout.lock).holder() is not None:
        raise SupervisorError("still_running", "Farrier is running: stop it with `make down` first.")
    home = layout.home.resolve()
    if not home.exists():
        terminal.say(f"There is nothing in {home}.")
        return True
    if not (home / MARKER).is_file():
        raise SupervisorError(
            "not_a_home", f"{home} was not made by `make up` (it has no file {MARKER}): nothing is deleted."
        )
    if not confirm(f"Delete everything in {home}: database, models, keys, nodes?"):
        terminal.say("Nothing was deleted.")
        return False
    end_leftovers(StateFile(layout.states), terminal)
    shut_down_nodes(layout, terminal)
    _delete(home, cluster_folder(home))
    if layout.home.is_symlink():
        layout.home.unlink()  # the short name of a home with a long one
    terminal.say(f"Deleted {home}.")
    return True


def _delete(home: Path, cluster: Path) -> None:
    if cluster.parent.resolve() != home:
        shutil.rmtree(cluster.parent, ignore_errors=True)  # the cluster of user nobody, outside a private home
    for entry in home.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()
    # Last: an interrupted reset can be repeated.
    (home / MARKER).unlink()
