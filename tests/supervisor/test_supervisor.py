"""The supervisor with real children: order, restarts, stops, and deaths."""

import os
import signal
import time
from io import StringIO

from controlplane.supervisor import procfs
from controlplane.supervisor.control import format_status, status_rows
from controlplane.supervisor.launch import end_leftovers
from controlplane.supervisor.logs import Terminal
from controlplane.supervisor.statefile import StateFile
from tests.supervisor.conftest import Home, eventually


def identity_of(home: Home, name: str) -> procfs.ProcessId:
    identity = home.row(name).identity
    assert identity is not None
    assert procfs.is_alive(identity)
    return identity


def test_starts_in_waves_and_stops_in_reverse(home: Home) -> None:
    running = home.start("sleepers")
    running.wait_ready()
    ready = [line.split()[1] for line in running.lines if line.startswith("  ✔")]
    assert ready[0] == "first"
    assert sorted(ready[1:]) == ["second", "third"]

    running.process.send_signal(signal.SIGINT)
    assert running.finish() == 0
    stopped = [line for line in running.lines if line.startswith("  ■")]
    names = [line.split()[1] for line in stopped]
    assert names == [
        "third",
        "second",
        "first",
    ]  # third ends at once, second only when it is killed; then the wave before
    assert "killed: it did not end in time" in stopped[1]
    assert not home.layout.states.exists()


def test_repeated_stop_signals_hurry_nothing_but_a_later_ctrl_c_does(home: Home) -> None:
    running = home.start("slow")
    running.wait_ready()
    for _ in range(3):
        running.process.send_signal(signal.SIGTERM)
    eventually(lambda: home.row("slow").state == "stopping", "the stop's begin")
    assert running.process.poll() is None
    time.sleep(1.2)  # a person's second thought
    running.process.send_signal(signal.SIGINT)
    assert running.finish() == 0
    assert "killed" in next(line for line in running.lines if line.startswith("  ■ slow"))

    running = home.start("brief")
    running.wait_ready()
    for _ in range(3):
        running.process.send_signal(signal.SIGTERM)
    assert running.finish() == 0
    assert "killed" not in next(line for line in running.lines if line.startswith("  ■ brief"))


def test_killed_child_comes_back(home: Home) -> None:
    running = home.start("sleepers")
    running.wait_ready()
    before = identity_of(home, "first")
    os.kill(before.pid, signal.SIGKILL)
    eventually(lambda: home.row("first").restarts == 1 and home.row("first").state == "ready", "a restart of first")
    assert identity_of(home, "first") != before


def test_killed_supervisor_takes_its_children_along(home: Home) -> None:
    running = home.start("sleepers")
    running.wait_ready()
    children = [identity_of(home, name) for name in ("first", "second", "third")]
    running.process.kill()
    running.finish()
    stubborn = children[1]
    eventually(lambda: not any(map(procfs.is_alive, (children[0], children[2]))), "the end of first and third")
    assert procfs.is_alive(stubborn)  # ignores the kernel's SIGTERM

    said = StringIO()
    end_leftovers(StateFile(home.layout.states), Terminal(said), grace_s=0.2)
    assert said.getvalue() == "Ending what an earlier start left behind: second\n"
    eventually(lambda: not procfs.is_alive(stubborn), "the end of second")


def test_what_a_dead_process_had_started_is_found_and_ended(home: Home) -> None:
    running = home.start("family")
    running.wait_ready()
    leader = identity_of(home, "parent")
    child = procfs.identify(int((home.layout.home / "child.pid").read_text()))
    assert child is not None
    running.process.kill()
    running.finish()
    eventually(lambda: not procfs.is_alive(leader), "the parent's end")
    assert procfs.is_alive(child)  # the kernel's signal went to its parent alone

    said = StringIO()
    end_leftovers(StateFile(home.layout.states), Terminal(said), grace_s=0.2)
    assert said.getvalue() == "Ending what an earlier start left behind: parent\n"
    eventually(lambda: not procfs.is_alive(child), "the child's end")


def test_what_an_agent_started_survives_it_but_not_the_stop(home: Home) -> None:
    running = home.start("agent")
    running.wait_ready()
    engine = procfs.identify(int((home.layout.home / "engine.pid").read_text()))
    assert engine is not None
    os.kill(identity_of(home, "agent").pid, signal.SIGKILL)
    eventually(lambda: home.row("agent").restarts == 1 and home.row("agent").state == "ready", "a restart of the agent")
    assert procfs.is_alive(engine)

    running.process.terminate()
    assert running.finish() == 0
    eventually(lambda: not procfs.is_alive(engine), "the end of the engine")


def test_second_start_says_that_it_runs_already(home: Home) -> None:
    running = home.start("sleepers")
    running.wait_ready()
    second = home.start("sleepers")
    assert second.finish() == 1
    assert second.lines[-1].startswith("already_running: Farrier is already running here")
    assert str(running.process.pid) in second.lines[-1]


def test_failed_start_shows_the_last_words_and_stops_the_rest(home: Home) -> None:
    running = home.start("broken")
    assert running.finish() == 1
    assert any(line.startswith("start_failed: broken exited with 1") for line in running.lines)
    assert running.lines[-1].strip() == "the configuration has no colour"


def test_finished_process_is_done_not_restarted(home: Home) -> None:
    running = home.start("finite")
    running.wait_ready()
    assert home.row("story").state == "done"
    assert home.row("story").restarts == 0


def test_status_table(home: Home) -> None:
    assert status_rows(home.layout) == []
    running = home.start("sleepers")
    running.wait_ready()
    rows = status_rows(home.layout)
    assert [row.name for row in rows] == ["first", "second", "third"]
    assert {row.state for row in rows} == {"ready"}
    assert all(row.memory is not None and row.memory.total_bytes > 1 << 20 for row in rows)
    table = format_status(rows).splitlines()
    assert table[0].split() == ["process", "state", "pid", "up", "for", "memory", "restarts", "note"]
    assert table[4].startswith("together ")
    assert len(table) == 5
