"""What is done to an installation under traffic, and the account that is demanded of it afterwards."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.crash.invariants import (
    SequenceWatch,
    check_audit,
    check_failures,
    check_nothing_stuck,
    check_promotions,
    check_rows,
)
from tests.crash.rollout import MODEL
from tests.crash.site import BACK_TIMEOUT_S, Site
from tests.crash.traffic import Traffic
from tests.crash.versions import WIDTH
from tests.crash.waiting import until


@contextmanager
def under_traffic(site: Site, account: list[str], what: str) -> Iterator[None]:
    """Send requests while the block runs, then hold the installation against everything that must be so."""
    begun, killed_before = time.time(), len(site.kills)
    traffic, sequences = Traffic(site.ports, MODEL, WIDTH), SequenceWatch(site)
    sequences.start()
    traffic.start()
    try:
        yield
    finally:
        traffic.stop()
    lasted_s = time.time() - begun
    refused = dict(site.refusals)
    site.refusals.clear()
    kills, requests = site.kills[killed_before:], traffic.account()
    check_nothing_stuck(site)
    accepted = sequences.check()
    check_promotions(site)
    failed = check_failures(site, requests)
    twice = check_rows(site, requests, [kill.at for kill in kills if kill.whom.startswith("engine")])
    chain = check_audit(site)
    account += [
        f"{what}: {len(kills)} kills in {lasted_s:.0f} s ({time.time() - begun:.0f} s with the checks)",
        f"  {', '.join(f'{kill.whom} at {kill.where} after {kill.at - begun:.0f} s' for kill in kills)}",
        f"  {len(requests.answered)} requests answered, each with its row ({twice} retried by a gateway have two), "
        f"slowest {requests.slowest_s:.1f} s; {failed.total()} failed {dict(failed) or ''}",
        f"  {accepted} assignments accepted in order; REST reads refused meanwhile: {refused or 'none'}; {chain}",
    ]


def kill_engine(site: Site, number: int, version: int, where: str) -> None:
    """SIGKILL a serving engine; the gateway waits for its successor, so that no request may fail."""
    pid = site.engine_pid(number, MODEL, version)
    assert pid is not None, f"node-{number} has no ready engine of v{version}"
    site.kill(pid, f"engine of v{version} on node-{number}", where)
    until(
        f"another engine of v{version} is ready on node-{number}",
        lambda: site.engine_pid(number, MODEL, version) not in (None, pid),
        BACK_TIMEOUT_S,
    )


def kill_gateway(site: Site, number: int, where: str) -> None:
    """SIGKILL a gateway; requests to it fail until the agent has started another."""
    with site.outage(number, f"gateway of node-{number}"):
        pid = site.kill_on_node(number, "gateway", where)
        until("another gateway runs", lambda: site.is_replaced(number, "gateway", pid), BACK_TIMEOUT_S)
        until("it takes connections", lambda: site.gateway_answers(number), BACK_TIMEOUT_S)


def kill_helper(site: Site, number: int, name: str, where: str) -> None:
    """SIGKILL a comparator or fork server and see another one in its place."""
    pid = site.kill_on_node(number, name, where)
    until(f"another {name} runs", lambda: site.is_replaced(number, name, pid), BACK_TIMEOUT_S)
