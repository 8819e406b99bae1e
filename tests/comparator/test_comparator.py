"""The comparator as a process, between a mirror (this test) and real engines."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.wire.client import UnixClient
from protocol.spool import read_messages
from protocol.telemetry_pb2 import ComparisonRow
from tests.engine.support import ROOT, Artifacts, Engine, ForkServer, infer, pixels, texts, wait_until

ROLLOUT = "0190b0a0-0000-7000-8000-0000000000aa"
DEPLOYMENT = "0190b0a0-0000-7000-8000-0000000000bb"
MINILM = "minilm-embedder"
DIGITS = "digit-classifier"

TEXTS = [
    "You may reproduce and distribute copies of the Work, in source or object form.",
    "The cat slept on the warm stone wall until the rain came.",
    "Interest rates were left unchanged for the third month in a row.",
    "A triangle has three sides and three angles.",
    "She opened the letter, read it twice, and put it back into the drawer.",
    "Each contributor grants a perpetual, worldwide, royalty-free licence.",
]


def side(engine: Engine) -> dict[str, Any]:
    """An engine as the agent's configuration names it."""
    health = engine.health()
    return {"socket": str(engine.socket), "version": health["version"], "digest": health["digest"]}


def pairing(baseline: Engine, candidate: Engine) -> dict[str, Any]:
    return {
        "deployment": DEPLOYMENT,
        "rollout": ROLLOUT,
        "stage": 1,
        "attempt": 2,
        "baseline": side(baseline),
        "candidate": side(candidate),
    }


@dataclass
class Comparator:
    """A running comparator and its files."""

    folder: Path
    process: subprocess.Popen[bytes]

    def mirror(self, client: UnixClient, model: str, inputs: list[dict[str, Any]], identity: str) -> None:
        """What the gateway's mirror sends; the answer says nothing but comes at once."""
        answer = infer(client, model, inputs, {"x-request-id": identity})
        assert (answer.status, answer.body) == (200, b"")

    def client(self) -> UnixClient:
        return UnixClient(self.folder / "c.sock", timeout_s=10)

    def health(self) -> dict[str, Any]:
        with UnixClient(self.folder / "h.sock", timeout_s=5) as client:
            return dict(client.request("GET", "/").json())

    def configure(self, models: dict[str, Any]) -> None:
        """Replace the configuration, as the agent does: a temporary file, then a rename."""
        write_config(self.folder, models)
        wait_until(lambda: self.health()["models"] == sorted(models), "the new configuration")

    def rows(self) -> list[ComparisonRow]:
        paths = sorted((self.folder / "spool").glob("cmp-*.log"))
        return [row for path in paths for row in read_messages(path, ComparisonRow)]

    def wait_rows(self, count: int) -> list[ComparisonRow]:
        def enough() -> list[ComparisonRow] | None:
            rows = self.rows()
            return rows if len(rows) >= count else None

        return list(wait_until(enough, f"{count} rows"))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)


def write_config(folder: Path, models: dict[str, Any]) -> None:
    new = folder / "new.json"
    new.write_text(json.dumps({"spool_dir": str(folder / "spool"), "models": models}))
    new.rename(folder / "config.json")


@pytest.fixture
def comparator() -> Iterator[Comparator]:
    """A comparator that compares nothing yet."""
    with tempfile.TemporaryDirectory(prefix="fc-") as name:
        folder = Path(name)
        write_config(folder, {})
        command = [
            sys.executable, "-m", "node.comparator", "--config", str(folder / "config.json"),
            "--socket", str(folder / "c.sock"), "--health-socket", str(folder / "h.sock"),
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait_until(lambda: (folder / "h.sock").exists() and (folder / "c.sock").exists(), "the comparator's start")
        running = Comparator(folder, process)
        yield running
        if process.poll() is None:
            process.kill()
            process.wait(10)


def test_a_good_version_is_found_alike(comparator: Comparator, embedders: dict[str, Engine]) -> None:
    comparator.configure({MINILM: pairing(embedders["v1"], embedders["v2"])})
    with comparator.client() as client:
        for index, text in enumerate(TEXTS):
            comparator.mirror(client, MINILM, texts(text), f"r{index}")
        rows = comparator.wait_rows(len(TEXTS))
    assert [row.request_id for row in rows] == [f"r{index}" for index in range(len(TEXTS))]
    assert [row.sample for row in rows] == TEXTS
    first = rows[0]
    assert (first.model, first.rollout, first.deployment) == (MINILM, ROLLOUT, DEPLOYMENT)
    assert (first.stage, first.attempt, first.baseline_version, first.candidate_version) == (1, 2, 1, 2)
    for row in rows:
        assert (row.baseline_status, row.candidate_status, row.batch_size, row.dropped_before) == (200, 200, 1, 0)
        assert row.similarity > 0.995
        assert row.baseline_us > 500
        assert row.candidate_us > 500


def test_a_bad_version_is_found_different(comparator: Comparator, embedders: dict[str, Engine]) -> None:
    comparator.configure({MINILM: pairing(embedders["v2"], embedders["v3"])})
    with comparator.client() as client:
        for index, text in enumerate(TEXTS):
            comparator.mirror(client, MINILM, texts(text), f"r{index}")
        rows = comparator.wait_rows(len(TEXTS))
    assert sum(row.similarity for row in rows) / len(rows) < 0.98


def test_replays_leave_no_row_in_the_inference_log(comparator: Comparator, embedders: dict[str, Engine]) -> None:
    before = embedders["v2"].health()["requests"]
    comparator.configure({MINILM: pairing(embedders["v1"], embedders["v2"])})
    with comparator.client() as client:
        comparator.mirror(client, MINILM, texts("a replay"), "r")
        comparator.wait_rows(1)
    assert embedders["v2"].health()["requests"] == before


def test_classifiers_and_batches_are_compared_too(comparator: Comparator, classifier: Engine) -> None:
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[1.5] * 64, [2.0] * 64, [3.0] * 64]), "r")
        (row,) = comparator.wait_rows(1)
    assert row.similarity == pytest.approx(1.0)
    assert row.batch_size == 3
    assert row.sample.startswith("[1.5,1.5,")
    assert len(row.sample) == 200


def test_what_nobody_compares_is_answered_and_counted(comparator: Comparator, classifier: Engine) -> None:
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    with comparator.client() as client:
        comparator.mirror(client, MINILM, texts("who asked for this?"), "r")
        assert client.request("GET", "/anything").status == 200
    wait_until(lambda: comparator.health()["unmatched"] == 1, "the count")
    assert comparator.rows() == []


def test_a_clients_mistake_is_counted_apart(comparator: Comparator, classifier: Engine) -> None:
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 63]), "bad")
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "good")
        (row,) = comparator.wait_rows(1)
    assert (row.request_id, row.dropped_before) == ("good", 0)
    assert comparator.health()["refused"] == 1


def test_a_candidate_that_is_dead_is_a_failed_pair(
    comparator: Comparator, classifier: Engine, zygote: ForkServer, artifacts: Artifacts
) -> None:
    candidate = zygote.start(artifacts.digits, DIGITS, 2)
    candidate.wait_ready()
    comparator.configure({DIGITS: pairing(classifier, candidate)})
    candidate.signal(signal.SIGKILL)
    wait_until(lambda: not candidate.is_alive(), "the candidate's end")
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "r")
        (row,) = comparator.wait_rows(1)
    assert (row.baseline_status, row.candidate_status) == (200, 503)
    assert math.isnan(row.similarity)


def test_a_baseline_that_is_dead_says_nothing_about_the_candidate(
    comparator: Comparator, classifier: Engine, zygote: ForkServer, artifacts: Artifacts
) -> None:
    baseline = zygote.start(artifacts.digits, DIGITS, 2)
    baseline.wait_ready()
    comparator.configure({DIGITS: pairing(baseline, classifier)})
    baseline.signal(signal.SIGKILL)
    wait_until(lambda: not baseline.is_alive(), "the baseline's end")
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "lost")
        wait_until(lambda: comparator.health()["dropped"] == 1, "the drop")
        comparator.configure({DIGITS: pairing(classifier, classifier)})
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "r")
        (row,) = comparator.wait_rows(1)
    assert (row.request_id, row.dropped_before) == ("r", 1)


def test_another_version_than_the_configuration_names_is_not_judged(
    comparator: Comparator, classifier: Engine, artifacts: Artifacts
) -> None:
    stale = {**side(classifier), "digest": artifacts.minilm["v1"].written.digest}
    comparator.configure({DIGITS: {**pairing(classifier, classifier), "candidate": stale}})
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "r")
    wait_until(lambda: comparator.health()["dropped"] == 1, "the drop")
    assert comparator.rows() == []


def test_a_full_queue_drops_counts_and_never_holds_the_mirror_up(
    comparator: Comparator, zygote: ForkServer, artifacts: Artifacts
) -> None:
    frozen = zygote.start(artifacts.digits, DIGITS, 2)
    frozen.wait_ready()
    comparator.configure({DIGITS: pairing(frozen, frozen)})
    frozen.signal(signal.SIGSTOP)
    sent = 300
    with comparator.client() as client:
        for index in range(sent):
            comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), f"r{index}")
    health = comparator.health()
    assert health["received"] == sent
    # 256 wait, and the one that was taken first is on its way to the frozen engine
    assert health["dropped"] >= sent - 257
    frozen.signal(signal.SIGCONT)

    def settled() -> dict[str, Any] | None:
        now = comparator.health()
        return now if now["compared"] + now["dropped"] == sent else None

    final = wait_until(settled, "the end of the queue")
    rows = comparator.wait_rows(final["compared"])
    assert len(rows) == final["compared"] > 200
    assert rows[0].dropped_before >= sent - 257
    assert sum(row.dropped_before for row in rows) == final["dropped"]
    frozen.stop()


def test_a_bad_configuration_changes_nothing_but_is_told(comparator: Comparator, classifier: Engine) -> None:
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    (comparator.folder / "config.json").write_text('{"models": {"x": {}}}')
    wait_until(lambda: comparator.health()["config_error"], "the complaint")
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "r")
        comparator.wait_rows(1)
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    wait_until(lambda: comparator.health()["config_error"] is None, "the good configuration")


def test_it_ends_cleanly_and_publishes_its_rows(comparator: Comparator, classifier: Engine) -> None:
    comparator.configure({DIGITS: pairing(classifier, classifier)})
    with comparator.client() as client:
        comparator.mirror(client, DIGITS, pixels([[0.0] * 64]), "r")
        wait_until(lambda: comparator.health()["compared"] == 1, "the comparison")
    assert comparator.stop() == 0
    assert len(comparator.rows()) == 1
    assert list((comparator.folder / "spool").glob("*.open")) == []
    assert not (comparator.folder / "c.sock").exists()


def test_it_runs_at_low_priority(comparator: Comparator) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, comparator.process.pid) == min(19, ours + 10)


def test_it_does_not_start_without_a_configuration(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "node.comparator", "--config", str(tmp_path / "none"), "--socket"]
    command += [str(tmp_path / "c"), "--health-socket", str(tmp_path / "h")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "No such file" in done.stderr
