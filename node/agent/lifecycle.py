"""Looking at an agent home from outside, and ending all that belongs to it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

from node.agent.files import read_json
from node.agent.gateway import end_gracefully
from node.agent.home import Home
from node.agent.processes import Process
from node.agent.services import Records
from node.agent.slots import listeners, recorded

log = logging.getLogger(__name__)

GRACE_S = 10.0
AGENT = "agent"


def shutdown(home: Home, say: Callable[[str], None]) -> int:
    """End agent, gateway, comparator, engines and fork server of a home, in this order; returns how many had run.

    Each is known by pid and start time, so nothing else is ever hit. What doesn't end in ten seconds is killed.
    A home that isn't there has nothing to end.
    """
    if not home.path.exists():
        return 0
    records = Records(home)
    ended = 0
    # the agent first: it would start again what it finds ended
    for name in (AGENT, "gateway", "comparator"):
        process = records.get(name)
        if process is not None:
            say(f"ending {name} (process {process.pid})")
            if name == "gateway":
                end_gracefully(home, process, grace_s=GRACE_S)
            else:
                process.end(grace_s=GRACE_S)
            ended += 1
        records.forget(name)
    ended += _end_engines(home, say)
    zygote = records.get("zygote")
    if zygote is not None:
        say(f"ending zygote (process {zygote.pid})")
        zygote.end(grace_s=GRACE_S)
        ended += 1
    records.forget("zygote")
    return ended


def _end_engines(home: Home, say: Callable[[str], None]) -> int:
    known = {slot.process for slot in recorded(home)} - {None}
    # those too whose record a killed agent did not get to complete
    running = [process for process in {*known, *listeners(home)} if process is not None and process.is_alive()]
    for process in running:
        say(f"ending an engine (process {process.pid})")
        process.send(signal.SIGTERM)
    for process in running:
        process.end(grace_s=GRACE_S)
    return len(running)


def status(home: Home) -> dict[str, Any]:
    """What the files of a home say, and which of its processes run."""
    identity = read_json(home.path / "identity.json") or {}
    assignment = read_json(home.trust / "assignment.json") or {}
    return {
        "node": identity.get("node"),
        "name": identity.get("name"),
        "generation": identity.get("generation"),
        "credential_expires": identity.get("expires"),
        "assignment_issued": assignment.get("latest_issued"),
        "processes": {name: _process(process) for name, process in Records(home).all().items()},
        "engines": [
            {
                "model": slot.model,
                "version": slot.version,
                "digest": slot.digest,
                "state": slot.state,
                **_process(slot.process),
            }
            for slot in recorded(home)
        ],
        "routes": read_json(home.gateway / "state.json") or [],
    }


def _process(process: Process | None) -> dict[str, Any]:
    return {"pid": process.pid if process else None, "is_alive": process is not None and process.is_alive()}
