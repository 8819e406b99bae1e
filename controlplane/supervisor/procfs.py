"""What /proc knows: identity and memory of processes, and who listens on a port. Linux only."""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TCP_LISTEN = "0A"


@dataclass(frozen=True)
class ProcessId:
    """A pid alone is reused; a pid with its start time (field 22 of /proc/pid/stat, clock ticks) is not."""

    pid: int
    start_time: int


def _stat_fields(pid: int) -> list[str] | None:
    try:
        raw = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name may hold spaces and parentheses: everything after the last ')' is numbers.
    return raw.rpartition(")")[2].split()


def identify(pid: int) -> ProcessId | None:
    """Identity of a live process; None when it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] == "Z":
        return None
    return ProcessId(pid, int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    """True while exactly this process, not a later one with the same pid, runs."""
    return identify(process.pid) == process


def age_s(process: ProcessId) -> float:
    """Seconds since the process started."""
    uptime_s = float((PROC / "uptime").read_text().split()[0])
    return max(0.0, uptime_s - process.start_time / os.sysconf("SC_CLK_TCK"))


def command_line(pid: int) -> str:
    """Program and arguments, separated by blanks; empty when the process is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def children_of_all() -> dict[int, list[int]]:
    """Parent pid → child pids of every visible process."""
    tree: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
            tree.setdefault(int(fields[1]), []).append(int(entry.name))
    return tree


def descendants(pid: int, tree: dict[int, list[int]]) -> list[int]:
    """`pid` and everything below it."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        todo.extend(tree.get(current, ()))
    return found


def session_members(leader: ProcessId) -> list[ProcessId]:
    """Live processes in the session that `leader` opened, itself included, also once the leader is gone.

    The kernel gives no new process a number that still names a session; if the leader's number has a new owner, the
    session is gone.
    """
    now = identify(leader.pid)
    if now is not None and now != leader:
        return []
    members = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) and int(fields[3]) == leader.pid:
            member = identify(int(entry.name))
            if member is not None and member.start_time >= leader.start_time:
                members.append(member)
    return members


@dataclass(frozen=True)
class Memory:
    """Proportional set size: shared pages are counted once, in shares. Not exact: an upper bound."""

    total_bytes: int = 0
    is_exact: bool = True

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.total_bytes + other.total_bytes, self.is_exact and other.is_exact)

    def __str__(self) -> str:
        return f"{'' if self.is_exact else '≤ '}{self.total_bytes / 2**20:,.0f} MiB"


def memory_of(pids: list[int]) -> Memory:
    """Memory of these processes together."""
    return sum((_memory(PROC / str(pid)) for pid in pids), Memory())


def _memory(process: Path) -> Memory:
    with suppress(OSError):
        return Memory(_kilobytes(process / "smaps_rollup", "Pss:") * 1024)
    with suppress(OSError):
        # A sandboxed engine shows its pages to root alone; what is resident, shared or not, everybody may know.
        return Memory(_kilobytes(process / "status", "VmRSS:") * 1024, is_exact=False)
    return Memory()  # ended meanwhile


def _kilobytes(file: Path, label: str) -> int:
    return sum(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(label))


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True when a listener could be opened now."""
    with socket.socket() as probe:
        # As servers do: without it a port in TIME_WAIT would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port on loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listener_of(port: int) -> tuple[int, str] | None:
    """(pid, command name) of who listens on a TCP port; None when it can't be found (another user's process)."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and sockets & _open_files(entry):
            return int(entry.name), (entry / "comm").read_text().strip()
    return None


def _open_files(process: Path) -> set[str]:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return set()  # ended meanwhile, or another user's
    targets = set()
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            targets.add(os.readlink(descriptor))
    return targets


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for row in rows:
            columns = row.split()
            if columns[3] == TCP_LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                inodes.add(columns[9])
    return inodes
