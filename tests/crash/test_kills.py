"""Real processes are killed in the middle of rollouts: it completes or rolls back, nothing is lost or stuck."""

import pytest

from tests.crash.hurt import kill_engine, kill_gateway, kill_helper, under_traffic
from tests.crash.rollout import MODEL, Rollout, champion, stages
from tests.crash.site import BACK_TIMEOUT_S, Site
from tests.crash.versions import publish
from tests.crash.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]


def test_good_version_completes(site: Site, account: list[str]) -> None:
    before = champion(site)
    version = publish(site.api, site.release_key, MODEL, is_good=True)
    with under_traffic(site, account, "good version"):
        site.arm("worker", "rollout.decided", "assignments.signed")
        site.arm("agent", "after_assignment_persisted", "mid_fetch", "after_spawn")
        rollout = Rollout(site, version, stages(10.0), "Good, through kills")
        site.died("rollout.decided", "assignments.signed", "after_assignment_persisted", "mid_fetch", "after_spawn")

        rollout.until_stage(0, is_ready=True)
        site.arm("web", "telemetry.before_ack")
        kill_engine(site, 1, before, "shadow")
        kill_helper(site, 2, "comparator", "shadow")
        site.died("telemetry.before_ack")

        rollout.until_stage(1, is_ready=True)
        kill_engine(site, 2, version, "canary")
        kill_gateway(site, 1, "canary")

        rollout.until_stage(2)
        site.arm("web", "poll.before_answer")
        site.died("poll.before_answer")
        site.arm("worker", "rollout.committed")
        site.arm("agent", "after_routes_written")
        rollout.approve()
        site.died("rollout.committed", "after_routes_written")
        rollout.until_phase("completed")
        until("it serves everywhere", lambda: rollout.serving(version), BACK_TIMEOUT_S)
    assert champion(site) == version


def test_bad_version_is_rolled_back(site: Site, account: list[str]) -> None:
    before = champion(site)
    version = publish(site.api, site.release_key, MODEL, is_good=False)
    with under_traffic(site, account, "bad version"):
        kill_helper(site, 1, "zygote", "before the rollout")
        site.arm("agent", "before_rename")
        rollout = Rollout(site, version, stages(0.0), "Bad, through kills")
        site.died("before_rename")
        site.kill_service("beat", "shadow")

        site.arm("web", "telemetry.before_commit")
        site.died("telemetry.before_commit")
        site.arm("worker", "rollout.applied")
        site.died("rollout.applied")
        rollout.until_phase("rolling_back", "rolled_back")
        site.kill_service("postgres", "rollback")
        until("PostgreSQL is back", lambda: site.is_back("postgres"), BACK_TIMEOUT_S)
        row = rollout.until_phase("rolled_back")
        assert "similarity" in row["decision"].lower()
        until("the version before serves everywhere", lambda: rollout.serving(before), BACK_TIMEOUT_S)
        until("beat is back", lambda: site.is_back("beat"), BACK_TIMEOUT_S)
    assert champion(site) == before
    assert [hold["version"] for hold in site.api.all("holds", active="true")] == [version]


def test_broker_wiped_and_database_killed(site: Site, account: list[str]) -> None:
    version = publish(site.api, site.release_key, MODEL, is_good=True)
    with under_traffic(site, account, "no broker"):
        site.arm("web", "poll.stored")
        rollout = Rollout(site, version, stages(5.0), "Good, with a broker that forgets")
        site.wipe_broker()
        site.died("poll.stored")

        rollout.until_stage(0, is_ready=True)
        site.wipe_broker()
        site.arm("agent", "before_telemetry_ack")
        site.kill_service("redis", "shadow")
        site.died("before_telemetry_ack")
        until("the broker is back", lambda: site.is_back("redis"), BACK_TIMEOUT_S)

        rollout.until_stage(1)
        site.wipe_broker()
        site.kill(site.database_backend(), "PostgreSQL backend", "canary")
        site.kill_service("worker", "canary")
        rollout.until_stage(2)
        rollout.approve()
        rollout.until_phase("completed")
        until("it serves everywhere", lambda: rollout.serving(version), BACK_TIMEOUT_S)
        until("the worker is back", lambda: site.is_back("worker"), BACK_TIMEOUT_S)
    assert champion(site) == version
