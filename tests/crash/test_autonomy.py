"""The control plane is gone for longer than anything it signed is valid; nodes serve, restart, and refuse what is old.

What a day does at 24 h happens here in half a minute: assignments live 20 s, credentials 30 s (conftest's site).
"""

import base64
import json
import time
from datetime import UTC, datetime

import pytest

from tests.crash.hurt import kill_engine, kill_gateway, kill_helper, under_traffic
from tests.crash.rollout import MODEL, Rollout, champion, stages
from tests.crash.site import BACK_TIMEOUT_S, NODES, Kill, Site
from tests.crash.versions import publish
from tests.crash.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


def accepted_until(site: Site, number: int) -> datetime:
    """When the assignment that a node follows expires."""
    stored = site.node_json(number, "trust/assignment.json")
    statement = json.loads(base64.b64decode(stored["bundle"]["statement"]))
    return datetime.fromisoformat(statement["expires"])


def credential_until(site: Site, number: int) -> datetime:
    """When a node's credential expires."""
    return datetime.fromisoformat(site.node_json(number, "identity.json")["expires"])


def have_run_out(site: Site) -> bool:
    """Whether every node's assignment and credential are past their time."""
    papers = [ends(site, number) for ends in (accepted_until, credential_until) for number in range(1, NODES + 1)]
    return max(papers) < datetime.now(UTC)


def kill_agent(site: Site, number: int) -> None:
    """SIGKILL an agent; the fleet's supervisor starts another, which adopts what runs."""
    before = site.fleet.rows()[f"agent-{number}"]
    assert before.pid is not None
    site.kill(before.pid, f"agent of node-{number}", "control plane away")
    until(
        f"another agent of node-{number} runs",
        lambda: site.node_json(number, "processes.json")["agent"]["pid"] != before.pid,
        BACK_TIMEOUT_S,
    )


def refusals(site: Site) -> set[tuple[str, str]]:
    """(node, code) of everything that nodes have refused."""
    query = "SELECT n.name, r.code FROM fleet_refusal AS r JOIN fleet_node AS n ON n.id = r.node_id"
    return {(row["name"], row["code"]) for row in site.rows(query)}


def test_engines_outlive_the_control_plane(site: Site, account: list[str]) -> None:
    before = champion(site)
    version = publish(site.api, site.release_key, MODEL, is_good=True)
    with under_traffic(site, account, "control plane away"):
        count = site.control.pull_the_plug()
        site.kills.append(Kill("control plane", f"all its {count} processes at once", time.time()))
        until("assignments and credentials have run out", lambda: have_run_out(site), BACK_TIMEOUT_S)

        kill_engine(site, 1, before, "control plane away")
        kill_agent(site, 1)
        kill_helper(site, 2, "zygote", "control plane away")
        kill_engine(site, 2, before, "control plane away")
        kill_gateway(site, 2, "control plane away")
        kill_agent(site, 2)
        kill_engine(site, 2, before, "control plane away, agent just back")

        # it comes back with a director whose assignments have expired before they arrive
        site.control.start(FARRIER_ASSIGNMENT_LIFE_S="0.001")
        rollout = Rollout(site, version, stages(0.0), "Good, but its orders come too late")
        late = {(f"node-{number}", "expired") for number in range(1, NODES + 1)}
        until("both nodes refuse what has expired", lambda: late <= refusals(site), BACK_TIMEOUT_S)
        assert rollout.serving_versions() == {before}
        assert [site.engine_pid(number, MODEL, version) for number in range(1, NODES + 1)] == [None] * NODES

        site.control.pull_the_plug()
        site.control.start()
        rollout.until_stage(2)
        rollout.approve()
        rollout.until_phase("completed")
        until("it serves everywhere", lambda: rollout.serving(version), BACK_TIMEOUT_S)
    assert champion(site) == version
