"""The line to the control plane: joining, renewing, accepting, refusing, and being away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from node.agent.board import Board
from node.agent.client import ControlPlane
from node.agent.errors import AgentError, NodePending
from node.agent.gateway import Listen
from node.agent.identity import IdentityStore, load_or_create_key
from node.agent.link import Link
from node.agent.settings import Settings
from node.agent.telemetry import Boot
from node.agent.trust import TrustStore
from tests.agent.keys import NOON, deployment
from tests.agent.node import until
from tests.agent.plane import Plane

BOOT = Boot(1, "01890000-0000-7000-8000-0000000000b0")


class Bench:
    """A link with all that it hangs on, but no loop."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        token = folder / "token"
        token.write_text(plane.join_token + "\n")
        settings = Settings(folder, plane.url, "node-1", "zone-a", Listen("127.0.0.1", 9), token, poll_interval_s=0.1)
        self.board = Board()
        self.trust = TrustStore(folder / "trust", plane.director.pin)
        self.store = IdentityStore(folder)
        control_plane = ControlPlane(plane.url, load_or_create_key(folder))
        self.assigned = 0
        self.link = Link(settings, control_plane, self.store, self.trust, self.board, BOOT, assigned=self._count)
        self.board.changed = self.link.report_soon

    def _count(self) -> None:
        self.assigned += 1


@pytest.fixture
def bench(plane: Plane, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(plane, tmp_path)
    yield made
    made.link.stop()


def test_it_joins_reports_and_takes_what_is_assigned(plane: Plane, bench: Bench) -> None:
    bench.link.poll_once()
    plane.assign(plane.director.bundle(3, [deployment()], node=plane.node), 3)
    bench.link.poll_once()
    bench.link.poll_once()
    assert bench.assigned == 1
    assert [poll.observed_sequence for poll in plane.polls] == [0, 0, 3]
    assert [poll.report_seq for poll in plane.polls] == [1, 2, 3]
    assert {str(poll.boot_id) for poll in plane.polls} == {BOOT.id}
    assert plane.polls[-1].gateway_url == "http://127.0.0.1:9"


def test_a_pending_node_waits_and_is_let_in(plane: Plane, bench: Bench) -> None:
    plane.refuse = (403, {"code": "node_pending"})
    with pytest.raises(NodePending):
        bench.link.poll_once()
    plane.refuse = None
    bench.link.poll_once()
    assert sum(path == "/agent/v1/enrol" for path in plane.seen) == 1


def test_an_expired_credential_is_renewed_before_the_poll(plane: Plane, bench: Bench) -> None:
    plane.expires = "2020-01-01T00:00:00Z"
    bench.link.poll_once()
    plane.expires = "2035-01-01T00:00:00Z"
    bench.link.poll_once()
    bench.link.poll_once()  # a fresh one is left alone
    talk = [path.rpartition("/")[2] for path in plane.seen]
    assert talk == ["enrol", "renew", "poll", "renew", "poll", "poll"]
    stored = bench.store.load()
    assert stored is not None
    assert stored.generation == plane.generation == 3


def test_a_refusal_is_told_once_and_told_until_it_arrives(plane: Plane, bench: Bench) -> None:
    bench.link.poll_once()
    plane.assign(plane.director.bundle(3, [deployment()], node=plane.node, signer="stranger"), 3)
    bench.link.poll_once()
    plane.refuse = (503, {"code": "away"})
    with pytest.raises(AgentError):
        bench.link.poll_once()
    plane.refuse = None
    for _ in range(3):
        bench.link.poll_once()
    told = [refusal for poll in plane.polls for refusal in poll.refusals]
    assert [(refusal.code, refusal.sequence) for refusal in told] == [("unknown_key", 3)]
    assert bench.trust.assignment is None


def test_an_expired_assignment_is_refused(plane: Plane, bench: Bench) -> None:
    plane.assign(plane.director.bundle(3, [deployment()], node=plane.node, issued=NOON - timedelta(days=9000)), 3)
    bench.link.poll_once()
    bench.link.poll_once()
    assert plane.refusals() == {"expired"}


def test_a_new_root_is_followed_before_the_assignment_that_needs_it(plane: Plane, bench: Bench) -> None:
    bench.link.poll_once()
    plane.director.epoch = 2
    plane.director.add_root(director="second director")
    plane.assign(plane.director.bundle(1, [deployment()], node=plane.node, signer="second director"), 1)
    bench.link.poll_once()
    assert bench.trust.root is not None
    assert bench.trust.root.version == 2
    assert bench.assigned == 1


def test_an_assignment_wakes_it_long_before_the_interval(plane: Plane, tmp_path: Path) -> None:
    made = Bench(plane, tmp_path)
    made.link._settings = Settings(tmp_path, plane.url, "node-1", "zone-a", Listen("127.0.0.1", 9), tmp_path / "token")
    plane.interval_s = 3_600.0
    made.link.start()
    until(lambda: any("/wait" in path for path in plane.seen), "it waits", 10)
    plane.assign(plane.director.bundle(3, [deployment()], node=plane.node), 3)
    until(lambda: made.assigned, "it was woken", 10)
    until(lambda: plane.polls[-1].observed_sequence == 3, "and says so at once", 10)
    made.link.stop()


def test_it_goes_on_when_the_control_plane_comes_back(plane: Plane, bench: Bench) -> None:
    bench.link.start()
    until(lambda: plane.polls, "it polls", 10)
    plane.refuse = (503, {"code": "away"})
    until(lambda: bench.link.condition().status == "false", "it notices", 10)
    assert bench.link.condition().reason == "away"
    plane.refuse = None
    until(lambda: bench.link.condition().status == "true", "it is back", 10)
