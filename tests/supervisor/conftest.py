"""Supervisors under test: started as processes, killed when the test ends however it ends."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controlplane.supervisor.layout import Layout, layout_for
from controlplane.supervisor.statefile import ProcessRow, StateFile
from tests.supervisor.harness import ROOT

PATIENCE_S = 60.0


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s in vain: {what}"
        time.sleep(0.05)


@dataclass
class Running:
    """A started supervisor and what it printed."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def wait_ready(self) -> None:
        """Read its output up to READY."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("READY"):
                return
        pytest.fail("it ended before it was ready:\n" + "\n".join(self.lines))

    def finish(self) -> int:
        """Read the rest and wait for the end."""
        assert self.process.stdout is not None
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait(timeout=PATIENCE_S)


@dataclass
class Home:
    """A FARRIER_HOME and the supervisors started on it."""

    layout: Layout
    started: list[Running] = field(default_factory=list)

    def start(self, scenario: str) -> Running:
        """Start a supervisor on this home."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.supervisor.harness", str(self.layout.home), scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        running = Running(process)
        self.started.append(running)
        return running

    def rows(self) -> dict[str, ProcessRow]:
        """What its state file says, by name."""
        return {row.name: row for row in StateFile(self.layout.states).read()}

    def row(self, name: str) -> ProcessRow:
        """The state of one process."""
        return self.rows()[name]


@pytest.fixture
def home() -> Iterator[Home]:
    """A short-lived home, on a path short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="farrier-") as folder:
        made = Home(layout_for(Path(folder) / "var", ROOT))
        yield made
        for running in made.started:
            if running.process.poll() is None:
                running.process.terminate()
                running.process.communicate(timeout=PATIENCE_S)
