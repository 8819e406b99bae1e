"""The sandbox, proved from inside: what an engine can't do any more, and what it still can."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.engine.errors import SandboxError
from node.engine.sandbox import code_trees, landlock, refuse_preloads
from tests.engine.support import ROOT, Engine

STILL_WORKS = {
    "read inherited", "write to the spool", "start a thread", "run an event loop", "compute", "signal itself",
    "import late",
}  # fmt: skip
# Only Landlock can refuse these: a system-call filter sees no paths.
BY_PATH = {
    "read /etc/passwd", "read /etc/passwd by ..", "read /etc/passwd in a thread", "list /", "read /proc",
    "read the artifact by its path", "write elsewhere", "write to our code", "make a folder in the spool",
    "link out of the spool", "hard link into the spool", "trace the parent",
}  # fmt: skip


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sb")
    spool, other = folder / "spool", folder / "other"
    spool.mkdir()
    other.mkdir()
    (other / "artifact").write_bytes(b"weights")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "l"))
        listener.listen()
        command = [sys.executable, "-m", "tests.engine.inside_sandbox", str(spool), str(other), str(folder / "l")]
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_what_a_served_model_needs_still_works(inside: dict[str, Any]) -> None:
    assert {name for name, outcome in inside["outcomes"].items() if outcome == "done"} >= STILL_WORKS


def test_calls_that_reach_out_are_refused(inside: dict[str, Any]) -> None:
    assert inside["seccomp"] is True
    refused = inside["outcomes"].keys() - STILL_WORKS - BY_PATH
    assert len(refused) == 11
    assert {name: inside["outcomes"][name] for name in refused} == dict.fromkeys(refused, "PermissionError")


def test_paths_outside_are_refused(inside: dict[str, Any]) -> None:
    if inside["landlock"] == 0:
        pytest.skip("this kernel has no Landlock: paths are limited by file permissions alone")
    outcomes = {name: inside["outcomes"][name] for name in BY_PATH}
    # a hard link from another folder is refused as if it crossed file systems
    assert outcomes.pop("hard link into the spool") in {"PermissionError", "OSError"}
    assert outcomes == dict.fromkeys(outcomes, "PermissionError")


def test_the_kernels_abi_is_told(inside: dict[str, Any]) -> None:
    assert inside["landlock"] == landlock.abi()


def test_the_projects_root_and_the_nodes_state_are_not_readable() -> None:
    trees = code_trees()
    assert not any(ROOT.is_relative_to(tree) for tree in trees)
    assert ROOT / "node" in trees


def test_a_running_engine_is_inside(embedder: Engine) -> None:
    told = embedder.health()["sandbox"]
    assert told["landlock"] == landlock.abi()
    assert told["seccomp"] is True
    lines = Path(f"/proc/{embedder.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    for task in Path(f"/proc/{embedder.pid}/task").iterdir():
        assert "Seccomp:\t2" in (task / "status").read_text(), "a thread was started before the sandbox"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT"])
def test_a_preloaded_library_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "/tmp/evil.so")
    with pytest.raises(SandboxError, match=name) as caught:
        refuse_preloads()
    assert caught.value.code == "preload_refused"


def test_the_fork_server_does_not_start_with_a_preload(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "node.engine.zygote", "--socket", str(tmp_path / "z")]
    # an empty file that exists, so that the dynamic linker itself has nothing to complain about but its format
    (tmp_path / "lib.so").touch()
    env = {**os.environ, "LD_PRELOAD": str(tmp_path / "lib.so")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "LD_PRELOAD would load foreign code" in done.stderr
    assert not (tmp_path / "z").exists()
