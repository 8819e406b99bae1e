"""The agent API over HTTP: who gets in, what it stores, and what one node may read of another (nothing)."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from aifb.header import HEADER_BYTES
from aifb.tree import LeafTable
from apps.access.actors import Actor
from apps.audit.models import Event, RestoreEpoch
from apps.fleet import assignments, files, services
from apps.fleet.models import Condition, Node, NodePhase, Nonce, Refusal, ReportedDeployment
from protocol.messages import PollResponse, Role
from tests.fleet.builders import Host


def code(answer):
    assert answer["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


def node_of(agent):
    return Node.objects.get(pk=agent.node)


# who gets in


def test_first_poll_makes_the_node_active_and_brings_its_assignment(agent, now):
    assignments.compile_assignments(now)
    answer = agent.poll()
    assert answer.status_code == 200
    orders = PollResponse.model_validate_json(answer.content)
    assert (orders.phase, orders.interval_s, orders.root_version) == ("active", 30.0, 1)
    assert orders.assignment is not None
    assert node_of(agent).phase == NodePhase.ACTIVE
    assert node_of(agent).last_seen_at is not None


def test_a_known_assignment_is_not_sent_again(agent, now):
    assignments.compile_assignments(now)
    issued = node_of(agent).assignment.issued.isoformat()
    known = {"observed_epoch": 1, "observed_sequence": 1}
    assert agent.poll(**known, observed_issued=issued).json()["assignment"] is None
    assert agent.poll(**known).json()["assignment"] is not None


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_a_wrong_clock_is_answered_with_a_challenge_that_lets_it_in(agent, ahead_s):
    agent.skew_s = ahead_s
    refused = agent.poll()
    assert code(refused) == (401, "clock_skew")
    problem = refused.json()
    assert abs(problem["server_time"] - datetime.now(UTC).timestamp()) < 30
    assert agent.get("/agent/v1/root?after=0", challenge=problem["challenge"]).status_code == 200


def test_a_challenge_is_good_for_its_node_alone(agent, enrolled):
    agent.skew_s = 3_600
    challenge = agent.poll().json()["challenge"]
    other = enrolled("node-2")
    other.skew_s = 3_600
    assert code(other.get("/agent/v1/root?after=0", challenge=challenge)) == (401, "clock_skew")
    assert code(agent.get("/agent/v1/root?after=0", challenge="1." + "0" * 64)) == (401, "clock_skew")


def test_a_repeated_request_is_refused(agent):
    assert agent.get("/agent/v1/root?after=0", nonce="ab" * 16).status_code == 200
    assert code(agent.get("/agent/v1/root?after=0", nonce="ab" * 16)) == (401, "nonce_replayed")


def test_another_nodes_nonce_does_not_count(agent, enrolled):
    other = enrolled("node-2")
    assert agent.get("/agent/v1/root?after=0", nonce="ab" * 16).status_code == 200
    assert other.get("/agent/v1/root?after=0", nonce="ab" * 16).status_code == 200


def test_a_refused_request_spends_no_nonce(agent):
    agent.get("/agent/v1/root?after=0", nonce="ab" * 16, generation=9)
    assert not Nonce.objects.exists()


@pytest.mark.parametrize(
    ("bent", "status", "expected"),
    [
        ({"protocol": 0}, 426, "protocol_too_old"),
        ({"node": "11111111-1111-7111-8111-111111111111"}, 401, "unknown_node"),
        ({"node": "node-1"}, 401, "bad_signature_headers"),
        ({"nonce": "zz"}, 401, "bad_signature_headers"),
        ({"time": "soon"}, 401, "bad_signature_headers"),
        ({"time": "nan"}, 401, "clock_skew"),
        ({"generation": 7}, 403, "generation_stale"),
    ],
)
def test_bent_headers(agent, bent, status, expected):
    assert code(agent.get("/agent/v1/root?after=0", **bent)) == (status, expected)


def test_what_is_signed_is_what_counts(agent):
    body = json.dumps({"boot_id": str(uuid4()), "report_seq": 1, "agent_version": "1.0"}).encode()
    headers = agent.headers("POST", "/agent/v1/poll", body)

    def send(target, sent):
        return agent.client.generic("POST", target, sent, content_type="application/json", headers=headers)

    assert code(send("/agent/v1/poll", body.replace(b"1.0", b"1.1"))) == (401, "bad_signature")
    assert code(send("/agent/v1/poll?x=1", body)) == (401, "bad_signature")
    assert code(agent.client.post("/agent/v1/poll", body, content_type="application/json")) == (
        401,
        "bad_signature_headers",
    )
    assert send("/agent/v1/poll", body).status_code == 200


def test_long_bodies_are_refused_unread(agent):
    assert code(agent.send("POST", "/agent/v1/renew", b" " * 2_000)) == (413, "body_too_long")


def test_an_expired_credential_may_only_renew(agent, now):
    Node.objects.update(credential_expires_at=now)
    assert code(agent.poll()) == (401, "credential_expired")
    assert agent.renew().json()["generation"] == 2


@pytest.mark.parametrize(
    ("lock", "expected"),
    [(services.quarantine_node, "node_quarantined"), (services.ban_node, "node_banned")],
)
def test_locked_nodes_are_out(agent, world, now, lock, expected):
    admin = Actor.person(world.admin)
    lock(node_of(agent), actor=admin, reason="It misbehaves.", now=now)
    assert code(agent.poll()) == (403, expected)
    assert code(agent.renew()) == (403, expected)


def test_a_pending_node_waits(agent):
    Node.objects.update(phase=NodePhase.PENDING)
    assert code(agent.poll()) == (403, "node_pending")


# generations


def test_the_previous_generation_renews_again_until_the_new_one_is_used(agent):
    assert agent.poll().status_code == 200
    first = agent.renew().json()
    again = agent.renew().json()  # the answer was lost
    assert (first["generation"], again["generation"]) == (2, 2)
    assert agent.poll().status_code == 200  # and a poll that was under way is served
    agent.generation = 2
    assert agent.poll().status_code == 200
    agent.generation = 1
    assert code(agent.poll()) == (403, "generation_stale")
    assert node_of(agent).phase == NodePhase.ACTIVE


def test_a_clone_is_locked_out_at_its_renewal(agent):
    agent.renew()
    agent.generation = 2
    agent.poll()
    agent.generation = 1  # the clone knows the key and the old generation
    assert code(agent.renew()) == (403, "clone_suspected")
    assert node_of(agent).phase == NodePhase.QUARANTINED
    assert Event.objects.filter(verb="node.clone_suspected", object_id=str(agent.node)).count() == 1
    agent.generation = 2
    assert code(agent.poll()) == (403, "node_quarantined")


def test_after_a_restore_a_renewed_node_gets_back_in(agent, now):
    assert agent.poll().status_code == 200
    agent.generation = 3
    assert code(agent.poll()) == (403, "generation_stale")
    RestoreEpoch.objects.create(epoch=99, at=datetime.now(UTC), reason="The disk died.")
    assert agent.poll().status_code == 200
    assert node_of(agent).credential_generation == 3
    agent.generation = 4  # heard of since the restore: no second time
    assert code(agent.poll()) == (403, "generation_stale")


def test_after_a_restore_a_node_takes_over_its_generation_once(agent):
    """Who holds a copy of the key may claim any generation: the second claim shows that there are two."""
    RestoreEpoch.objects.create(epoch=99, at=datetime.now(UTC), reason="The disk died.")
    agent.generation = 3
    assert agent.get("/agent/v1/root?after=0").status_code == 200
    agent.generation = 9
    assert code(agent.get("/agent/v1/root?after=0")) == (403, "generation_stale")


def test_a_node_that_enrolled_after_the_restore_has_nothing_to_take_over(agent):
    RestoreEpoch.objects.create(epoch=99, at=node_of(agent).created_at - timedelta(seconds=1), reason="The disk died.")
    agent.generation = 3
    assert code(agent.get("/agent/v1/root?after=0")) == (403, "generation_stale")


def test_after_a_restore_a_node_may_begin_with_a_renewal(agent):
    agent.poll()
    RestoreEpoch.objects.create(epoch=99, at=datetime.now(UTC), reason="The disk died.")
    agent.generation = 3
    answer = agent.renew()
    assert (answer.status_code, answer.json()["generation"]) == (200, 4)
    assert node_of(agent).phase == NodePhase.ACTIVE
    assert Event.objects.filter(verb="node.generation_adopted").count() == 1


@pytest.mark.parametrize("generation", [1 << 31, 1 << 200])
def test_a_generation_that_no_column_holds_is_a_stale_one(agent, generation):
    RestoreEpoch.objects.create(epoch=99, at=datetime.now(UTC), reason="The disk died.")
    assert code(agent.get("/agent/v1/root?after=0", generation=generation)) == (403, "generation_stale")


# what a poll stores


def test_characters_that_no_column_holds_do_not_silence_a_node(agent):
    """A refusal may quote a hostile file; were its poll refused for that, the node would never be heard again."""
    quoted = report_of(uuid4(), state="failed", reason_code="bad\0code", reason="Tensor «a\0b» is unknown.")
    refusal = {"code": "bad_file", "reason": "x\0y", "digest": "\0", "at": datetime.now(UTC).isoformat()}
    condition = {"type": "DiskSpace", "status": "true", "reason": "\0", "message": "\0"}
    answer = agent.poll(
        deployments=[quoted], refusals=[refusal], conditions=[condition], gateway_url="http://\0", agent_version="\0"
    )
    assert answer.status_code == 200
    assert ReportedDeployment.objects.get().reason == "Tensor «ab» is unknown."


def test_what_the_database_cannot_hold_is_the_senders_fault(world, now, client):
    token = services.create_join_token(pool=world.pool, actor=world.actor, now=now)
    request = Host("node-9").request(token, hardware={"board": "a\0b"})
    answer = client.post("/agent/v1/enrol", request.model_dump_json(), content_type="application/json")
    assert code(answer) == (400, "bad_value")


def report_of(deployment, digest="a" * 128, state="running", **more):
    since = datetime.now(UTC).isoformat()
    return {"id": str(deployment), "digest": digest, "state": state, "since": since, **more}


def test_reports_are_stored_as_they_come_and_vanish_with_them(agent):
    deployment = uuid4()
    agent.poll(deployments=[report_of(deployment, state="failed", reason_code="chunk_mismatch", reason="Chunk 3.")])
    row = ReportedDeployment.objects.get()
    assert (row.deployment_id, row.state, row.reason_code) == (deployment, "failed", "chunk_mismatch")
    agent.poll(deployments=[report_of(deployment, weight_in_force=10)])
    row = ReportedDeployment.objects.get()
    assert (row.state, row.reason, row.weight_in_force) == ("running", "", 10)
    agent.poll()
    assert not ReportedDeployment.objects.exists()


def test_older_reports_change_nothing(agent):
    deployment = uuid4()
    old_boot = agent.boot_id
    agent.report_seq = 4
    agent.poll(deployments=[report_of(deployment)])
    agent.report_seq = 3
    agent.poll()  # the same number again: a repeat
    assert ReportedDeployment.objects.count() == 1
    agent.boot_id, agent.report_seq = uuid4(), 0
    agent.poll(deployments=[report_of(deployment, state="loading")])
    agent.boot_id, agent.report_seq = old_boot, 100
    assert agent.poll().status_code == 200
    assert ReportedDeployment.objects.get().state == "loading"
    assert node_of(agent).boot_number == 2


def test_conditions_keep_since_until_their_status_changes(agent):
    agent.poll(conditions=[{"type": "Ready", "status": "true"}])
    since = Condition.objects.get().since
    agent.poll(conditions=[{"type": "Ready", "status": "true", "reason": "Still"}])
    assert (Condition.objects.get().since, Condition.objects.get().reason) == (since, "Still")
    agent.poll(conditions=[{"type": "Ready", "status": "false"}])
    assert Condition.objects.get().since > since
    agent.poll()
    assert not Condition.objects.exists()


def test_a_poll_with_nothing_new_costs_few_queries(agent, now, django_assert_max_num_queries):
    """Node, nonce; lock, deployments, conditions, node, assignment; and a savepoint's two."""
    assignments.compile_assignments(now)
    told = {"deployments": [report_of(uuid4())], "conditions": [{"type": "Ready", "status": "true"}]}
    agent.poll(**told)
    with django_assert_max_num_queries(9):
        assert agent.poll(**told).status_code == 200


def test_a_refusal_told_twice_is_kept_once(agent):
    refusal = {"code": "expired", "reason": "Too old.", "sequence": 3, "at": datetime.now(UTC).isoformat()}
    agent.poll(refusals=[refusal])
    agent.poll(refusals=[refusal])
    assert Refusal.objects.get().code == "expired"


def test_a_sequence_that_we_cannot_have_signed_tells_a_person_once(agent, now):
    assignments.compile_assignments(now)
    for _ in range(2):
        agent.poll(observed_epoch=1, observed_sequence=1 << 40)
    assert Event.objects.filter(verb="node.sequence_refused").count() == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"report_seq": 0},
        {"report_seq": 1 << 63},
        {"observed_sequence": -1},
        {"clock_offset_s": float("nan")},
        {"deployments": [{"id": "x"}]},
        {"conditions": [{"type": "Ready", "status": "maybe"}]},
    ],
)
def test_malformed_reports_are_refused_with_the_field(agent, bad):
    assert code(agent.poll(**bad)) == (400, "bad_message")


# artifacts


@pytest.fixture
def served(world, agent, now):
    """An artifact assigned to the agent's node, and its file in the store."""
    artifact = world.artifact(1)
    spec = services.DesiredSpec(artifact, Role.BASELINE, 100)
    services.set_desired(node=node_of(agent), model=world.model, specs=[spec])
    assignments.compile_assignments(now)
    return artifact, files.artifact_path(artifact.digest)


def test_an_assigned_artifact_comes_with_manifest_and_leaves(agent, served):
    artifact, path = served
    base = f"/agent/v1/artifacts/{artifact.digest}"
    assert agent.get(f"{base}/manifest").content == bytes(artifact.manifest)
    table = agent.get(f"{base}/leaves").content
    header, leaves = table[:HEADER_BYTES], table[HEADER_BYTES:]
    total = artifact.blob.total_bytes
    LeafTable.parse(header, leaves, bytes.fromhex(artifact.digest), total)  # the node's own check
    whole = agent.get(f"{base}/data")
    assert (whole.status_code, b"".join(whole.streaming_content)) == (200, path.read_bytes())


@pytest.mark.parametrize(
    ("asked", "span"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=100-199", slice(100, 200)),
        ("bytes=2000-", slice(2000, None)),
        ("bytes=-5", slice(-5, None)),
        ("bytes=2400-999999999", slice(2400, None)),
        ("bytes=-999999999", slice(0, None)),
    ],
)
def test_ranges(agent, served, asked, span):
    artifact, path = served
    content = path.read_bytes()
    start, end, _ = span.indices(len(content))
    target = f"/agent/v1/artifacts/{artifact.digest}/data"
    answer = agent.get(target, extra_headers={"Range": asked})
    assert answer.status_code == 206
    assert answer["Content-Range"] == f"bytes {start}-{end - 1}/{len(content)}"
    assert int(answer["Content-Length"]) == end - start
    assert b"".join(answer.streaming_content) == content[start:end]


@pytest.mark.parametrize(
    "asked", ["bytes=999999999-", "bytes=5-4", "bytes=-0", "bytes=-", "bytes=0-1,3-4", "chunks=0-1"]
)
def test_ranges_that_cannot_be(agent, served, asked):
    artifact, path = served
    target = f"/agent/v1/artifacts/{artifact.digest}/data"
    answer = agent.get(target, extra_headers={"Range": asked})
    assert code(answer) == (416, "range_not_satisfiable")
    assert answer["Content-Range"] == f"bytes */{path.stat().st_size}"


@pytest.mark.parametrize("part", ["manifest", "leaves", "data"])
def test_a_node_reads_nothing_of_another(agent, served, enrolled, part):
    other = enrolled("node-2")
    artifact, _ = served
    assert code(other.get(f"/agent/v1/artifacts/{artifact.digest}/{part}")) == (403, "not_assigned")
    assert code(other.get(f"/agent/v1/artifacts/{'0' * 128}/{part}")) == (403, "not_assigned")


def test_a_range_goes_out_by_sendfile_and_the_connection_lives_on(tmp_path):
    """What gunicorn does with a file: socket.sendfile from where the descriptor stands, then seek."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 100)
    answer = files.serve(path, "bytes=1000-1999")
    span = answer.file_to_stream
    ours, theirs = socket.socketpair()
    with ours, theirs:
        offset = os.lseek(span.fileno(), 0, os.SEEK_CUR)
        assert ours.sendfile(span, offset=offset, count=int(answer["Content-Length"])) == 1_000
        assert theirs.recv(2_000) == path.read_bytes()[1_000:2_000]
    span.close()


def test_a_lost_file_is_told(agent, served):
    artifact, path = served
    path.unlink()
    assert code(agent.get(f"/agent/v1/artifacts/{artifact.digest}/data")) == (404, "artifact_missing")


def test_spent_nonces_are_forgotten_when_their_requests_are_too_old(agent, now):
    agent.get("/agent/v1/root?after=0")
    assert services.forget_nonces(now=now + timedelta(seconds=170)) == 0
    assert services.forget_nonces(now=now + timedelta(seconds=200)) == 1


def test_the_root_chain_from_a_version_on(agent):
    assert len(agent.get("/agent/v1/root?after=0").json()["trust_root"]) == 1
    assert agent.get("/agent/v1/root?after=1").json()["trust_root"] == []
    assert code(agent.get("/agent/v1/root?after=x")) == (400, "bad_after")
