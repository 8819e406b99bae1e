"""The story that `make up` performs: two real models, a good update that waits for a person, a bad one that goes back.

`python -m demo.story --home var --server http://127.0.0.1:8700` looks at what is there and does what is missing, so it
may be stopped and started at any point. It acts as CI would: through the `farrier` command and a scoped token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.client import Client

MINILM = "minilm-embedder"
DIGITS = "digit-classifier"
ENDS = ("completed", "rolled_back", "aborted", "superseded")
POLL_S = 2.0
READY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Chapter:
    """One version of one model, how it is made and how it goes out."""

    model: str
    recipe: str
    strategy: str
    reason: str


FIRST = (
    Chapter(MINILM, "minilm_float32", "first", "First version: the float32 weights as published"),
    Chapter(DIGITS, "digits_first", "first", "First version: trained on half of the training digits"),
)
UPDATES = (
    Chapter(MINILM, "minilm_int8_per_row", "demo", "Four times smaller: int8 with a scale per row"),
    Chapter(DIGITS, "digits_retrained", "digits-demo", "Retrained on all training digits"),
)
MISTAKE = Chapter(MINILM, "minilm_int8_per_tensor", "demo", "Simpler kernels: int8 with one scale per tensor")


def say(text: str) -> None:
    """Print one line of the story at once: the supervisor prefixes it."""
    print(text, flush=True)  # noqa: T201 this program's log is its output


class Story:
    """Knows the control plane by its REST API and its command line only."""

    def __init__(self, home: Path, server: str) -> None:
        self.home = home
        self.server = server
        self.secrets = json.loads((home / "secrets.json").read_text(encoding="utf-8"))
        self.api = Client(server, self.secrets["ci_token"], tries=20)

    def perform(self) -> int:
        """Tell the story to its end; return 0 when every chapter ended as it should."""
        self._wait_for_nodes()
        for chapter in FIRST:
            self._expect(self.run(chapter), chapter, "completed")
        traffic = self._start_traffic()
        try:
            return self._updates(traffic)
        finally:
            traffic.terminate()
            traffic.wait()

    def _updates(self, traffic: subprocess.Popen[bytes]) -> int:
        update, retrained = (self.start(chapter) for chapter in UPDATES)
        if self.wait(update) == "completed":
            self._expect(self.run(MISTAKE), MISTAKE, "rolled_back")
        else:
            say(f"{MINILM} v2 did not go out, so the mistake has nothing to replace and is not tried.")
        self._expect(self.wait(retrained), UPDATES[1], "completed", "aborted", "rolled_back")
        say("The story is told; traffic goes on until you stop it.")
        return traffic.wait()

    def run(self, chapter: Chapter) -> str:
        """Push and roll out one chapter; return the phase in which its rollout ended."""
        return self.wait(self.start(chapter))

    def start(self, chapter: Chapter) -> str:
        """Return the id of the chapter's newest rollout, started now if there is none."""
        number = self.push(chapter)
        known = self.rollouts_of(chapter)
        if known:
            return str(known[0]["id"])
        self._farrier(
            "rollout", "start", chapter.model, str(number), "--strategy", chapter.strategy, "--reason", chapter.reason
        )
        started = self.rollouts_of(chapter)
        if not started:
            raise SystemExit(f"The rollout of {chapter.model} v{number} could not be started; the error stands above.")
        return str(started[0]["id"])

    def push(self, chapter: Chapter) -> int:
        """Return the number of the chapter's version, pushed now if it isn't there."""
        known = self._version_of(chapter)
        if known is None:
            key = self.home / "keys" / "release" / "release.pem"
            self._farrier(
                "push",
                chapter.model,
                "--recipe",
                f"demo.recipes:{chapter.recipe}",
                "--key",
                str(key),
                "--notes",
                chapter.recipe,
            )
            known = self._version_of(chapter)
        if known is None:
            raise SystemExit(f"{chapter.model} {chapter.recipe} could not be pushed; its error stands above.")
        return known

    def wait(self, rollout: str) -> str:
        """Follow a rollout to its end and return its last phase; says what it does and where to decide."""
        said = ""
        while True:
            row = self.api.get(f"rollouts/{rollout}")
            line = _line(row, self.server)
            if line != said:
                say(line)
                said = line
            if row["phase"] in ENDS:
                return str(row["phase"])
            time.sleep(POLL_S)

    def rollouts_of(self, chapter: Chapter) -> list[dict[str, Any]]:
        """Return the rollouts of the chapter's version, newest first."""
        number = self._version_of(chapter)
        if number is None:
            return []
        return [row for row in self.api.all("rollouts", model=chapter.model) if row["version"] == number]

    def _version_of(self, chapter: Chapter) -> int | None:
        if chapter.model not in {row["slug"] for row in self.api.all("models")}:
            return None
        for row in self.api.all(f"models/{chapter.model}/versions"):
            if row["notes"] == chapter.recipe and row["state"] == "published":
                return int(row["number"])
        return None

    def _expect(self, phase: str, chapter: Chapter, *wanted: str) -> None:
        if phase not in wanted:
            raise SystemExit(f"{chapter.model} {chapter.recipe} ended {phase}; the story wants {' or '.join(wanted)}.")

    def _wait_for_nodes(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            active = [row["name"] for row in self.api.all("nodes") if row["phase"] == "active"]
            if len(active) >= 3:
                say(f"Three nodes are active: {', '.join(active)}")
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"Only {len(active)} of three nodes enrolled; see var/logs.")
            time.sleep(POLL_S)

    def _start_traffic(self) -> subprocess.Popen[bytes]:
        gateways = [row["gateway_url"] for row in self.api.all("nodes")]
        arguments = [sys.executable, "-m", "demo.traffic", "--end-with-parent", "--server", self.server]
        for gateway in gateways:
            arguments += ["--gateway", gateway]
        return subprocess.Popen(arguments, env=self._environment())

    def _farrier(self, *arguments: str) -> None:
        """Run the command as CI would; what it left behind decides, for an earlier start may have done it already."""
        say(f"$ farrier {' '.join(arguments)}")
        done = subprocess.run([sys.executable, "-m", "cli.main", *arguments], check=False, env=self._environment())
        if done.returncode != 0:
            say(f"farrier exited with {done.returncode}; looking whether it is there all the same")

    def _environment(self) -> dict[str, str]:
        # one thread each: publisher, engines and control plane share this machine's few cores
        ours = {"FARRIER_SERVER": self.server, "FARRIER_TOKEN": self.secrets["ci_token"], "OMP_NUM_THREADS": "1"}
        return os.environ | ours


def _line(row: dict[str, Any], server: str) -> str:
    page = f"{server}/rollouts/{row['id']}/"
    text = f"#{row['number']} {row['model']} v{row['version']} {row['phase']}"
    if row["phase"] == "paused" and row["pause_reason"] == "approval":
        return f"{text}: waits for you (sign in as lead): {page}"
    if row["decision"]:
        return f"{text}: {row['decision']}"
    if row["phase"] == "progressing":
        stage = row["stages"][row["stage_index"]]
        return f"{text}: {stage['kind']}, stage {stage['index'] + 1} of {len(row['stages'])}"
    return text


def main() -> int:
    """Parse the options and tell the story."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="FARRIER_HOME of the running control plane.")
    parser.add_argument("--server", required=True, help="Origin of the control plane.")
    options = parser.parse_args()
    return Story(options.home, options.server).perform()


if __name__ == "__main__":
    sys.exit(main())
