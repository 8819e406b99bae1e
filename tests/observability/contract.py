"""The same rows into an empty database, the same questions to it: `python -m tests.observability.contract KIND`.

Prints the answers as JSON. test_contract.py runs it on plain PostgreSQL and on TimescaleDB's WASM build, one process
each, and compares. No COPY, and one connection: that is all the WASM build can do.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import django
import numpy as np

BASE = datetime(2026, 1, 5, 22, 0, tzinfo=UTC)  # near midnight, so that days are more than one
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NODE, TEAM, DEPLOYMENT, ROLLOUT = (UUID(int=n) for n in range(1, 5))
GPUS = [1, 2, 3]


def main(kind: str) -> None:
    django.setup()
    if kind == "timescale":
        # the build has no libraries preloaded, by which the migration tells
        importlib.import_module("apps.observability.migrations.0002_series")._timescale = lambda cursor: True
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from apps.observability import rollups, store

    assert store.is_timescale() is (kind == "timescale")
    for series in store.SERIES:
        store.ensure_days(series, {(BASE + n * HOUR).date() for n in range(-1, 30)})
    fill(early=True)
    answers = {"nothing rolled up": ask()}
    rollups.refresh(BASE + 2 * HOUR)
    answers["the first hours"] = ask()
    fill(early=False)
    for later in (3 * HOUR, 2 * DAY):
        while rollups.refresh(BASE + later):
            continue
        answers[f"after {later}"] = ask()
    json.dump(answers, sys.stdout, default=str)


def fill(*, early: bool) -> None:
    """Samples, requests and pairs: the even ones first, the odd ones late."""
    from apps.observability.models import DirtyMinute
    from protocol.metrics import GPU, Kind

    chance = np.random.default_rng(5)
    marks: dict[datetime, set[int]] = {}
    for n in range(160):
        at = BASE + timedelta(seconds=int(chance.integers(0, 4 * 3_600)), milliseconds=n)
        gpu = int(chance.integers(1, 4))
        drawn = chance.uniform(0, 100, len(GPU)).round(2)
        missing = chance.random(len(GPU)) < 0.2
        values = [
            None if gone else int(value) if metric.kind in {Kind.FLAGS, Kind.CODE} else float(value)
            for metric, value, gone in zip(GPU, drawn, missing, strict=True)
        ]
        if (n % 2 == 0) is early:
            names = {"time": at, "gpu": gpu, "simulated": n % 3 == 0}
            insert("gpu_sample", names | {m.name: v for m, v in zip(GPU, values, strict=True)})
            marks.setdefault(at.replace(second=0, microsecond=0), set()).add(gpu)
            request(n, at)
            DirtyMinute.objects.create(series="inference_log", minute=at.replace(second=0, microsecond=0))
    for minute, gpus in marks.items():
        DirtyMinute.objects.create(series="gpu_sample", minute=minute, gpus=sorted(gpus))


def request(n: int, at: datetime) -> None:
    common = {
        "time": at,
        "received_at": at + timedelta(seconds=n),
        "node_id": NODE,
        "team_id": TEAM,
        "request_id": f"r{n}",
        "model": "digits",
        "deployment_id": DEPLOYMENT,
        "batch_size": n % 8,
    }
    stages = {f"{stage}_us": n * 7 for stage in ("queue", "preprocess", "compute", "postprocess")}
    log = {"version": 1 + n % 2, "digest": b"\x01" * 64, "status": 500 if n % 17 == 0 else 200, "error_code": ""}
    log |= {"user_key": b"", "session_id": "", "input_sha256": b"", "input_items": 1, "input_tokens": 0}
    log |= {"total_us": n * 4_000, "entropy": n / 7, "score": None if n % 5 == 0 else 0.5, "predicted_label": "7"}
    insert("inference_log", common | log | stages)
    pair = {"rollout_id": ROLLOUT, "stage": n % 2, "attempt": 1, "baseline_version": 1, "candidate_version": 2}
    pair |= {"similarity": None if n % 9 == 0 else n / 300, "baseline_us": n, "candidate_us": n + 1}
    pair |= {"baseline_status": 200, "candidate_status": 200, "sample": "x", "dropped_before": 0}
    insert("comparison", common | pair)


def insert(table: str, row: dict[str, Any]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        holes = ", ".join(["%s"] * len(row))
        cursor.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({holes})", list(row.values()))


def ask() -> dict[str, Any]:
    """Every question of timeseries.py and samples.py."""
    from apps.observability import samples, timeseries
    from protocol.metrics import GPU_BY_NAME

    span = (BASE - HOUR, BASE + DAY)
    minute = int(BASE.timestamp()) // 60
    answers: dict[str, Any] = {
        "evidence": timeseries.evidence_requests("digits", [1, 2], [NODE], *span),
        "pairs": timeseries.comparison_pairs(ROLLOUT, 0, 1, span[0], [NODE]),
        "worst": timeseries.worst_pairs(ROLLOUT, 1, 1, 5, span[0]),
        "minutes": timeseries.minute_counts("digits", [NODE], *span, slo_ms=500),
        "traffic": timeseries.traffic("digits", [1, 2], [TEAM], *span, timedelta(minutes=15)),
        "totals": timeseries.requests_by_version("digits", [1, 2], span[0]),
        "labelled": timeseries.labelled("digits", [1, 2], span[0]),
        "one": timeseries.request("r4", [TEAM]),
        "request minutes": timeseries.request_minutes("digits", [NODE], *span, team_ids=[TEAM]),
        "latest": samples.latest(GPUS),
        "rolled until": samples.rolled_until(),
        "heard": sorted(samples.gpus_heard(span[0])),
        "matrix": str(samples.minute_matrix("power_w", GPUS, minute, minute + 239).tolist()),  # str: nan is not nan
        "tables": {name: table(name) for name in ("gpu_minute", "gpu_hour", "gpu_day", "inference_minute")},
    }
    for metric in GPU_BY_NAME:
        for step in (timedelta(seconds=30), MINUTE, HOUR, DAY):
            series = samples.gpu_points(metric, GPUS, *span, step=step)
            answers[f"{metric} by {step}"] = [[part.tolist() for part in one[1:]] for one in series]
    return answers


def table(name: str) -> list[dict[str, Any]]:
    """All rows of a rollup; floats to the seven digits that a float4 has."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        columns = [column.name for column in cursor.description]
        rows = [dict(zip(columns, map(_rounded, row), strict=True)) for row in cursor.fetchall()]
    return sorted(
        ({key: row[key] for key in sorted(row)} for row in rows), key=lambda row: json.dumps(row, default=str)
    )


def _rounded(value: Any) -> Any:
    if not isinstance(value, float) or value == 0 or math.isnan(value):
        return value
    return float(f"{value:.6g}")


if __name__ == "__main__":
    main(sys.argv[1])
