"""The sentences of alerts: what on-call reads first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.observability.alert_plans import Entity, Member, Observation
from apps.observability.alert_rules import DEFAULTS, RANK, XID_PAGE, XID_RECORD, XID_TICKET, xid_severity
from apps.observability.alert_words import details_in, indices_in, say, xids_in
from tests.observability.alert_lab import NODE, NOW, RULES, TEAM, hot


def said(observation: Observation) -> str:
    return say(observation, RULES[observation.rule])[0]


@pytest.mark.parametrize(
    ("observation", "sentence"),
    [
        (hot(*range(8)), "node-2: 8 of 8 GPUs run 16 °C above their usual; looks like the host's cooling, not a GPU"),
        (hot(0, 1, 2, 3), "node-2: 4 of 8 GPUs run 16 °C above their usual; looks like the host's cooling, not a GPU"),
        (hot(5), "GPU 5 of node-2 runs 16 °C above its usual; its seven peers do not"),
        (hot(2, 5), "GPUs 2 and 5 of node-2 run 16 °C above their usual; the other six do not"),
        (hot(1, 2, 3), "GPUs 1 to 3 of node-2 run 16 °C above their usual; the other five do not"),
        (hot(0, gpus=2), "GPU 0 of node-2 runs 16 °C above its usual; its peer does not"),
        (hot(0, gpus=1), "GPU 0 of node-2 runs 16 °C above its usual"),
        (hot(5, gpus=16), "GPU 5 of node-2 runs 16 °C above its usual; its 15 peers do not"),
        (
            hot(4, rule="gpu-memory-temperature"),
            "GPU 4 of node-2 runs its memory 16 °C above its usual; its seven peers do not",
        ),
        (
            hot(*range(8), rule="gpu-power", excess=-120),
            "node-2: 8 of 8 GPUs draw 120 W below their usual; looks like the host's load or power supply, not a GPU",
        ),
        (Observation("node-down", NODE, since=NOW), "node-2 has not polled since 03:04 UTC"),
        (Observation("no-telemetry", NODE, since=NOW), "node-2 polls, but its GPU samples stopped at 03:04 UTC"),
        (
            Observation("gpu-xid", NODE, (Member("GPU-3", 3, note="Xid 79"),), gpus=8),
            "GPU 3 of node-2 reports Xid 79 (fallen off the bus)",
        ),
        (Observation("gpu-xid", NODE, gpus=8), "A GPU of node-2 reports an Xid error"),
        (
            Observation("gpu-lost", NODE, (Member("GPU-3", 3), Member("GPU-4", 4)), gpus=8),
            "GPUs 3 and 4 of node-2 are lost: the driver no longer reaches them",
        ),
        (
            Observation("gpu-ecc", NODE, (Member("GPU-3", 3),), gpus=8),
            "GPU 3 of node-2 has memory errors that ECC could not correct",
        ),
        (
            Observation("gpu-throttled", NODE, (Member("GPU-3", 3),), gpus=8),
            "GPU 3 of node-2 is slowed down; its seven peers are not",
        ),
        (
            Observation("model-slo", replace(NODE, kind="model", name="digits"), share=0.912),
            "digits answers 91 % of its requests within 500 ms; 95 % are promised",
        ),
        (Observation("heartbeat", Entity("team", TEAM, "default", TEAM)), "Alerting is alive"),
    ],
)
def test_sentence(observation: Observation, sentence: str) -> None:
    assert said(observation) == sentence


def test_figures_name_the_member_that_is_furthest_off() -> None:
    far = Member("GPU-5", 5, "temperature_c", 81.0, 62.0, 0.75, 11.2, "trend_break")
    near = Member("GPU-4", 4, "temperature_c", 70.0, 62.0, 0.75, 6.0, "spike")
    _, figures = say(replace(hot(4, 5), members=(near, far)), RULES["gpu-temperature"])
    assert figures == "GPU 5: expected 59–65 °C at this hour, observed 81 °C, score 11.2, trend break."


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("GPU 3: Xid 79", [3]),
        ("GPUs 0, 2 and 5 are above 85 °C", [0, 2, 5]),
        ("GPUs 0 to 7 are slowed down", list(range(8))),
        ("GPUs 0-2, 5: hot", [0, 1, 2, 5]),
        ("the driver is away", []),
        ("8 GPUs are hot", []),
    ],
)
def test_indices_that_a_node_names(text: str, indices: list[int]) -> None:
    assert indices_in(text) == indices


def test_details_that_a_node_names() -> None:
    text = "GPU 3 (Xid 79), GPU 11 (Xid 48): an error that a person must look at; reset the GPU or restart the host."
    assert details_in(text) == {3: "Xid 79", 11: "Xid 48"}
    assert indices_in(text) == [3, 11]


def test_xids_that_a_node_names() -> None:
    assert xids_in("GPU 3: Xid 79; GPU 4: Xid 48") == [48, 79]
    assert xids_in("GPU 3 is hot") == []


def test_every_xid_has_one_severity() -> None:
    assert len(XID_PAGE | XID_TICKET | XID_RECORD) == len(XID_PAGE) + len(XID_TICKET) + len(XID_RECORD)
    assert [xid_severity(code) for code in (79, 48, 31, 63, 999, 0)] == ["page", "page", "ticket", None, "ticket", None]


def test_every_rule_has_a_rank() -> None:
    assert {rule.slug for rule in DEFAULTS} == set(RANK)
    assert len(set(RANK.values())) == len(RANK)
