"""One supervisor of the product as a process: started, stopped, or torn down as a power cut would."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from controlplane.supervisor import procfs
from controlplane.supervisor.layout import Layout
from controlplane.supervisor.statefile import ProcessRow
from tests.crash.plane import ROOT, state_file
from tests.crash.waiting import until

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 120.0


class Part:
    """The control plane or the fleet. `log` takes what the supervisor prints, its children's lines included."""

    def __init__(self, name: str, layout: Layout, environment: Mapping[str, str]) -> None:
        self.name = name
        self._layout = layout
        self._environment = dict(environment)
        self.log = layout.home / f"{name}.out"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: str) -> None:
        """Start it, with other settings for this once, and wait until everything in it is ready."""
        self._layout.prepare()
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.plane", str(self._layout.home), self.name],
                cwd=ROOT,
                env=self._environment | settings,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(f"the {self.name} is ready", lambda: self._is_ready(begun), START_TIMEOUT_S)

    def _is_ready(self, since: int) -> bool:
        assert self._process is not None
        printed = self.log.read_bytes()[since:].decode(errors="replace")
        assert self._process.poll() is None, f"the {self.name} did not start:\n{printed[-4_000:]}"
        return any(" READY after " in line for line in printed.splitlines())

    def stop(self) -> None:
        """Ask for an orderly stop and wait for it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)

    def pull_the_plug(self) -> int:
        """SIGKILL the supervisor and all that it started, at once; returns how many processes that were."""
        assert self._process is not None
        rows = self.rows().values()
        tree = procfs.children_of_all()
        pids = [pid for row in rows if row.pid for pid in procfs.descendants(row.pid, tree)]
        self._process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):  # PostgreSQL's children leave with their parent
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        return len(pids) + 1

    def rows(self) -> dict[str, ProcessRow]:
        """What its state file says, by name of the process."""
        return {row.name: row for row in state_file(self._layout, self.name).read()}
