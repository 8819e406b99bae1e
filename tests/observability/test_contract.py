"""Plain PostgreSQL and TimescaleDB give the same rows: one program, each store, every answer compared.

TimescaleDB is its WASM build under Node, and the real one too where TIMESCALE_URL points at a server.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from controlplane.supervisor.procfs import free_port

ROOT = Path(__file__).resolve().parents[2]
WASM = Path(__file__).with_name("wasm")
DATABASE = f"farrier_test_contract_{os.getpid()}"


def answers(url: str, kind: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "FARRIER_OWNER_DATABASE_URL": "",
        "DJANGO_SETTINGS_MODULE": "tests.observability.contract_settings",
    }
    command = [sys.executable, "-m", "tests.observability.contract", kind]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def fresh(server_url: str) -> Iterator[str]:
    """The address of an empty database on a server, which is dropped afterwards."""
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(DATABASE))
    with psycopg.connect(server_url, dbname="postgres", autocommit=True) as server:
        server.execute(drop)
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        yield urlparse(server_url)._replace(path=f"/{DATABASE}").geturl()
        server.execute(drop)


@pytest.fixture(scope="module")
def plain(django_db_setup: None) -> Iterator[dict[str, Any]]:
    """The answers of plain partitions, on the server that all tests use."""
    wanted = connection.settings_dict
    address = f"{wanted['USER']}:{wanted['PASSWORD']}@{wanted['HOST']}:{wanted['PORT']}"
    with psycopg.connect(f"postgresql://{address}/postgres") as server:
        (libraries,) = server.execute("SHOW shared_preload_libraries").fetchone() or ("",)
    if "timescaledb" in libraries:
        pytest.skip("this server has no plain partitions: all tests run on TimescaleDB already")
    for url in fresh(f"postgresql://{address}/postgres"):
        yield answers(url, "plain")


@pytest.fixture(scope="module")
def wasm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of TimescaleDB's WASM build, as a server of one connection."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("there is no Node on PATH: TimescaleDB's WASM build was not asked")
    folder = tmp_path_factory.mktemp("wasm")
    for name in ("package.json", "package-lock.json", "server.mjs"):
        shutil.copy(WASM / name, folder)
    install = [npm, "ci", "--legacy-peer-deps", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"npm can't bring TimescaleDB's WASM build: {done.stderr[-300:]}")
    port = free_port()
    with subprocess.Popen([node, "server.mjs", str(port)], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
        yield f"postgresql://postgres:postgres@127.0.0.1:{port}/postgres"
        process.terminate()


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare question by question, so that a failure names it."""
    assert one.keys() == other.keys()
    for when in one:
        for question in one[when]:
            assert one[when][question] == other[when][question], f"{question}, {when}"


def test_the_answers_are_about_something(plain: dict[str, Any]) -> None:
    *_, last = plain.values()
    assert {name: len(rows) > 3 for name, rows in last["tables"].items()} == dict.fromkeys(last["tables"], True)
    assert all(last[question] for question in ("evidence", "pairs", "worst", "minutes", "traffic", "totals", "one"))
    assert all(any(times for times, *_ in last[q]) for q in last if " by " in q)


def test_timescaledb_in_wasm_gives_the_same_rows(plain: dict[str, Any], wasm: str) -> None:
    same(plain, answers(wasm, "timescale"))


def test_a_real_timescaledb_gives_the_same_rows(plain: dict[str, Any]) -> None:
    server = os.environ.get("TIMESCALE_URL")
    if not server:
        pytest.skip("TIMESCALE_URL names no TimescaleDB")
    for url in fresh(server):
        same(plain, answers(url, "timescale"))
