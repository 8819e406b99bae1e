"""Ports, secrets, short names, logs, reset: each where a person meets it."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest

from controlplane.supervisor import credentials, logs, procfs
from controlplane.supervisor.control import duration, reset
from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.launch import check_ports
from controlplane.supervisor.layout import LONGEST_HOME, Layout, layout_for
from controlplane.supervisor.logs import LogFile, Terminal
from controlplane.supervisor.processes import Environments, Site
from controlplane.supervisor.statefile import Lock
from tests.supervisor.conftest import eventually
from tests.supervisor.harness import ROOT


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(Layout(tmp_path, ROOT), Environments({}, {}, {}), "127.0.0.1", procfs.free_port(), 1, 0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_taken_port_is_named_with_its_owner(site: Site, listener: socket.socket) -> None:
    check_ports(site)
    port = listener.getsockname()[1]
    name = Path("/proc/self/comm").read_text().strip()
    with pytest.raises(SupervisorError) as caught:
        check_ports(replace(site, port=port))
    assert str(caught.value) == (
        f"Port {port}, which the edge needs, is taken by {name} (process {os.getpid()}): stop it, or choose others "
        "with FARRIER_ORIGIN."
    )


def test_taken_gateway_port_names_its_setting(site: Site, listener: socket.socket) -> None:
    taken = replace(site, nodes=1, gateway_port_base=listener.getsockname()[1] - 1)
    with pytest.raises(SupervisorError, match=r"which the gateway of node-1 needs.*FARRIER_GATEWAY_PORT_BASE"):
        check_ports(taken)


def test_gateway_that_outlived_its_agent_is_no_stranger(site: Site) -> None:
    port = procfs.free_port()
    home = site.layout.node("node-1")
    code = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"
    mine = replace(site, nodes=1, gateway_port_base=port - 1)
    for argument, adopted in ((str(home / "gateway.json"), True), ("elsewhere", False)):
        gateway = subprocess.Popen([sys.executable, "-c", code, str(port), argument])
        try:
            eventually(lambda: not procfs.port_is_free(port), "the gateway's listening")
            if adopted:
                check_ports(mine)
            else:
                with pytest.raises(SupervisorError, match="is taken by"):
                    check_ports(mine)
        finally:
            gateway.kill()
            gateway.wait()


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    made = credentials.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert credentials.load_or_create(path) == made
    assert set(made.users) == {"requester", "lead", "oncall", "admin"}
    assert len({made.postgres_owner, made.postgres_app, made.postgres_superuser, *made.users.values()}) == 7


def test_secrets_of_an_earlier_release_are_kept_and_completed(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    made = asdict(credentials.load_or_create(path))
    del made["metrics_token"]
    path.write_text(json.dumps(made | {"ci_token": "somebody else's"}))
    completed = credentials.load_or_create(path)
    assert asdict(completed).items() > made.items()
    stored = json.loads(path.read_text())
    assert (stored["metrics_token"], stored["ci_token"]) == (completed.metrics_token, "somebody else's")


def test_unreadable_secrets_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_text('{"redis": "x"}')
    with pytest.raises(SupervisorError, match="restore it from a backup"):
        credentials.load_or_create(path)
    assert path.read_text() == '{"redis": "x"}'


def test_long_home_gets_a_short_alias(tmp_path: Path) -> None:
    home = tmp_path / ("deep-" * 20)
    layout = layout_for(home, ROOT)
    layout_again = layout_for(home, ROOT)
    try:
        assert layout.home != home
        assert len(str(layout.home)) <= LONGEST_HOME
        layout.prepare()
        assert (home / "run").is_dir()
        assert layout_again == layout
        assert reset(layout, Terminal(StringIO()), lambda _: True)
        assert not layout.home.is_symlink()
    finally:
        layout.home.unlink(missing_ok=True)


def test_foreign_alias_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ("deep-" * 20)
    alias = layout_for(home, ROOT).home
    alias.unlink()
    alias.symlink_to(tmp_path)
    try:
        with pytest.raises(SupervisorError, match="is something else"):
            layout_for(home, ROOT)
    finally:
        alias.unlink()


def test_log_follows_whole_lines_and_rotates_under_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ROTATE_BYTES", 64)
    log = LogFile(tmp_path / "web.log")
    with log.open_for_child() as writer:
        writer.write(b"half a ")
        writer.flush()
        assert log.new_lines() == []
        writer.write(b"line\nwith \x1b[31mcolour\n" + b"x" * 60 + b"\n")
        writer.flush()
        assert log.new_lines()[:2] == ["half a line", "with colour"]
        log.rotate_if_large()
        writer.write(b"after\n")
        writer.flush()
        assert log.new_lines() == ["after"]
    assert log.path.read_text() == "after\n"
    assert log.path.with_suffix(".log.1").read_text().startswith("half a line\n")


def test_terminal_survives_a_closed_pipe(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from controlplane.supervisor.logs import Terminal\n"
        "terminal = Terminal()\n"
        "for number in range(2000): terminal.line('web', 'x' * 100)\n"
        "import os; os._exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 7


def test_terminal_without_colour_is_plain() -> None:
    stream = StringIO()
    Terminal(stream).line("web", "ready")
    assert stream.getvalue() == "web        │ ready\n"


def test_reset_wants_our_folder_a_yes_and_a_stopped_farrier(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "var", ROOT)
    foreign = Layout(tmp_path / "documents", ROOT)
    foreign.home.mkdir()
    with pytest.raises(SupervisorError, match="was not made by `make up`"):
        reset(foreign, Terminal(StringIO()), lambda _: True)

    layout.prepare()
    (layout.home / "keys").mkdir()
    with Lock(layout.lock), pytest.raises(SupervisorError, match="stop it with `make down`"):
        reset(layout, Terminal(StringIO()), lambda _: True)
    assert not reset(layout, Terminal(StringIO()), lambda _: False)
    assert (layout.home / "keys").is_dir()
    assert reset(layout, Terminal(StringIO()), lambda _: True)
    assert list(layout.home.iterdir()) == []


def test_identity_tells_a_reused_pid_apart() -> None:
    mine = procfs.identify(os.getpid())
    assert mine is not None
    assert procfs.is_alive(mine)
    assert not procfs.is_alive(replace(mine, start_time=mine.start_time - 1))
    assert procfs.age_s(mine) < time.monotonic()


def test_memory_is_exact_or_says_that_it_is_a_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = procfs.memory_of([os.getpid()])
    assert mine.is_exact
    assert mine.total_bytes > 1 << 20

    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name: engine\nVmRSS:\t    2048 kB\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/smaps_rollup").write_text("Rss: 9999 kB\nPss: 1024 kB\nPss_Anon: 512 kB\n")
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    assert str(procfs.memory_of([8])) == "1 MiB"
    assert str(procfs.memory_of([7, 8, 9])) == "≤ 3 MiB"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min"), (3_661, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_duration_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
