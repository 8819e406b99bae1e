"""Batching rules and refusals of the queue, on a real model, with the compute thread held back where order matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.engine.batching import collate
from node.engine.errors import RequestError
from node.engine.identity import Identity
from node.engine.loader import load
from node.engine.model import Limits, ServedModel
from node.engine.preprocess import Prepared
from node.engine.scheduler import Job, Scheduler
from node.engine.server.app import App
from node.engine.server.inference_log import InferenceLog
from node.wire.http import HttpRequest
from protocol.spool import SpoolWriter, read_messages
from protocol.telemetry_pb2 import InferenceRow
from tests.engine.support import Artifacts, pixels


@pytest.fixture(scope="module")
def model(artifacts: Artifacts) -> ServedModel:
    written = artifacts.digits.written
    with open(written.path, "rb") as file:
        return ServedModel(load(file.fileno(), digest=written.digest, seal=False))


@pytest.fixture(scope="module")
def text_model(artifacts: Artifacts) -> ServedModel:
    written = artifacts.minilm["v1"].written
    with open(written.path, "rb") as file:
        return ServedModel(load(file.fileno(), digest=written.digest, seal=False), Limits(batch_rows=4))


def _prepared(model: ServedModel, rows: int, value: float = 0.0) -> Prepared:
    return model.prepare({"pixels": np.full((rows, 64), value, np.float32)})


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


def _batches(scheduler: Scheduler) -> list[list[tuple[Job, int, int]]]:
    """What the compute thread would take, batch by batch."""
    batches = []
    while batch := scheduler._take():
        batches.append([(item.job, item.start, item.stop) for item in batch])
    return batches


def test_batches_keep_the_order_of_arrival_and_split_what_does_not_fit(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)
        a, b, c = (scheduler.submit(_prepared(model, rows)) for rows in (10, 20, 5))
        assert _batches(scheduler) == [[(a, 0, 10), (b, 0, 6)], [(b, 6, 20), (c, 0, 2)], [(c, 2, 5)]]

    _run(main)


def test_clients_go_before_replays_and_replays_go_alone(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)
        replays = [scheduler.submit(_prepared(model, 1), is_replay=True) for _ in range(2)]
        clients = [scheduler.submit(_prepared(model, 1)) for _ in range(2)]
        assert _batches(scheduler) == [
            [(clients[0], 0, 1), (clients[1], 0, 1)],
            [(replays[0], 0, 1)],
            [(replays[1], 0, 1)],
        ]

    _run(main)


def test_abandoned_rows_are_left_out_and_free_the_queue(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model, capacity_rows=3)
        first, second = scheduler.submit(_prepared(model, 2)), scheduler.submit(_prepared(model, 1))
        scheduler.abandon(first)
        assert _batches(scheduler) == [[(second, 0, 1)]]
        scheduler.submit(_prepared(model, 3))

    _run(main)


def test_a_full_queue_refuses_with_429(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model, capacity_rows=10)
        scheduler.submit(_prepared(model, 8))
        with pytest.raises(RequestError, match="8 rows wait already") as caught:
            scheduler.submit(_prepared(model, 3))
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        scheduler.submit(_prepared(model, 2))

    _run(main)


def test_a_queue_longer_than_the_deadline_refuses_at_once(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model, deadline_s=0.0)
        scheduler.start()
        # the first job teaches it what a row takes
        await scheduler.submit(_prepared(model, 16)).future
        scheduler.stop()
        scheduler.submit(_prepared(model, 1))
        with pytest.raises(RequestError) as caught:
            scheduler.submit(_prepared(model, 1))
        assert (caught.value.status, caught.value.code) == (429, "overloaded")

    _run(main)


def test_results_find_their_jobs(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)
        jobs = [scheduler.submit(_prepared(model, 1 + n % 5, float(n % 17))) for n in range(40)]
        scheduler.start()
        await asyncio.gather(*(job.future for job in jobs))
        scheduler.stop()
        for number, job in enumerate(jobs):
            got = np.concatenate(
                [np.asarray(part.result.outputs.values["probabilities"])[part.start : part.stop] for part in job.parts]
            )
            (wanted,) = [model.infer(_prepared(model, 1, float(number % 17)).rows).outputs.values["probabilities"]]
            assert got.shape == (1 + number % 5, 10)
            assert np.abs(got - np.asarray(wanted)).max() < 1e-5

    _run(main)


def test_rows_that_fail_spoil_nobody_elses_batch(model: ServedModel) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)
        good = scheduler.submit(_prepared(model, 1))
        broken = scheduler.submit(Prepared([{"pixels": np.zeros((64,), np.float64)}]))
        last = scheduler.submit(_prepared(model, 1))
        scheduler.start()
        await good.future
        await last.future
        # stacked with others its numbers would be cast; alone its dtype is refused by the plan
        with pytest.raises(Exception, match="float64"):
            await broken.future
        scheduler.stop()

    _run(main)


@pytest.mark.parametrize("count", [1, 3, 16])
def test_texts_of_one_batch_are_padded_to_its_longest(text_model: ServedModel, count: int) -> None:
    rows = text_model.prepare({"text": [" ".join(["word"] * (1 + 3 * n)) for n in range(count)]}).rows
    batch = collate(rows, text_model.loaded.plan.inputs, {"input_ids": 0, "attention_mask": 0}, 1)
    longest = max(len(row["input_ids"]) for row in rows)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (count, longest)
    assert batch["attention_mask"].sum(1).tolist() == [len(row["input_ids"]) for row in rows]


def test_a_batch_is_filled_up_to_what_the_graph_takes_at_least(model: ServedModel) -> None:
    rows = _prepared(model, 2, 3.0).rows
    batch = collate(rows, model.loaded.plan.inputs, {}, 5)
    assert batch["pixels"].shape == (5, 64)
    assert bool((batch["pixels"] == 3.0).all())


# the deadline, on the app


def _app(model: ServedModel, scheduler: Scheduler, spool: Path, deadline_s: float) -> App:
    lineage = dict.fromkeys(("model", "data", "env", "build"), "0")
    identity = Identity("digit-classifier", 3, "0" * 128, lineage, "deployment")
    return App(identity, model, scheduler, InferenceLog(identity, SpoolWriter(spool, "inf")), deadline_s=deadline_s)


def _request() -> HttpRequest:
    body = json.dumps({"inputs": pixels([[0.0] * 64])}).encode()
    return HttpRequest("POST", "/v2/models/digit-classifier/infer", {"x-request-id": "r"}, body)


def _rows(spool: Path) -> list[InferenceRow]:
    return [row for path in spool.iterdir() for row in read_messages(path, InferenceRow)]


def test_a_request_is_answered_or_refused_by_its_deadline(model: ServedModel, tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)  # not started: an engine that hangs
        response = await _app(model, scheduler, tmp_path, 0.05)(_request())
        assert response.status == 503
        assert json.loads(response.body)["code"] == "deadline_exceeded"
        assert response.headers["retry-after"] == "1"
        assert _batches(scheduler) == [], "what nobody waits for isn't computed"

    _run(main)
    (row,) = _rows(tmp_path)
    assert (row.status, row.error_code, row.batch_size) == (503, "deadline_exceeded", 0)


def test_a_client_that_leaves_is_logged_and_its_rows_are_left_out(model: ServedModel, tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = Scheduler(model)
        task = asyncio.create_task(_app(model, scheduler, tmp_path, 3.0)(_request()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _batches(scheduler) == []

    _run(main)
    (row,) = _rows(tmp_path)
    assert (row.status, row.error_code) == (499, "client_closed")
