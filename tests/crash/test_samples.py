"""Twenty kills on the way of the samples, then a minute without a control plane: none is lost, none is double."""

import time

import pytest

from tests.crash.samples import SpoolCopies, check_samples
from tests.crash.site import BACK_TIMEOUT_S, Kill, Site
from tests.crash.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]
AWAY_S = 60.0


def test_no_sample_is_lost_or_double(site: Site, account: list[str]) -> None:
    copies = SpoolCopies(site, site.layout.home / "spool-copies")  # a hard link needs the same file system
    begun, killed_before = time.time(), len(site.kills)
    copies.start()
    for _ in range(4):
        for whom, place in (
            ("web", "telemetry.before_commit"),
            ("agent", "batch_written"),
            ("web", "telemetry.before_ack"),
            ("agent", "before_telemetry_ack"),
        ):
            site.arm(whom, place)
            site.died(place)
        site.kill(site.database_backend(), "PostgreSQL backend", "while samples arrive")
    count = site.control.pull_the_plug()
    site.kills.append(Kill("control plane", f"all its {count} processes at once", time.time()))
    time.sleep(AWAY_S)
    site.control.start()
    until("the control plane answers", lambda: bool(site.api.get("nodes")["results"]), BACK_TIMEOUT_S)
    copies.stop()
    stored = check_samples(site, copies)
    kills = len(site.kills) - killed_before
    assert kills >= 20
    account.append(f"samples: {kills} kills in {time.time() - begun:.0f} s; {stored} samples stored, each once")
