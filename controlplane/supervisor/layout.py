"""Where things lie under FARRIER_HOME."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from controlplane.supervisor.errors import SupervisorError

# A unix socket's path holds 107 bytes; the longest below the home is a node's: nodes/node-1/run/<socket>.
LONGEST_HOME = 60
MARKER = "FARRIER_HOME"
MARKER_TEXT = (
    "The state of a Farrier control plane lies in this folder. `make reset` empties only folders with this file.\n"
)


@dataclass(frozen=True)
class Layout:
    """Paths of one home. `home` may be a short alias of the real folder, for the sake of unix sockets."""

    home: Path
    root: Path  # the source tree: where manage.py is

    @property
    def run(self) -> Path:
        """Sockets, lock, process states."""
        return self.home / "run"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.home / "logs"

    @property
    def postgres(self) -> Path:
        """The embedded cluster's data."""
        return self.home / "pg"

    @property
    def redis(self) -> Path:
        """The embedded broker's data and configuration."""
        return self.home / "redis"

    @property
    def static(self) -> Path:
        """What collectstatic gathers and the edge serves."""
        return self.home / "static"

    @property
    def secrets(self) -> Path:
        """Generated passwords, mode 0600."""
        return self.home / "secrets.json"

    @property
    def lock(self) -> Path:
        """Held by the running supervisor."""
        return self.run / "supervisor.lock"

    @property
    def states(self) -> Path:
        """What runs, for `make status`."""
        return self.run / "processes.json"

    @property
    def web_socket(self) -> Path:
        """gunicorn listens here."""
        return self.run / "web.sock"

    @property
    def live_socket(self) -> Path:
        """uvicorn listens here."""
        return self.run / "live.sock"

    def node(self, name: str) -> Path:
        """Home of a node agent."""
        return self.home / "nodes" / name

    def node_homes(self) -> list[Path]:
        """Homes of all node agents that ever ran here."""
        nodes = self.home / "nodes"
        return sorted(path for path in nodes.iterdir() if path.is_dir()) if nodes.is_dir() else []

    def prepare(self) -> None:
        """Create the folders and the marker by which `make reset` recognises a home."""
        self.home.resolve().mkdir(parents=True, exist_ok=True)  # the alias may be there before the folder
        (self.home / MARKER).write_text(MARKER_TEXT)
        for folder in (self.run, self.logs, self.home / "nodes"):
            folder.mkdir(exist_ok=True)
        self.run.chmod(0o700)


def layout_for(home: Path, root: Path) -> Layout:
    """The layout of `home`, reached through a short symlink when its path is too long for unix sockets."""
    home = home.resolve()
    if len(os.fsencode(home)) <= LONGEST_HOME:
        return Layout(home, root)
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    alias = Path(tempfile.gettempdir()) / f"farrier-{os.getuid()}-{name}"
    try:
        alias.symlink_to(home)
    except FileExistsError:
        # In a world-writable folder somebody else may have laid it: ours, and pointing home, or not at all.
        if not alias.is_symlink() or alias.lstat().st_uid != os.getuid() or Path(os.readlink(alias)) != home:
            raise SupervisorError(
                "alias_taken",
                f"{alias} is needed as a short name of {home} but is something else: remove it, or set FARRIER_HOME "
                f"to a path of at most {LONGEST_HOME} bytes.",
            ) from None
    return Layout(alias, root)
