"""What agents have sampled, kept aside file by file, and held against what the control plane stores."""

import os
from pathlib import Path
from threading import Event, Thread

import numpy as np

from node.agent.hardware.packed import GPU_PREFIX, read_packed
from tests.crash.site import NODES, Site
from tests.crash.waiting import WaitedInVain, until

LOOK_EVERY_S = 0.05  # a file of the spool lives for seconds
DRAIN_TIMEOUT_S = 120.0
SAME_S = 0.4  # samples are a second apart; the stored time has the clock's measured offset on top

_STORED = """
SELECT extract(epoch FROM s.time)::float8 AS time FROM gpu_sample AS s JOIN fleet_gpu AS g ON g.number = s.gpu
WHERE g.uuid = %(uuid)s AND extract(epoch FROM s.time) BETWEEN %(first)s AND %(last)s ORDER BY s.time
"""

# A batch that is sent again is the same to the byte, its clock's offset included.
_DOUBLE = "SELECT gpu, time, count(*) FROM gpu_sample GROUP BY gpu, time HAVING count(*) > 1"


class SpoolCopies:
    """Links every file of samples that agents begin: its bytes outlive the agent's deleting it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self._folder.mkdir()
        self._known: set[tuple[int, int]] = set()
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Take up no further files."""
        self._stop.set()
        self._thread.join()

    def times(self) -> dict[str, np.ndarray]:
        """When each GPU was sampled, in Unix seconds of its node."""
        found: dict[str, list[np.ndarray]] = {}
        for path in self._folder.iterdir():
            packed = read_packed(path)
            for position, uuid in enumerate(packed.keys if packed else ()):
                rows = packed.rows[packed.rows["key"] == position]  # type: ignore[union-attr]
                found.setdefault(uuid, []).append(rows["time_unix_us"] / 1e6)
        return {uuid: np.sort(np.concatenate(parts)) for uuid, parts in found.items()}

    def _run(self) -> None:
        while not self._stop.is_set():
            self._look()
            self._stop.wait(LOOK_EVERY_S)

    def _look(self) -> None:
        for number in range(1, NODES + 1):
            for path in (self._site.node_home(number) / "spool").glob(f"{GPU_PREFIX}-*"):
                try:
                    stat = path.stat()
                    if (number, stat.st_ino) not in self._known:
                        os.link(path, self._folder / f"{number}-{path.stem}-{stat.st_ino}")
                except FileNotFoundError:
                    continue  # published under its other name just now; the next look finds it
                self._known.add((number, stat.st_ino))


def check_samples(site: Site, copies: SpoolCopies) -> int:
    """Every sample that an agent has written is stored, and none is stored twice; returns how many were written.

    More may be stored than was copied: the first file after a start may live too shortly to be seen.
    """
    written = copies.times()
    assert len(written) == 8 * NODES, f"samples of {len(written)} GPUs were written"
    try:
        until("every sample is stored", lambda: not _missing(site, written), DRAIN_TIMEOUT_S)
    except WaitedInVain as late:
        missing = _missing(site, written)
        raise AssertionError(f"{sum(missing.values())} samples of {len(missing)} GPUs are lost: {missing}") from late
    assert site.rows(_DOUBLE) == []
    return sum(map(len, written.values()))


def _missing(site: Site, written: dict[str, np.ndarray]) -> dict[str, int]:
    counts = {uuid: int(np.sum(~_are_stored(site, uuid, times))) for uuid, times in written.items()}
    return {uuid: count for uuid, count in counts.items() if count}


def _are_stored(site: Site, uuid: str, times: np.ndarray) -> np.ndarray:
    rows = site.rows(_STORED, uuid=uuid, first=float(times[0]) - SAME_S, last=float(times[-1]) + SAME_S)
    stored = np.array([-np.inf, *(row["time"] for row in rows), np.inf])
    after = np.searchsorted(stored, times)
    return np.minimum(stored[after] - times, times - stored[after - 1]) < SAME_S
