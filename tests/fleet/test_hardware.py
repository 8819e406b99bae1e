"""GPUs as their hosts list them, at enrolment and at the first poll of a boot."""

from __future__ import annotations

from typing import Any

import pytest

from apps.audit.models import Event
from apps.fleet.hardware import NOT_LISTED, mark_gpus
from apps.fleet.models import Gpu, GpuHealth, Node, Refusal

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(enrolled):
    return enrolled("node-1")


def gpus(*indices: int, prefix: str = "GPU") -> dict[str, Any]:
    listed = [
        {"uuid": f"{prefix}-{index}", "index": index, "name": "H100", "memory_bytes": 80 << 30, "simulated": True}
        for index in indices
    ]
    return {"gpus": listed, "cpu_count": 8}


def health(uuid: str) -> tuple[str, str]:
    gpu = Gpu.objects.get(pk=uuid)
    return gpu.health, gpu.health_reason


def test_the_first_poll_of_a_boot_tells_what_changed(agent):
    assert agent.poll(hardware=gpus(0, 1)).status_code == 200
    rows = list(Gpu.objects.order_by("index").values_list("uuid", "index", "simulated"))
    assert rows == [("GPU-0", 0, True), ("GPU-1", 1, True)]
    assert Node.objects.get().hardware["cpu_count"] == 8
    agent.poll()  # says nothing of hardware, so nothing changes
    assert Gpu.objects.count() == 2


def test_a_gpu_that_is_no_longer_listed_is_lost_and_keeps_its_number(agent, now):
    agent.poll(hardware=gpus(0, 1))
    number = Gpu.objects.get(pk="GPU-1").number
    agent.poll(hardware=gpus(0))
    assert health("GPU-1") == (GpuHealth.LOST, NOT_LISTED)
    assert health("GPU-0")[0] == GpuHealth.UNKNOWN
    # whoever judges by samples knows nothing better
    assert mark_gpus({"GPU-1": (GpuHealth.OK, ""), "GPU-0": (GpuHealth.OK, "")}, now=now) == 1
    assert health("GPU-1") == (GpuHealth.LOST, NOT_LISTED)
    agent.poll(hardware=gpus(0, 1))
    assert health("GPU-1") == (GpuHealth.UNKNOWN, "")
    assert Gpu.objects.get(pk="GPU-1").number == number


def test_a_board_that_moved_brings_its_history_along(enrolled):
    first, second = enrolled("node-1"), enrolled("node-2")
    first.poll(hardware=gpus(0))
    second.poll(hardware=gpus(0))
    assert Gpu.objects.get().node.name == "node-1"  # not by claiming it
    first.poll(hardware=gpus())
    second.poll(hardware=gpus(0))
    moved = Gpu.objects.get()
    assert (moved.node.name, moved.health) == ("node-2", GpuHealth.UNKNOWN)


def test_another_teams_lost_board_is_nobodys_to_take(enrolled, other_team):
    first, second = enrolled("node-1"), enrolled("node-2")
    first.poll(hardware=gpus(0))
    first.poll(hardware=gpus())
    Node.objects.filter(name="node-1").update(team=other_team)
    second.poll(hardware=gpus(0))
    assert Gpu.objects.get().node.name == "node-1"


@pytest.mark.parametrize(
    "bad",
    [
        {"gpus": [{"uuid": ""}]},
        {"gpus": "eight"},
        {"gpus": gpus(0)["gpus"] * 2},
        {"gpus": [{**gpus(0)["gpus"][0], "uuid": f"GPU-{number}"} for number in range(65)]},
    ],
)
def test_a_list_that_makes_no_sense_does_not_silence_its_node(agent, bad):
    agent.poll(hardware=gpus(0))
    conditions = [{"type": "DiskSpace", "status": "true"}]
    assert agent.poll(hardware=bad, conditions=conditions).status_code == 200
    assert Gpu.objects.get().health == GpuHealth.UNKNOWN
    assert Refusal.objects.get().code == "bad_hardware"
    assert Node.objects.get().conditions.get().type == "DiskSpace"


def test_facts_lose_the_characters_that_no_column_holds(agent):
    assert agent.poll(hardware={"board": "a\0b", "list": [{"x\0": "\0"}]}).status_code == 200
    assert Node.objects.get().hardware == {"board": "ab", "list": [{"x": ""}]}


def test_a_gpu_that_was_taken_out_can_be_removed_with_a_reason(agent, api, world, outsider, other_team):
    url = "/api/v1/nodes/node-1/gpus/GPU-1:remove"
    agent.poll(hardware=gpus(0, 1))
    ci = api(world.operator, world.team)
    listed = ci.post(url, {"reason": "Broken."}, format="json")
    assert (listed.status_code, listed.data["code"]) == (409, "gpu_listed")
    agent.poll(hardware=gpus(0))
    assert api(outsider, other_team).post(url, {"reason": "x"}, format="json").status_code == 404
    assert ci.post(url, {"reason": ""}, format="json").status_code == 400
    removed = ci.post(url, {"reason": "RMA 4711."}, format="json")
    assert removed.status_code == 200
    assert [gpu["uuid"] for gpu in removed.data["gpus"]] == ["GPU-0"]
    event = Event.objects.get(verb="node.gpu_removed")
    assert (event.reason, event.data["uuid"]) == ("RMA 4711.", "GPU-1")
    assert ci.post(url, {"reason": "Again."}, format="json").status_code == 404


def test_a_viewer_removes_nothing(agent, api, world, viewer):
    agent.poll(hardware=gpus(0))
    agent.poll(hardware=gpus())
    answer = api(viewer, world.team).post("/api/v1/nodes/node-1/gpus/GPU-0:remove", {"reason": "x"}, format="json")
    assert (answer.status_code, answer.data["code"]) == (403, "role_missing")
