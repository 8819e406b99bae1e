"""The command line as people start it: a process of its own, against the real web application over loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aifb.signing import private_key_pem
from apps.access import services as access
from apps.access.actors import SYSTEM
from apps.access.models import Scope, Team, User
from tests.artifacts import Keys

ROOT = Path(__file__).resolve().parents[2]
Farrier = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def release_key(keys: Keys, tmp_path: Path) -> Path:
    """The publisher's key file."""
    path = tmp_path / "release.pem"
    path.write_bytes(private_key_pem(keys.release))
    return path


@pytest.fixture
def ci_token(operator: User, team: Team, now: Any) -> str:
    """A token as CI has it: everything but decisions."""
    scopes = [scope for scope in Scope if scope != Scope.ROLLOUTS_APPROVE]
    _, secret = access.create_api_token(user=operator, team=team, name="ci", scopes=scopes, actor=SYSTEM, now=now)
    return secret


@pytest.fixture
def farrier(transactional_db: None, live_server: Any, ci_token: str) -> Farrier:
    """`farrier("versions", "digits")`: run the command, give back status and output."""

    def run(*arguments: str, token: str = ci_token, server: str = live_server.url) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"FARRIER_TOKEN": token, "FARRIER_SERVER": server, "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run
