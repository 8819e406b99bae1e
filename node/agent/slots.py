"""The engines of this node: spawned through the fork server, watched over their health sockets, adopted after restarts.

An engine is known by model and digest, which fix its sockets. The record of an engine is written before it is spawned,
so that one whose spawner was killed is found again by its health socket.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import signal
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aifb.trust import Deployment
from node.agent.errors import Permanent, Temporary
from node.agent.files import read_json, write_json
from node.agent.hardware.engines import EngineHealth
from node.agent.home import Home
from node.agent.planner import Engine, EngineState, Key, key_of
from node.agent.processes import Process, find
from node.wire.client import UnixClient
from protocol.failpoints import pass_by

log = logging.getLogger(__name__)

SPAWN_TIMEOUT_S = 30.0
ORPHAN_WAIT_S = 15.0  # how long a spawn that nobody saw the end of may take to show itself
LOAD_TIMEOUT_S = 180.0
SILENT_S = 30.0  # a health socket that is silent this long is a hung engine; less may be a busy host
LOOP_AGE_S = 30.0
HEALTH_TIMEOUT_S = 1.0
_PHASES = {"loading": EngineState.STARTING, "warming": EngineState.WARMING, "ready": EngineState.READY}


@dataclass(frozen=True)
class Slot:
    """The record of one engine. Times are monotonic seconds, which all processes of a boot share."""

    model: str
    digest: str
    version: int
    deployment: str
    pid: int | None  # None between asking the fork server and its answer
    start_time: int | None
    state: str
    since_s: float
    heard_s: float  # when its health socket last answered
    warmup_ms: float | None = None

    @property
    def key(self) -> Key:
        """What the planner knows it by."""
        return Key(self.model, self.digest)

    @property
    def process(self) -> Process | None:
        """Its process, once known."""
        return None if self.pid is None or self.start_time is None else Process(self.pid, self.start_time)


@dataclass(frozen=True)
class Ended:
    """An engine that is gone though nobody asked it to go."""

    key: Key
    code: str
    sentence: str


class Slots:
    """All engines of a home. Safe to use from the loop and from the thread that spawns."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.path / "slots.json"
        self._lock = threading.RLock()
        self._slots: dict[Key, Slot] = {}
        self._stored: list[dict[str, Any]] | None = None
        self._reasons: dict[Key, tuple[str, str]] = {}  # what a failed engine said of itself
        self.sandbox: dict[Key, Mapping[str, Any]] = {}
        self._health: dict[Key, Mapping[str, Any]] = {}  # what each engine said at the last look

    def adopt(self, now_s: float) -> None:
        """Find the engines that an earlier agent of this home left running: by its records, and by their sockets."""
        with self._lock:
            self._slots = {slot.key: replace(slot, heard_s=now_s) for slot in recorded(self._home)}
            for path in sorted(self._home.run.glob("e-*.health")):
                health = _ask(path)
                if health is None:
                    continue
                key = Key(str(health["model"]), str(health["digest"]))
                if key not in self._slots and (slot := _slot_of(health, now_s)) is not None:
                    log.warning("an engine of %s that no record names is adopted", key.model)
                    self._slots[key] = slot
            self._store()

    def processes(self) -> list[Process]:
        """The processes whose end the loop wants to hear of."""
        with self._lock:
            return [slot.process for slot in self._slots.values() if slot.process is not None]

    def sockets(self) -> dict[Key, Path]:
        """The serving socket of every engine that there is."""
        with self._lock:
            return {key: self._home.engine_sockets(*key)[0] for key in self._slots}

    def health(self) -> list[EngineHealth]:
        """What the engines that answered said at the last look."""
        with self._lock:
            return [
                EngineHealth(
                    deployment=str(said["deployment"]),
                    pid=int(said["pid"]),
                    requests=int(said["requests"]),
                    errors=int(said["errors"]),
                    queue_depth=float(said.get("queue_depth", math.nan)),
                    loop_age_s=float(said["loop_age_s"]),
                )
                for said in self._health.values()
            ]

    def observe(self, now_s: float) -> tuple[dict[Key, Engine], list[Ended]]:
        """Look at every engine: (those that are there, those that ended unasked since the last look)."""
        ended: list[Ended] = []
        with self._lock:
            self._health.clear()
            for slot in list(self._slots.values()):
                seen = self._look(slot, now_s)
                if isinstance(seen, Ended):
                    del self._slots[slot.key]
                    if slot.state != EngineState.DRAINING:
                        ended.append(seen)
                elif seen != slot:
                    self._slots[slot.key] = seen
            self._store()
            engines = {
                slot.key: Engine(slot.key, slot.version, EngineState(slot.state), slot.since_s, slot.warmup_ms)
                for slot in self._slots.values()
            }
        return engines, ended

    def spawn(self, deployment: Deployment, lineage: Mapping[str, str], artifact_fd: int, now_s: float) -> None:
        """Ask the fork server for an engine that serves the verified, open artifact.

        Raises Temporary (no fork server) or Permanent (it refuses, or the engine could not start).
        """
        key = key_of(deployment)
        health = _ask(self._home.engine_sockets(*key)[1])
        found = _slot_of(health, now_s) if health is not None else None
        with self._lock:
            if found is not None and found.key == key:
                # the answer to an earlier spawn was lost
                self._slots[key] = found
                self._store()
                return
            intent = (key.model, key.digest, deployment.version, deployment.id, None, None)
            self._slots[key] = Slot(*intent, EngineState.STARTING, now_s, now_s)
            self._store()
        try:
            answer = self._ask_zygote(self._message(deployment, lineage), artifact_fd)
        except BaseException:
            self._drop(key)
            raise
        pass_by("after_spawn")
        if answer.get("error"):
            self._drop(key)
            raise Permanent(str(answer.get("code") or "engine_start_failed"), str(answer["error"]))
        with self._lock:
            slot = self._slots[key]
            self._slots[key] = replace(slot, pid=int(answer["pid"]), start_time=int(answer["start_time"]))
            self._store()
        log.info("engine %d loads %s %d", answer["pid"], deployment.model, deployment.version)

    def drain(self, key: Key, now_s: float) -> None:
        """Let an engine finish its requests and end."""
        with self._lock:
            slot = self._slots[key]
            self._slots[key] = replace(slot, state=EngineState.DRAINING, since_s=now_s)
            self._store()
            if slot.process is not None:
                slot.process.send(signal.SIGTERM)

    def kill(self, key: Key) -> None:
        """End an engine at once; its end is seen, and its reason told, at the next look."""
        with self._lock:
            process = self._slots[key].process
        if process is not None:
            process.send(signal.SIGKILL)

    def zygote_answers(self) -> bool:
        """Whether the fork server is there."""
        try:
            return bool(self._exchange(json.dumps({"cmd": "ping"}).encode(), [], HEALTH_TIMEOUT_S).get("ok"))
        except (OSError, ValueError):
            return False

    def _look(self, slot: Slot, now_s: float) -> Slot | Ended:
        if slot.process is not None and not slot.process.is_alive():
            code, sentence = self._reasons.pop(slot.key, ("engine_ended", "The engine's process ended; see its log."))
            self.sandbox.pop(slot.key, None)
            return Ended(slot.key, code, sentence)
        health = _ask(self._home.engine_sockets(*slot.key)[1])
        if health is None or health["digest"] != slot.digest:
            return self._silent(slot, now_s)
        if slot.process is None:
            process = find(int(health["pid"]))
            if process is None:
                return self._silent(slot, now_s)
            slot = replace(slot, pid=process.pid, start_time=process.start_time)
        elif health["pid"] != slot.pid:
            return self._silent(slot, now_s)  # the socket of another one
        self.sandbox[slot.key] = health["sandbox"]
        self._health[slot.key] = health
        state = self._state(slot, health)
        since_s = slot.since_s if state == slot.state else now_s
        return replace(slot, state=state, since_s=since_s, heard_s=now_s, warmup_ms=health["warmup_ms"] or None)

    def _state(self, slot: Slot, health: Mapping[str, Any]) -> EngineState:
        if slot.state == EngineState.DRAINING or health["phase"] == "draining":
            return EngineState.DRAINING
        if health["phase"] == "failed":
            said = health["error"] or {}
            self._reasons[slot.key] = (str(said.get("code", "load_failed")), str(said.get("sentence", "It failed.")))
            return EngineState.FAILED
        if health["phase"] == "ready" and health["loop_age_s"] > LOOP_AGE_S:
            self._reasons[slot.key] = ("engine_hung", f"The engine's loop stood still for {LOOP_AGE_S:.0f} s.")
            return EngineState.HUNG
        return _PHASES[health["phase"]]

    def _silent(self, slot: Slot, now_s: float) -> Slot | Ended:
        """An engine that doesn't answer: it may be loading, busy, hung, or never have been born."""
        if slot.process is None:
            if now_s - slot.since_s < ORPHAN_WAIT_S + SPAWN_TIMEOUT_S:
                return slot
            return Ended(slot.key, "engine_lost", "The engine did not appear after it was spawned.")
        is_loading = slot.state in (EngineState.STARTING, EngineState.WARMING)
        if slot.state == EngineState.DRAINING or now_s - slot.heard_s < (LOAD_TIMEOUT_S if is_loading else SILENT_S):
            return slot
        self._reasons[slot.key] = ("engine_hung", "The engine's health socket did not answer.")
        return replace(slot, state=EngineState.HUNG)

    def _message(self, deployment: Deployment, lineage: Mapping[str, str]) -> bytes:
        serving, health = self._home.engine_sockets(deployment.model, deployment.digest)
        message = {
            "cmd": "spawn",
            "slot": serving.stem,
            "model": deployment.model,
            "version": deployment.version,
            "digest": deployment.digest,
            "lineage": dict(lineage),
            "socket": str(serving.absolute()),
            "health_socket": str(health.absolute()),
            "spool_dir": str(self._home.spool.absolute()),
            "log": str(self._home.logs.absolute() / f"engine-{deployment.model}-{deployment.version}.log"),
            "threads": 1,
            "deployment": deployment.id,
            "sandbox": True,
        }
        return json.dumps(message).encode()

    def _ask_zygote(self, message: bytes, artifact_fd: int) -> dict[str, Any]:
        try:
            return self._exchange(message, [artifact_fd], SPAWN_TIMEOUT_S)
        except (OSError, ValueError) as away:
            raise Temporary("zygote_away", f"The fork server did not spawn the engine: {away}.") from None

    def _exchange(self, message: bytes, fds: list[int], timeout_s: float) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(timeout_s)
            channel.connect(str(self._home.socket("zygote.sock")))
            socket.send_fds(channel, [message], fds)
            answer = json.loads(channel.recv(1 << 16))
        if not isinstance(answer, dict):
            raise ValueError("its answer is no object")
        return answer

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._slots.pop(key, None)
            self._store()

    def _store(self) -> None:
        """Write the records if what they say has changed."""
        entries = [{**asdict(slot), "heard_s": 0.0} for slot in self._slots.values()]
        if entries != self._stored:
            write_json(self._path, entries)
            self._stored = entries


def recorded(home: Home) -> list[Slot]:
    """The engines on record."""
    entries: list[dict[str, Any]] = read_json(home.path / "slots.json") or []
    return [Slot(**entry) for entry in entries]


def listeners(home: Home) -> list[Process]:
    """The processes behind the engines' health sockets, by the kernel's word: also those too busy to answer."""
    found = []
    for path in sorted(home.run.glob("e-*.health")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(HEALTH_TIMEOUT_S)
            try:
                probe.connect(str(path))
            except OSError:
                continue  # a socket file that an engine left behind
            pid = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        process = find(pid)
        if process is not None:
            found.append(process)
    return found


def _slot_of(health: Mapping[str, Any], now_s: float) -> Slot | None:
    """A record made from what an engine says of itself."""
    process = find(int(health["pid"]))
    if process is None:
        return None
    identity = (str(health["model"]), str(health["digest"]), int(health["version"]), str(health["deployment"]))
    return Slot(*identity, process.pid, process.start_time, EngineState.STARTING, now_s, now_s)


def _ask(path: Path) -> dict[str, Any] | None:
    """An engine's health; None when it doesn't answer."""
    if not os.path.exists(path):
        return None
    try:
        with UnixClient(path, timeout_s=HEALTH_TIMEOUT_S) as client:
            health = client.request("GET", "/").json()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    return health if isinstance(health, dict) else None
