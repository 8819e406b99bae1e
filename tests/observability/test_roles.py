"""The web's role owns no table: it stores telemetry, and the owner alone drops what is old."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from psycopg import sql

ROOT = Path(__file__).resolve().parents[2]
OWNER, APP, DATABASE = "farrier_test_owner", "farrier_test_app", "farrier_test_roles"
PASSWORD = "only for this test"

# What the processes do, in one of their own: settings are read once a process.
PROGRAM = """
import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import django
import numpy as np
django.setup()
from django.db import DatabaseError, connection
from apps.access.models import Team
from apps.fleet.models import Node, Pool
from apps.fleet.hardware import store_gpus
from apps.observability import samples, services, timeseries
from tests.observability.batches import batch, comparison, gpu_block, inference

now = datetime.now(UTC)
team = Team.objects.create(slug="t", name="T")
pool = Pool.objects.create(team=team, slug="p")
node = Node.objects.create(team=team, pool=pool, name="n", zone="z", public_key=bytes(32), credential_expires_at=now)

class Agent:
    node, boot_id = node.pk, uuid4()

rows = [inference("new"), inference("old", ago_s=47 * 3600.0), comparison()]
store_gpus(node, {"gpus": [{"uuid": "GPU-1", "index": 0, "name": "H100", "memory_bytes": 1}]})
(gpu,) = node.gpus.values_list("number", flat=True)
measured = gpu_block(["GPU-1"], [now.timestamp() - 120, now.timestamp() - 46 * 3600], power_w=[300, 100])
stored = services.store_batch(node, batch(Agent, 1, *rows, gpu=[measured]), now=now)
samples.copy_history(gpu, {"power_w": np.full(60, 200)}, now.timestamp() - 7_200 + 60 * np.arange(60), True)
services.refresh_rollups(now=now)

def power():
    span = (now - timedelta(days=3), now)
    (series,) = samples.gpu_points("power_w", [gpu], *span, step=timedelta(minutes=1))
    return sorted(set(series.mean.tolist()))

def kept():
    span = (now - timedelta(days=3), now + timedelta(days=1))
    return sorted(row.request_id for row in timeseries.evidence_requests("digits", [1], [node.pk], *span))

before = kept()
watts = power()
services.keep_series(now=now + timedelta(hours=25))
try:
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE inference_log")
    dropped = True
except DatabaseError:
    dropped = False
print(json.dumps([stored.seq, stored.dropped_rows, before, kept(), dropped, watts, power()]))
"""


@pytest.fixture
def urls(django_db_setup: None) -> Iterator[dict[str, str]]:
    """A database of an owner's, and the two addresses of it."""
    wanted = connection.settings_dict
    admin = {"host": wanted["HOST"], "port": wanted["PORT"], "user": wanted["USER"], "password": wanted["PASSWORD"]}
    with psycopg.connect(**admin, dbname="postgres", autocommit=True) as server:
        if not server.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()[0]:
            pytest.skip("the test's database role may not create roles")
        _drop(server)
        for role in (OWNER, APP):
            server.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), PASSWORD))
        server.execute(sql.SQL("GRANT pg_read_all_settings TO {}").format(sql.Identifier(OWNER)))  # as docker/ does
        server.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), sql.Identifier(OWNER)))
        address = f"{admin['host']}:{admin['port']}/{DATABASE}"
        password = PASSWORD.replace(" ", "%20")
        yield {
            "FARRIER_OWNER_DATABASE_URL": f"postgresql://{OWNER}:{password}@{address}",
            "DATABASE_URL": f"postgresql://{APP}:{password}@{address}",
        }
        _drop(server)


def _drop(server: psycopg.Connection) -> None:
    server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(DATABASE)))
    for role in (OWNER, APP):
        server.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


def test_the_role_without_rights_stores_and_the_owner_drops(urls: dict[str, str]) -> None:
    environment = {**os.environ, **urls, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("manage.py", "migrate", "--database", "owner", "--verbosity", "0")
    run("manage.py", "grant_app_role")
    seq, dropped_rows, before, after, may_drop, *watts = json.loads(run("-c", PROGRAM).splitlines()[-1])
    assert (seq, dropped_rows, before, after) == (1, 0, ["new", "old"], ["new"])
    assert may_drop is False
    assert watts == [[100, 200, 300]] * 2  # rolled up, and so still known when the samples are gone
