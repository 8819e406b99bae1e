"""Lives of engines: started by the fork server, drained, killed, failing to load, outliving it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from node.wire.client import UnixClient
from protocol.spool import recover_orphans
from tests.engine.support import Artifacts, Engine, ForkServer, fork_server, infer, pixels, texts, wait_until


@pytest.fixture
def digits_engine(zygote: ForkServer, artifacts: Artifacts) -> Engine:
    """An engine of its own, for tests that end it."""
    engine = zygote.start(artifacts.digits, "digit-classifier", 3)
    engine.wait_ready()
    return engine


class Load:
    """Clients that keep asking an engine until it is gone. Every request must be answered or never have been taken."""

    def __init__(self, engine: Engine, clients: int) -> None:
        self.engine = engine
        self.answered: list[str] = []
        self.lost: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _ask(self, number: int) -> None:
        count = 0
        with self.engine.client(reopens=False) as client:
            while True:
                identity = f"c{number}-{count}"
                count += 1
                try:
                    answer = infer(
                        client, self.engine.model, pixels([[float(number)] * 64]), {"x-request-id": identity}
                    )
                except (FileNotFoundError, ConnectionRefusedError):
                    return  # it was never taken
                except Exception as error:  # noqa: BLE001 - whatever it is, this request was lost
                    self.lost.append(f"{identity}: {error!r}")
                    return
                if answer.status == 200:
                    self.answered.append(identity)
                else:
                    self.lost.append(f"{identity}: {answer.status}")


def test_health_tells_who_serves_and_how_it_started(embedder: Engine, artifacts: Artifacts) -> None:
    health = embedder.health()
    assert health["digest"] == artifacts.minilm["v1"].written.digest
    assert (health["model"], health["version"], health["pid"]) == ("minilm-embedder", 1, embedder.pid)
    assert (health["ready"], health["phase"], health["device"], health["error"]) == (True, "ready", "cpu", None)
    assert [step["name"] for step in health["steps"]] == [
        "verify_and_map",
        "weights",
        "seal",
        "plan",
        "entry_point",
        "warm_up",
    ]
    assert health["warmup_ms"] > 0


def test_health_counts_requests_and_the_engines_own_errors(digits_engine: Engine) -> None:
    digits_engine.infer(pixels([[0.0] * 64]))
    digits_engine.infer([])
    assert (digits_engine.health()["requests"], digits_engine.health()["errors"]) == (2, 0)
    digits_engine.stop()


def test_a_long_batch_shows_in_the_health_answers_age(embedder: Engine) -> None:
    """The health thread answers while the compute thread is busy, and says for how long nothing has ticked."""
    ages: list[float] = []
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            ages.append(embedder.health()["loop_age_s"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    embedder.infer(texts(*["many words that make a long text " * 60] * 16))
    is_done.set()
    watcher.join()
    assert max(ages) > 0.3, "sixteen texts of 256 tokens take longer than the idle tick"
    wait_until(lambda: embedder.health()["loop_age_s"] < 0.3, "the idle ticks")


def test_sigterm_under_load_loses_no_request(digits_engine: Engine) -> None:
    load = Load(digits_engine, clients=4)
    wait_until(lambda: len(load.answered) > 50, "some load")
    digits_engine.signal(signal.SIGTERM)
    load.join()
    wait_until(lambda: not digits_engine.is_alive(), "the engine's end")
    assert load.lost == []
    assert {row.request_id for row in digits_engine.rows()} == set(load.answered)
    assert not digits_engine.socket.exists()
    assert not digits_engine.health_socket.exists()
    assert list(digits_engine.spool_dir.glob("*.open")) == []
    assert "drained, 0 requests cut off" in digits_engine.log.read_text()


def test_sigterm_finishes_a_long_request(zygote: ForkServer, artifacts: Artifacts) -> None:
    engine = zygote.start(artifacts.minilm["v1"], "minilm-embedder", 1)
    engine.wait_ready()
    answers: list[int] = []
    mine = [f"text number {number} with some more words in it" for number in range(64)]
    thread = threading.Thread(target=lambda: answers.append(engine.infer(texts(*mine)).status))
    thread.start()
    time.sleep(0.05)
    engine.signal(signal.SIGTERM)
    thread.join(20)
    assert answers == [200]
    wait_until(lambda: not engine.is_alive(), "the engine's end")


def test_kill_9_leaves_the_rows_of_all_answered_requests(digits_engine: Engine) -> None:
    load = Load(digits_engine, clients=2)
    wait_until(lambda: len(load.answered) > 100, "some load")

    def stopped_with_a_file_in_hand() -> list[Path]:
        digits_engine.signal(signal.SIGSTOP)
        found = list(digits_engine.spool_dir.glob("*.open"))
        if not found:
            digits_engine.signal(signal.SIGCONT)
        return found

    left = wait_until(stopped_with_a_file_in_hand, "a moment between two publications")
    digits_engine.signal(signal.SIGKILL)
    load.join()
    wait_until(lambda: not digits_engine.is_alive(), "the engine's end")
    assert recover_orphans(digits_engine.spool_dir) == [left[0].with_suffix(".log")]
    assert {row.request_id for row in digits_engine.rows()} >= set(load.answered)


def test_rows_are_published_while_the_engine_goes_on(digits_engine: Engine) -> None:
    digits_engine.infer(pixels([[0.0] * 64]), {"x-request-id": "first"})
    assert digits_engine.rows() == []
    rows = wait_until(digits_engine.rows, "the publication of a lone row")
    assert [row.request_id for row in rows] == ["first"]
    digits_engine.stop()


def test_a_new_engine_takes_the_place_of_a_dead_ones_sockets(zygote: ForkServer, artifacts: Artifacts) -> None:
    first = zygote.start(artifacts.digits, "digit-classifier", 3)
    first.wait_ready()
    first.signal(signal.SIGKILL)
    wait_until(lambda: not first.is_alive(), "the engine's end")
    paths = {
        key: str(getattr(first, attribute))
        for key, attribute in (("socket", "socket"), ("health_socket", "health_socket"))
    }
    second = zygote.start(artifacts.digits, "digit-classifier", 3, **paths)
    assert second.wait_ready()["pid"] == second.pid
    second.stop()


def test_a_damaged_artifact_is_told_and_ends_the_engine(
    zygote: ForkServer, artifacts: Artifacts, tmp_path: Path
) -> None:
    packed = artifacts.digits
    raw = bytearray(Path(packed.written.path).read_bytes())
    raw[5000] ^= 0x40
    damaged = tmp_path / "damaged.aifb"
    damaged.write_bytes(raw)
    message = zygote.message(packed, "digit-classifier", 3)
    with damaged.open("rb") as artifact:
        answer = zygote.ask(message, [artifact.fileno()])
    assert answer["error"] is None
    paths = (Path(message[key]) for key in ("socket", "health_socket", "spool_dir", "log"))
    engine = Engine(answer["pid"], answer["start_time"], *paths, "digit-classifier")
    health = wait_until(lambda: (h := engine.health())["phase"] == "failed" and h, "the failure's report")
    assert health["ready"] is False
    assert health["error"]["code"] == "root_mismatch"
    assert "root_mismatch" in engine.log.read_text()
    engine.signal(signal.SIGTERM)
    wait_until(lambda: not engine.is_alive(), "the engine's end")


def test_the_wrong_digest_is_told(zygote: ForkServer, artifacts: Artifacts) -> None:
    engine = zygote.start(artifacts.digits, "digit-classifier", 3, digest=artifacts.minilm["v1"].written.digest)
    health = wait_until(lambda: (h := engine.health())["phase"] == "failed" and h, "the failure's report")
    assert health["error"]["code"] == "root_mismatch"
    engine.signal(signal.SIGTERM)


def test_the_answer_names_the_process(digits_engine: Engine, zygote: ForkServer) -> None:
    stat = Path(f"/proc/{digits_engine.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[19]) == digits_engine.start_time
    assert os.getsid(digits_engine.pid) == digits_engine.pid
    assert digits_engine.pid in zygote.ask({"cmd": "ping"})["engines"]
    digits_engine.stop()
    wait_until(lambda: digits_engine.pid not in zygote.ask({"cmd": "ping"})["engines"], "the reaping of the engine")
    assert f"engine {digits_engine.pid}" in (zygote.folder / "zygote.log").read_text()


def test_an_engine_outlives_the_fork_server(artifacts: Artifacts) -> None:
    with fork_server() as server:
        engine = server.start(artifacts.digits, "digit-classifier", 3)
        engine.wait_ready()
        server.process.kill()
        server.process.wait(10)
        assert engine.infer(pixels([[0.0] * 64])).status == 200
        engine.stop()
        assert "drained" in engine.log.read_text()


def test_engines_hold_no_file_of_the_fork_servers(zygote: ForkServer, artifacts: Artifacts) -> None:
    """Neither its sockets nor another engine's artifact: an inherited descriptor would be a way around the sandbox.

    Looked at from outside, which the sandbox forbids to all but root: so this one starts without it, and says so.
    """
    digits_engine = zygote.start(artifacts.digits, "digit-classifier", 3, sandbox=False)
    assert digits_engine.wait_ready()["sandbox"] == {"landlock": 0, "seccomp": False, "sealed": ANY}

    def kinds() -> list[str]:
        return [os.readlink(path) for path in Path(f"/proc/{digits_engine.pid}/fd").iterdir()]

    files = [kind for kind in kinds() if kind.startswith("/") and kind not in {"/dev/null", str(digits_engine.log)}]
    # the map keeps a descriptor of the engine's own artifact, open for reading
    assert {Path(file).name for file in files} == {"digits.aifb"}
    # serving, health, and the two ends of the event loop's wake-up pair; a health client may just be leaving
    wait_until(lambda: sum(kind.startswith("socket:") for kind in kinds()) == 4, "the least number of sockets")
    digits_engine.stop()


BAD_MESSAGES: dict[str, Any] = {
    "not json": b"{",
    "no object": b"[]",
    "no command": {},
    "unknown command": {"cmd": "stop"},
    "nothing else": {"cmd": "spawn"},
    "relative socket": {"socket": "s.sock"},
    "short digest": {"digest": "ab"},
    "upper-case digest": {"digest": "A" * 128},
    "no lineage": {"lineage": {"model": "x"}},
    "version as text": {"version": "1"},
    "no threads": {"threads": 0},
    "sandbox maybe": {"sandbox": "yes"},
    "empty model": {"model": ""},
    "two lines": {"slot": "a\nb"},
    "a model that is no header": {"model": "modèle"},
    "a lineage that is no header": {"lineage": dict.fromkeys(("model", "data", "env", "build"), "a\r\nb")},
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_messages_are_refused_and_the_fork_server_goes_on(
    zygote: ForkServer, artifacts: Artifacts, name: str
) -> None:
    change = BAD_MESSAGES[name]
    message: Any = change
    if isinstance(change, dict) and "cmd" not in change and change:
        message = {**zygote.message(artifacts.digits, "digit-classifier", 1), **change}
    with open(artifacts.digits.written.path, "rb") as artifact:
        answer = zygote.ask(message, [artifact.fileno()])
    assert (answer["pid"], answer["code"]) == (None, "bad_message")
    assert zygote.ask({"cmd": "ping"})["ok"] is True


def test_a_spawn_without_its_file_is_refused(zygote: ForkServer, artifacts: Artifacts) -> None:
    answer = zygote.ask(zygote.message(artifacts.digits, "digit-classifier", 1))
    assert answer["code"] == "bad_message"
    assert "one open file" in answer["error"]


def test_a_socket_that_can_not_be_bound_is_told_at_once(
    zygote: ForkServer, artifacts: Artifacts, tmp_path: Path
) -> None:
    message = {**zygote.message(artifacts.digits, "digit-classifier", 1), "socket": "/nowhere/at/all.sock"}
    with open(artifacts.digits.written.path, "rb") as artifact:
        answer = zygote.ask(message, [artifact.fileno()])
    assert (answer["pid"], answer["code"]) == (None, "engine_start_failed")
    assert "No such file" in answer["error"]


def test_health_answers_a_client_that_says_nothing_useful(embedder: Engine) -> None:
    """A client that hangs holds the health thread up for a second at most."""
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(embedder.health_socket))
        with UnixClient(embedder.health_socket, timeout_s=10) as client:
            assert client.request("GET", "/").json()["ready"] is True
